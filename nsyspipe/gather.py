"""Digest all reports of a run, agree on one step family, and digest again those that chose another."""

from __future__ import annotations

import contextlib
import re
from concurrent.futures import Executor, as_completed
from dataclasses import dataclass
from typing import TYPE_CHECKING

from nsyspipe.digest import FamilyChoice, ReportDigest, digest_report
from nsyspipe.errors import OptionError
from nsyspipe.parallel import PRELOAD, SerialExecutor, executor_for, telling_shortage
from nsyspipe.placing import choose_family, choose_host_family
from nsyspipe.read.file_check import check_file

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from concurrent.futures import Future
    from pathlib import Path

    from nsyspipe.settings import Reading

__all__ = ["Gathered", "gather"]

# What a range of one step may be called.
_ONE_STEP = re.compile(r"(?i)(?<![a-z])(step|iter|iteration|batch)(?![a-z])")
_SHOWN_FAMILIES = 6


@dataclass(frozen=True)
class Gathered:
    """The digests of a run's reports, all on one step family.

    Attributes
    ----------
    why_no_steps
        Why there is no family; None when there is one.
    """

    digests: tuple[ReportDigest, ...]
    family: str | None
    why_no_steps: str | None


def gather(
    paths: Sequence[Path],
    reading: Reading,
    *,
    jobs: int | None,
    executor: Executor | None,
    on_progress: Callable[[int, int], None] | None,
    named_family: Callable[[Sequence[ReportDigest]], str | None] | None = None,
) -> Gathered:
    """Digest the reports of a run.

    Parameters
    ----------
    named_family
        Asked first which family the steps are: what says it knows; None, or an answer of None, leaves it to be found.

    Raises
    ------
    InputError
        If a report cannot be used; the first in order of argument.
    OptionError
        If a step pattern matches nothing.
    """
    for path in paths:
        check_file(path)  # all of them, before any is read
    own = executor_for(paths, jobs, preload=PRELOAD)
    with contextlib.nullcontext(executor) if executor else own as running:
        digests = _digest_all(running, [(path, None) for path in paths], reading, on_progress)
        if not any(digest.processes for digest in digests):
            return _of_hosts(running, digests, reading, named_family)
        if reading.is_capture:
            return Gathered(tuple(digests), None, "as --step none asks for")
        family = named_family(digests) if named_family else None
        family = family or choose_family(digests)
        if reading.step is not None and family is None:
            raise _no_match(reading.step.pattern, digests)
        digests = _redo(running, digests, reading, family)
        named = reading.step.pattern if reading.step else family
        if family is not None and not any(p.windows.num_rows for d in digests for p in d.processes):
            return Gathered(
                tuple(_redo(running, digests, reading, None)),
                None,
                f"{named!r} ranges launched no kernel",
            )
    why = None if family is not None else _why_none(digests)
    return Gathered(tuple(digests), family, why)


def _of_hosts(
    running: Executor,
    digests: Sequence[ReportDigest],
    reading: Reading,
    named_family: Callable[[Sequence[ReportDigest]], str | None] | None,
) -> Gathered:
    """Agree on the step family of a run without device activity; a pattern that matches nothing is no error there."""
    if reading.is_capture:
        return Gathered(tuple(digests), None, "as --step none asks for")
    family = named_family(digests) if named_family else None
    family = family or choose_host_family(digests)
    wrong = [at for at, digest in enumerate(digests) if digest.hosts and digest.family != family]
    digests = _digest_again(running, digests, reading, family, wrong)
    return Gathered(tuple(digests), family, None if family is not None else "no process has any")


def _why_none(digests: Sequence[ReportDigest]) -> str:
    """Say why no family is of steps: none qualifies, or one named like a step is there just once on every rank."""
    own = [digest for digest in digests if digest.processes]
    for name, _ in own[0].families if own else ():
        if _ONE_STEP.search(name) and all(
            dict(digest.families).get(name) == len(digest.processes) for digest in own
        ):
            pattern = name.replace("#", "[0-9]+")
            return (
                f"there is one range {name!r} on every rank, and one step does not show what is usual: capture 10 or more, "
                f"or ask for it with --step '^{pattern}$'"
            )
    return "no family of NVTX ranges qualifies on every rank"


def _redo(
    running: Executor, digests: Sequence[ReportDigest], reading: Reading, family: str | None
) -> list[ReportDigest]:
    """Digest again the reports whose windows rest on another family."""
    wrong = [
        at for at, digest in enumerate(digests) if digest.processes and digest.family != family
    ]
    return _digest_again(running, digests, reading, family, wrong)


def _digest_again(
    running: Executor,
    digests: Sequence[ReportDigest],
    reading: Reading,
    family: str | None,
    wrong: Sequence[int],
) -> list[ReportDigest]:
    """Digest some of the reports again, on a given family."""
    result = list(digests)
    calls = [(digests[at].path, FamilyChoice(family)) for at in wrong]
    for at, digest in zip(wrong, _digest_all(running, calls, reading, None), strict=True):
        result[at] = digest
    return result


def _digest_all(
    running: Executor,
    calls: Sequence[tuple[Path | str, FamilyChoice | None]],
    reading: Reading,
    on_progress: Callable[[int, int], None] | None,
) -> list[ReportDigest]:
    works_at_once = isinstance(running, SerialExecutor)  # while submitting
    futures: list[Future[ReportDigest]] = []
    try:
        with telling_shortage():
            for path, family in calls:
                futures.append(running.submit(digest_report, str(path), reading, family))
                if works_at_once:
                    futures[-1].result()  # stop at the first error
                    if on_progress:
                        on_progress(len(futures), len(calls))
            if on_progress and not works_at_once:
                for n_done, _ in enumerate(as_completed(futures), start=1):
                    on_progress(n_done, len(calls))
            return [future.result() for future in futures]
    except BaseException:
        for future in futures:
            future.cancel()
        raise


def _no_match(pattern: str, digests: Sequence[ReportDigest]) -> OptionError:
    families: dict[str, int] = {}
    for digest in digests:
        for name, n_ranges in digest.families:
            families[name] = families.get(name, 0) + n_ranges
    shown = ", ".join(f"{name!r} ({n})" for name, n in list(families.items())[:_SHOWN_FAMILIES])
    example = next(iter(families), "step #").replace("#", "[0-9]+")
    return OptionError(
        f"--step {pattern!r}",
        "matches no NVTX range, needed for steps",
        found=shown or "no NVTX ranges at all",
        fix=f"leave --step out, or name one of these, digits as [0-9]+: --step '^{example}$'",
    )

"""Whether reports can be of one run at all."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from nsyspipe.captured import NOTHING_CAPTURED
from nsyspipe.errors import RankConflictError
from nsyspipe.read.facts import JOB_VARIABLES

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from nsyspipe.captured import Captured
    from nsyspipe.digest import ReportDigest
    from nsyspipe.placing import PlacedHost, PlacedProcess
    from nsyspipe.sidecar_model import Sidecar

__all__ = ["check_one_run", "is_surely_one_run"]

_ONE_RUN_NS = 60_000_000_000
# Of these, an equal value says that the job is the same one; torchrun's default id says nothing.
_IDENTIFYING = ("TORCHELASTIC_RUN_ID", "SLURM_JOB_ID")
_NO_ID = "none"
_OTHER_RUNS, _PASS_ONE_RUN = "reports of different runs", "pass the reports of one run"


def check_one_run(
    digests: Sequence[ReportDigest],
    placed: Sequence[PlacedProcess | PlacedHost],
    captured: Captured = NOTHING_CAPTURED,
) -> None:
    """Raise if two reports are one and the same, claim one rank, or come from different runs.

    Different runs: two captured ``WORLD_SIZE``, or two captured ids or ports of the job; the sidecars of two captures;
    or over a minute between the activity of reports: that of their devices, in a run without any that of their hosts'
    steps.

    Raises
    ------
    RankConflictError
        Naming both files.
    """
    _check_distinct(digests, placed)
    _check_captured(digests, "WORLD_SIZE", differ=True)
    _check_captured([one.report for one in placed if one.is_alone], "RANK", differ=False)
    _check_jobs(digests)
    _check_sidecars(digests, captured)
    _check_times(placed)


def is_surely_one_run(digests: Sequence[ReportDigest], captured: Captured) -> bool:
    """Tell whether the reports with ranks say themselves that they are of one run: one capture, or one job's id."""
    used = [at for at, digest in enumerate(digests) if digest.processes or digest.hosts]
    if len(used) < 2:  # noqa: PLR2004 - two could differ
        return True
    said = [captured.by_argument.get(at) for at in used]
    captures = {(one[0].facts.name, one[0].captured_at_utc_ns) if one else None for one in said}
    if len(captures) == 1 and None not in captures:
        return True
    ids = [[_text(digests[at], name) for at in used] for name in _IDENTIFYING]
    return any(len(set(own)) == 1 and own[0] not in ("", _NO_ID) for own in ids)


def _check_distinct(
    digests: Sequence[ReportDigest], placed: Sequence[PlacedProcess | PlacedHost]
) -> None:
    """Raise if one file is there twice, or one capture: a process of a session."""
    seen: dict[object, ReportDigest] = {}
    for digest, *identity in (*_files(digests), *_captures(placed)):
        other = seen.setdefault(tuple(identity), digest)
        if other is not digest:
            raise _conflict(other, digest, "the same report twice", "pass each report once")


def _files(digests: Sequence[ReportDigest]) -> Iterator[tuple[ReportDigest, str, int, int]]:
    for digest in digests:
        status = Path(digest.path).stat()
        yield digest, "file", status.st_dev, status.st_ino


def _captures(
    placed: Sequence[PlacedProcess | PlacedHost],
) -> Iterator[tuple[ReportDigest, str, int, int]]:
    for one in placed:
        start = one.report.facts.session_start_utc_ns
        if start is not None:
            yield one.report, "capture", start, one.process.process_id


def _check_captured(digests: Sequence[ReportDigest], variable: str, *, differ: bool) -> None:
    """Raise if reports disagree on a variable that they must share (`differ`), or share one they must not."""
    seen: dict[int, ReportDigest] = {}
    for digest in digests:
        value = digest.facts.number(variable)
        if value is None:
            continue
        other = (
            next((seen[key] for key in seen if key != value), None) if differ else seen.get(value)
        )
        if other is not None:
            theirs = other.facts.number(variable)
            values = f"{theirs} and {value}" if differ else f"{value} in both"
            what = f"captured {variable} is {values}: {_OTHER_RUNS}"
            raise _conflict(other, digest, what, _PASS_ONE_RUN)
        seen[value] = digest


def _check_jobs(digests: Sequence[ReportDigest]) -> None:
    """Raise if two reports captured different values of what all ranks of a job share."""
    for variable in JOB_VARIABLES:
        known = [digest for digest in digests if _text(digest, variable)]
        for digest in known[1:]:
            if _text(digest, variable) != _text(known[0], variable):
                what = f"captured {variable} differs: {_OTHER_RUNS}"
                raise _conflict(known[0], digest, what, _PASS_ONE_RUN)


def _text(digest: ReportDigest, variable: str) -> str:
    return digest.facts.variables.get(variable, "").strip()


def _check_sidecars(digests: Sequence[ReportDigest], captured: Captured) -> None:
    """Raise if the sidecars of two reports are of different captures."""
    of_path: dict[Path, tuple[Sidecar, ReportDigest]] = {}
    for argument, (sidecar, _) in captured.by_argument.items():
        of_path.setdefault(sidecar.path, (sidecar, digests[argument]))
    seen: dict[object, tuple[object, ReportDigest]] = {}
    for sidecar, digest in of_path.values():
        for key, value, what in _said(sidecar):
            theirs, other = seen.setdefault(key, (value, digest))
            if theirs != value:
                raise _conflict(other, digest, f"{what}: {_OTHER_RUNS}", _PASS_ONE_RUN)


def _said(sidecar: Sidecar) -> Iterator[tuple[object, object, str]]:
    """Yield what sidecars of one capture have alike, each of the nodes its own ranks: key, value, words if it differs."""
    if sidecar.facts.name is not None:
        yield "name", sidecar.facts.name, "their sidecars name two captures"
    if sidecar.world_size is not None:
        yield "size", sidecar.world_size, "their sidecars say two world sizes"
    for one in sidecar.ranks:
        # A capture of the same name, made again elsewhere.
        value = (sidecar.captured_at_utc_ns, one.pid)
        yield one.rank, value, f"their sidecars are of two captures, each with a rank {one.rank}"


def _check_times(placed: Sequence[PlacedProcess | PlacedHost]) -> None:
    """Raise if activity pauses for over a minute between two reports."""
    if any(one.report.facts.session_start_utc_ns is None for one in placed):
        return
    latest: PlacedProcess | PlacedHost | None = None
    for one in sorted(placed, key=lambda one: one.span[0]):
        if latest is not None and one.span[0] - latest.span[1] > _ONE_RUN_NS:
            seconds = (one.span[0] - latest.span[1]) // 1_000_000_000
            what = f"active {seconds} s apart: {_OTHER_RUNS}"
            raise _conflict(latest.report, one.report, what, _PASS_ONE_RUN)
        if latest is None or one.span[1] > latest.span[1]:
            latest = one


def _conflict(first: ReportDigest, second: ReportDigest, what: str, fix: str) -> RankConflictError:
    names = f"{first.path} and {second.path}"
    return RankConflictError(names, what, fix=f"{fix}, or number them yourself with --rank-map")

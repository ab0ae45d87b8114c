"""How reports are to be read: the options that change numbers, checked once, picklable."""

from __future__ import annotations

import contextlib
import os
import re
import warnings
from bisect import bisect_left
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import partial
from numbers import Integral, Real
from pathlib import Path
from types import UnionType
from typing import Any

from nsyspipe.errors import OptionError, short_repr, shortened
from nsyspipe.model.names import PHASE_PATTERNS
from nsyspipe.model.text_files import NotOrdinaryError, read_small_text

RANK_MAP = '--rank-map "a.sqlite=0,b.sqlite=1", or of several "node1_[0-7].sqlite=8-15"'
AUTO = "auto"  # --skip-first auto: drop the first complete step when another one remains
NO_STEPS = "none"  # --step none: the capture as a whole. A range that is really called so: ^none$.
REPETITION = (
    "repetition"  # --step repetition: steps by what launches repeat, whatever ranges there are
)
DEFAULT_FINDINGS = 5  # --findings: a screen has more to show
OnProgress = Callable[[int, int], None]  # called with (done, in all)
_EXAMPLES = {
    "step": "step",
    "comm_kernel": "all_reduce",
}  # of regular expressions; those of phases are their names
_MOST_DIGITS = 18
_LONGEST_GIVEN = 60
MOST_RANKS = 1 << 20  # more than any job has


@dataclass(frozen=True)
class Reading:
    """Patterns that decide what an event is."""

    step: re.Pattern[str] | None = (
        None  # texts that are steps; None lets the step family be detected
    )
    is_capture: bool = (
        False  # whether no range is to be a step: the figures are of the capture as a whole
    )
    is_repetition: bool = False  # whether steps are found by repetition, whatever ranges there are
    n_steps: int | None = None  # how many whole ones, about
    comm_kernel: re.Pattern[str] | None = None  # kernel names that are communication besides NCCL's
    # pattern by phase, every phase of `names.PHASES`
    phases: dict[str, re.Pattern[str]] = field(
        default_factory=lambda: {phase: re.compile(text) for phase, text in PHASE_PATTERNS.items()}
    )

    @classmethod
    def from_text(cls, *, n_steps: int | None = None, **patterns: str | None) -> Reading:
        """Compile the regular expressions ``step``, ``comm_kernel`` and those of phases; the step ``none`` is no step at all."""
        step, comm_kernel = (patterns.pop(name, None) for name in ("step", "comm_kernel"))
        if n_steps is not None and step not in (None, REPETITION):
            problem = (
                f"applies only to steps found by a periodic launch pattern, but --step {step} does "
                "not"
            )
            raise OptionError(f"--steps {n_steps}", problem, fix="leave out one of them")
        phases = PHASE_PATTERNS | {
            phase: text for phase, text in patterns.items() if text is not None
        }
        return cls(
            None if step in (None, NO_STEPS, REPETITION) else compile_pattern("--step", step),
            step == NO_STEPS,
            step == REPETITION or n_steps is not None,
            n_steps,
            None if comm_kernel is None else compile_pattern("--comm-kernel", comm_kernel),
            {phase: compile_pattern(f"--{phase}", text) for phase, text in phases.items()},
        )


def compile_pattern(option: str, text: str) -> re.Pattern[str]:
    """Compile a user's regular expression; an `OptionError` says where it breaks."""
    name = option.lstrip("-").replace("-", "_")
    check_kind(
        name,
        text,
        str,
        "a regular expression as text",
        f"{name}='^{_EXAMPLES.get(name, f'{name}$')}'",
    )
    if not text:
        raise OptionError(
            f"{option} ''", "is empty and would match everything", fix=f"leave out {option}"
        )
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", FutureWarning)  # [[ may mean a set some day
            return re.compile(text)
    except (re.error, OverflowError, RecursionError) as error:
        position = getattr(error, "pos", None)
        why = f"{getattr(error, 'msg', error)}{'' if position is None else f' at position {position}'}"
        fix = "use Python syntax, and escape ( ) [ ] . with a backslash to match them literally"
        raise OptionError(
            f"{option} {text!r}", f"is not a regular expression ({why})", fix=fix
        ) from error


def parse_ranks(text: str, option: str = "--ranks", given: str | None = None) -> frozenset[int]:
    """Read ``0,7,63`` or ``0-3,7``; OptionError if it is neither."""
    found: set[int] = set()
    for part in text.split(","):
        first, dash, last = part.partition("-")
        problem = f"{short_repr(part)} is not a rank or a range of ranks"
        ranks = None
        with contextlib.suppress(ValueError):
            ranks = range(int(first), int(last if dash else first) + 1)
            problem = "" if ranks else f"the range {part} ends before it starts"
        if ranks and ranks[-1] >= MOST_RANKS:
            problem = f"rank {short_repr(ranks[-1])} is too large"
        if problem or ranks is None:
            given = given or f"{option} {shortened(text, _LONGEST_GIVEN)}"
            raise OptionError(given, problem, fix=f"{option} 0,7,63 or {option} 0-3")
        found |= set(ranks)
    return frozenset(found)


def asked_ranks(asked: object) -> frozenset[int]:
    """Read what `parse_ranks` does, a number, or several of either; these are looked at one by one, however many there may be."""
    fix = "ranks='0-7,63'"
    needed = "a rank, or several,"
    found = set[int]()
    if isinstance(asked, str):
        return parse_ranks(asked)
    unread = [asked] if isinstance(asked, Integral) else several("ranks", asked, needed, fix)
    if isinstance(unread, range):
        n_ranks = _n_ranks_at_start(unread)
        found = set(unread[:n_ranks])
        unread = unread[n_ranks:]
    for part in unread:
        if isinstance(part, bool) or not isinstance(part, Integral | str):
            raise OptionError.of_kind("ranks", asked, needed, fix)
        if isinstance(part, Integral) and not 0 <= int(part) < MOST_RANKS:
            raise OptionError(
                f"ranks={short_repr(asked)}", f"rank {short_repr(part)} is too large", fix=fix
            )
        found |= (
            parse_ranks(part, given=f"ranks={short_repr(asked)}")
            if isinstance(part, str)
            else {int(part)}
        )
    if not found:
        raise OptionError(f"ranks={short_repr(asked)}", "is empty", fix=fix)
    return frozenset(found)


def _n_ranks_at_start(numbers: range) -> int:
    """Return how many numbers of an ascending range are ranks: to check a million one by one takes seconds."""
    if numbers.start < 0 or numbers.step < 0:
        return 0
    return bisect_left(numbers[: MOST_RANKS + 1], MOST_RANKS)


def parse_rank_map(given: str | Mapping[Any, int] | None) -> dict[str, int] | None:
    """Read ``a.sqlite=0,b_[0-7].sqlite=1-8``, or a file with such a pair per line, or a mapping, less ``../``; None stays; else an `OptionError`."""
    if given is None:
        return None
    pairs: Mapping[Any, Any] = _parsed(given) if isinstance(given, str) else given
    if not isinstance(pairs, Mapping):
        raise OptionError.of_kind(
            "rank_map", given, "a rank for each report", "rank_map={'a.sqlite': 0}"
        )
    for name, rank in pairs.items():
        path_of("rank_map", name, "rank_map={'a.sqlite': 0}")
        if not re.fullmatch("[0-9]{1,18}", str(rank)) or not isinstance(rank, Integral):
            raise OptionError(
                "--rank-map",
                f"assigns to {name} the invalid rank {short_repr(rank)}",
                fix="use integers of at least 0",
            )
    return {re.sub(r"^(\.\.?/)+", "", os.fspath(name)): int(rank) for name, rank in pairs.items()}


def _parsed(text: str) -> dict[str, int]:
    if "=" not in text:
        try:
            text = read_small_text(Path(text))
        except NotOrdinaryError as error:
            raise OptionError(f"--rank-map {text}", str(error), fix=RANK_MAP) from error
        except (OSError, ValueError) as error:
            raise OptionError(
                f"--rank-map {text}", "is neither pairs nor a readable file", fix=RANK_MAP
            ) from error
    lines = [line for line in text.splitlines() if not line.lstrip().startswith("#")]
    ranks: dict[str, int] = {}
    for pair in filter(None, (pair.strip() for line in lines for pair in line.split(","))):
        names, _, numbers = (part.strip() for part in pair.rpartition("="))
        counted = (
            _counted(names, r"(.*)\[([0-9]{1,6})-([0-9]{1,6})\](.*)") if "-" in numbers else []
        )
        named = counted or [names]
        given = _counted(numbers, "()([0-9]{1,6})-([0-9]{1,6})()") or [numbers]
        problem = _unpaired(names, numbers, len(named), len(given))
        if problem:
            raise OptionError(f"--rank-map {pair}", problem, fix=RANK_MAP)
        if not names or not re.fullmatch("[0-9]{1,18}", given[0]):
            raise OptionError(f"--rank-map {pair}", "is not of the form REPORT=RANK", fix=RANK_MAP)
        for name, number in zip(named, given, strict=True):
            if name in ranks:
                raise OptionError(
                    "--rank-map", f"names {name} twice", fix="give one rank per report"
                )
            ranks[name] = int(number)
    return ranks


def _unpaired(names: str, numbers: str, n_names: int, n_numbers: int) -> str:
    """Say why a range of ranks does not go with the reports before it; nothing where it does, or is none."""
    of_ranks = re.fullmatch(r"[0-9]{1,6}-[0-9]{1,6}", numbers)
    if not of_ranks:
        return ""
    for text in (*re.findall(r"\[([0-9]{1,6}-[0-9]{1,6})\]", names), of_ranks[0]):
        first, last = map(int, text.split("-"))
        if last < first:
            return f"the range {text} ends before it starts"
    counts = (
        f"{n} {word}{'s' * (n > 1)}" for n, word in ((n_names, "report"), (n_numbers, "rank"))
    )
    return ", ".join(counts) * (n_names != n_numbers)


def _counted(text: str, pattern: str) -> list[str]:
    """Return a text once for each number of its range, as ``node[0-3]`` names four; nothing where it is no range.

    As in a shell, numbers have the leading zeros of the first: ``node[08-10]`` names node08, node09
    and node10.
    """
    found = re.fullmatch(pattern, text)
    if not found:
        return []
    before, first, last, behind = found.groups()
    n_digits = len(first) if first.startswith("0") else 1
    return [f"{before}{number:0{n_digits}}{behind}" for number in range(int(first), int(last) + 1)]


def check_whole(name: str, value: object, fix: str, least: int = 1) -> None:
    """Refuse (OptionError) what is given to a parameter of Python in place of a whole number from 1, or None."""
    if value is not None and (type(value) is bool or not isinstance(value, Integral)):
        raise OptionError.of_kind(name, value, "a whole number", fix)
    if value is not None and value < least:
        raise OptionError(
            f"{name}={short_repr(value)}", f"is not an integer of at least {least}", fix=fix
        )


def check_number(name: str, value: object, fix: str) -> None:
    """Refuse (OptionError) what is given to a parameter of Python in place of a number, or None."""
    if value is not None and (isinstance(value, bool) or not isinstance(value, Real)):
        raise OptionError.of_kind(name, value, "one number", fix)
    try:
        float(value or 0)
    except OverflowError as error:
        raise OptionError(
            f"{name}={short_repr(value)}", "is too large", fix="a smaller number"
        ) from error


def plain_number(value: Any) -> Any:  # noqa: ANN401 - whatever was given
    """Return a number of numpy, or a fraction, as one of Python's own, which can be written down; all else as it is."""
    with contextlib.suppress(OverflowError):
        value = (
            value if isinstance(value, int | float) or not isinstance(value, Real) else float(value)
        )
    return value


def check_text(name: str, value: object, fix: str) -> None:
    """Refuse (OptionError) what is given to a parameter of Python in place of a text that can be written, or None."""
    check_kind(name, value, str, "a text", fix)
    text = "" if value is None else str(value)
    if value is not None and (not text or text.encode(errors="replace").decode() != text):
        problem = "contains a lone surrogate, which cannot be written" if text else "is empty"
        raise OptionError(f"{name}={short_repr(value)}", problem, fix=fix)


def check_kind(name: str, value: object, kind: type | UnionType, needed: str, fix: str) -> None:
    """Refuse (OptionError) what is given to a parameter of Python in place of what is needed, or None."""
    if value is not None and (
        not isinstance(value, kind) or (isinstance(value, bool) and kind is Integral)
    ):
        raise OptionError.of_kind(name, value, needed, fix)


def check_flags(**flags: object) -> None:
    """Refuse (OptionError) what is given to a parameter of Python in place of True or False: any text would be true."""
    for name, value in flags.items():
        if not isinstance(value, bool):
            raise OptionError.of_kind(name, value, "True or False", f"{name}=True")


def path_of(name: str, given: object, fix: str) -> str:
    """Return the path that a parameter of Python names; an `OptionError` if it is anything else."""
    if not isinstance(given, str | os.PathLike):
        raise OptionError.of_kind(name, given, "a path", fix)
    with contextlib.suppress(UnicodeEncodeError):
        if os.fspath(given) not in ("", b"") and b"\0" not in os.fsencode(given):
            return os.fspath(given)
    raise OptionError(f"{name}={short_repr(given)}", "is not a file name", fix=fix)


def paths_of(name: str, given: object, fix: str) -> list[str]:
    """Return the paths that one names which takes several."""
    is_one = isinstance(given, str | os.PathLike)
    return [
        path_of(name, one, fix)
        for one in ([given] if is_one else several(name, given, "a path", fix))
    ]


def several(name: str, given: object, needed: str, fix: str) -> Iterable[Any]:
    """Return what can be gone through; an `OptionError` says what was needed if it cannot."""
    is_whole = isinstance(given, Mapping | bytes) or {"columns", "read"} & {
        *dir(given)
    }  # a frame, a file
    if is_whole or not isinstance(given, Iterable):
        raise OptionError.of_kind(name, given, needed, fix)
    return given


def _number(option: str, word: str, value: str | int) -> int | None:
    """Return the number that was asked for, 10**18 for any that is larger; None for the option's word."""
    text = str(value).strip().lower()
    if text == word:
        return None
    if not re.fullmatch(r"[0-9]+", text):
        given = f"{option} {shortened(str(value), _LONGEST_GIVEN)}"
        raise OptionError(
            given, f"is neither an integer of at least 0 nor '{word}'", fix=f"{option} {word}"
        )
    return int(text) if len(text) <= _MOST_DIGITS else 10**_MOST_DIGITS


# How many findings to show, None for all; how many complete steps to skip at the start, None for
# automatic.
parse_findings = partial(_number, "--findings", "all")
parse_skip_first = partial(_number, "--skip-first", AUTO)


def logs_refused(option: str) -> OptionError:
    """Return the error of a log or topology that is given where none is to be used."""
    problem = "ignores logs and topologies, but one was given"
    return OptionError(f"--no-logs with {option}", problem, fix="leave out one of them")

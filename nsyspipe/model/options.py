"""The options that change how reports are read, and the checks of options and parameters."""

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
# --skip-first auto: skip the first complete step if another one remains.
AUTO = "auto"
# --step none: analyze the capture as a whole. A range that has this name is ^none$.
NO_STEPS = "none"
# --step repetition: find steps by launches that repeat, whatever ranges there are.
REPETITION = "repetition"
# --findings: more would leave no place on a screen for other results.
DEFAULT_FINDINGS = 5
# A function that is called with (number done, number of all).
OnProgress = Callable[[int, int], None]
# Examples of regular expressions. The example of a phase is its name.
_EXAMPLES = {"step": "step", "comm_kernel": "all_reduce"}
_MAX_DIGITS = 18
_MAX_VALUE_CHARACTERS = 60
# More than any job has.
MOST_RANKS = 1 << 20
_RANK_MAP_FIX = "rank_map={'a.sqlite': 0}"
_RANK = re.compile("[0-9]{1,18}")
# Patterns of `_numbered_texts`. Ranks have nothing before and after their range.
_RANGE_OF_REPORTS = r"(.*)\[([0-9]{1,6})-([0-9]{1,6})\](.*)"
_RANGE_OF_RANKS = "()([0-9]{1,6})-([0-9]{1,6})()"


@dataclass(frozen=True)
class Reading:
    """Patterns that decide what an event is."""

    # Texts of ranges that are steps. None to detect the step family.
    step: re.Pattern[str] | None = None
    # No range is a step: the metrics are of the capture as a whole.
    is_capture: bool = False
    # Steps are found by repetition, whatever ranges there are.
    is_repetition: bool = False
    # The approximate number of complete steps, to find them by repetition.
    n_steps: int | None = None
    # Names of kernels that are communication, besides those of NCCL.
    comm_kernel: re.Pattern[str] | None = None
    # Lines of Python are read, if the report has samples of them.
    with_lines: bool = True
    # Pattern by phase, for every phase of `names.PHASES`.
    phases: dict[str, re.Pattern[str]] = field(
        default_factory=lambda: {phase: re.compile(text) for phase, text in PHASE_PATTERNS.items()}
    )

    @classmethod
    def from_text(
        cls, *, n_steps: int | None = None, with_lines: bool = True, **patterns: str | None
    ) -> Reading:
        """Return how to read, with regular expressions that are given as texts.

        `patterns` are ``step``, ``comm_kernel`` and those of phases by name. The steps `NO_STEPS`
        and `REPETITION` are no regular expressions. A number of steps means steps by repetition.
        Raises `OptionError` if an expression is invalid, or if options contradict each other.
        """
        step = patterns.pop("step", None)
        comm_kernel = patterns.pop("comm_kernel", None)
        if n_steps is not None and step not in (None, REPETITION):
            problem = (
                f"applies only to steps found by a periodic launch pattern, but --step {step} does "
                "not"
            )
            raise OptionError(f"--steps {n_steps}", problem, fix="leave out one of them")
        step_pattern = None
        if step is not None and step not in (NO_STEPS, REPETITION):
            step_pattern = compile_pattern("--step", step)
        comm_kernel_pattern = None
        if comm_kernel is not None:
            comm_kernel_pattern = compile_pattern("--comm-kernel", comm_kernel)
        # The user's patterns of phases replace those of nsyspipe.
        phases_of_user = {phase: text for phase, text in patterns.items() if text is not None}
        phases = {}
        for phase, text in (PHASE_PATTERNS | phases_of_user).items():
            phases[phase] = compile_pattern(f"--{phase}", text)
        return cls(
            step=step_pattern,
            is_capture=step == NO_STEPS,
            is_repetition=step == REPETITION or n_steps is not None,
            n_steps=n_steps,
            comm_kernel=comm_kernel_pattern,
            with_lines=with_lines,
            phases=phases,
        )


def compile_pattern(option: str, text: str) -> re.Pattern[str]:
    """Compile a regular expression of the user; an `OptionError` says where it is invalid."""
    name = option.lstrip("-").replace("-", "_")
    example = _EXAMPLES.get(name, f"{name}$")
    check_kind(name, text, str, "a regular expression as text", f"{name}='^{example}'")
    if not text:
        raise OptionError(
            f"{option} ''", "is empty and would match everything", fix=f"leave out {option}"
        )
    try:
        with warnings.catch_warnings():
            # Python warns of [[, which may mean a set in a future version.
            warnings.simplefilter("ignore", FutureWarning)
            return re.compile(text)
    except (re.error, OverflowError, RecursionError) as error:
        position = getattr(error, "pos", None)
        reason = str(getattr(error, "msg", error))
        if position is not None:
            reason += f" at position {position}"
        problem = f"is not a regular expression ({reason})"
        fix = "use Python syntax, and escape ( ) [ ] . with a backslash to match them literally"
        raise OptionError(f"{option} {text!r}", problem, fix=fix) from error


def parse_ranks(text: str, option: str = "--ranks", subject: str | None = None) -> frozenset[int]:
    """Parse ``0,7,63`` or ``0-3,7``; an OptionError if the text is neither.

    The error is about `subject`, or about the option and the text.
    """
    all_ranks: set[int] = set()
    for part in text.split(","):
        try:
            ranks = _ranks_of_part(part)
        except ValueError as error:
            default_subject = f"{option} {shortened(text, _MAX_VALUE_CHARACTERS)}"
            fix = f"{option} 0,7,63 or {option} 0-3"
            raise OptionError(subject or default_subject, str(error), fix=fix) from error
        all_ranks.update(ranks)
    return frozenset(all_ranks)


def _ranks_of_part(text: str) -> range:
    """Return the ranks of ``7`` or ``0-3``; a ValueError says what is wrong with another text."""
    first, dash, last = text.partition("-")
    try:
        first_rank = int(first)
        last_rank = int(last) if dash else first_rank
    except ValueError as error:
        raise ValueError(f"{short_repr(text)} is not a rank or a range of ranks") from error
    if last_rank < first_rank:
        raise ValueError(f"the range {text} ends before it starts")
    if last_rank >= MOST_RANKS:
        raise ValueError(f"rank {short_repr(last_rank)} is too large")
    return range(first_rank, last_rank + 1)


def asked_ranks(asked: object) -> frozenset[int]:
    """Return the ranks that a user asks for: a number, a text for `parse_ranks`, or several.

    Raises `OptionError` at the first wrong value, so that an endless iterable ends too.
    """
    if isinstance(asked, str):
        return parse_ranks(asked)
    fix = "ranks='0-7,63'"
    needed = "a rank, or several,"
    values = [asked] if isinstance(asked, Integral) else several("ranks", asked, needed, fix)
    ranks = set[int]()
    unchecked = values
    if isinstance(values, range):
        # Checking a million numbers one by one takes seconds. So the loop gets only the rest.
        n_ranks = _n_ranks_at_start(values)
        ranks = set(values[:n_ranks])
        unchecked = values[n_ranks:]
    for value in unchecked:
        if isinstance(value, bool) or not isinstance(value, Integral | str):
            raise OptionError.of_kind("ranks", asked, needed, fix)
        if isinstance(value, str):
            ranks |= parse_ranks(value, subject=f"ranks={short_repr(asked)}")
        elif 0 <= int(value) < MOST_RANKS:
            ranks.add(int(value))
        else:
            reason = "is negative" if int(value) < 0 else "is too large"
            problem = f"rank {short_repr(value)} {reason}"
            raise OptionError(f"ranks={short_repr(asked)}", problem, fix=fix)
    if not ranks:
        raise OptionError(f"ranks={short_repr(asked)}", "is empty", fix=fix)
    return frozenset(ranks)


def _n_ranks_at_start(numbers: range) -> int:
    """Return how many numbers at the start of an ascending range are ranks; 0 for another range."""
    is_ascending = numbers.step > 0
    if not is_ascending or numbers.start < 0:
        return 0
    # The position of the first number that is too large. The slice keeps the search short.
    return bisect_left(numbers[: MOST_RANKS + 1], MOST_RANKS)


def parse_rank_map(rank_map: str | Mapping[Any, int] | None) -> dict[str, int] | None:
    """Return the rank of each report, or None for None; an `OptionError` if the value is no map.

    A map is ``a.sqlite=0,b_[0-7].sqlite=1-8``, a file with such a pair per line, or a mapping.
    ``./`` and ``../`` at the start of a report are left out.
    """
    if rank_map is None:
        return None
    pairs: Any = rank_map
    if isinstance(rank_map, str):
        pairs = _parsed_rank_map(rank_map)
    if not isinstance(pairs, Mapping):
        raise OptionError.of_kind("rank_map", rank_map, "a rank for each report", _RANK_MAP_FIX)
    rank_of_report = {}
    for name, rank in pairs.items():
        path = path_of("rank_map", name, _RANK_MAP_FIX)
        is_rank = isinstance(rank, Integral) and _RANK.fullmatch(str(rank))
        if not is_rank:
            problem = f"assigns to {name} the invalid rank {short_repr(rank)}"
            raise OptionError("--rank-map", problem, fix="use integers of at least 0")
        report = re.sub(r"^(\.\.?/)+", "", path)
        rank_of_report[report] = int(rank)
    return rank_of_report


def _parsed_rank_map(text: str) -> dict[str, int]:
    """Return the rank of each report, from pairs or from the file that `text` names."""
    pairs = text
    if "=" not in text:
        try:
            pairs = read_small_text(Path(text))
        except NotOrdinaryError as error:
            raise OptionError(f"--rank-map {text}", str(error), fix=RANK_MAP) from error
        except (OSError, ValueError) as error:
            problem = "is neither pairs nor a readable file"
            raise OptionError(f"--rank-map {text}", problem, fix=RANK_MAP) from error
    # Lines with # at the start are comments.
    lines = [line for line in pairs.splitlines() if not line.lstrip().startswith("#")]
    ranks: dict[str, int] = {}
    for pair in ",".join(lines).split(","):
        if not pair.strip():
            continue
        for name, rank in _ranks_of_pair(pair.strip()):
            if name in ranks:
                problem = f"names {name} twice"
                raise OptionError("--rank-map", problem, fix="give one rank per report")
            ranks[name] = rank
    return ranks


def _ranks_of_pair(pair: str) -> list[tuple[str, int]]:
    """Return reports and ranks of ``a.sqlite=0``, or of the ranges ``b_[0-7].sqlite=1-8``.

    Raises `OptionError` if the pair has another form, or if the ranges do not fit each other.
    """
    report_text, _, rank_text = (part.strip() for part in pair.rpartition("="))
    # A text without a range is one rank, or one report. Brackets are a range only beside a range of
    # ranks, because they may be part of a name.
    ranks = _numbered_texts(rank_text, _RANGE_OF_RANKS) or [rank_text]
    reports = [report_text]
    if "-" in rank_text:
        reports = _numbered_texts(report_text, _RANGE_OF_REPORTS) or [report_text]
    problem = _range_problem(report_text, rank_text, n_reports=len(reports), n_ranks=len(ranks))
    is_rank = _RANK.fullmatch(ranks[0]) is not None
    has_form = bool(report_text) and is_rank
    if not problem and not has_form:
        problem = "is not of the form REPORT=RANK"
    if problem:
        raise OptionError(f"--rank-map {pair}", problem, fix=RANK_MAP)
    return list(zip(reports, map(int, ranks), strict=True))


def _range_problem(report_text: str, rank_text: str, *, n_reports: int, n_ranks: int) -> str:
    """Return why a range of ranks does not fit its reports; an empty text if it fits.

    A range may end before it starts, or there may be more ranks than reports, or fewer. A single
    rank is no range, and always fits.
    """
    is_range = re.fullmatch(r"[0-9]{1,6}-[0-9]{1,6}", rank_text) is not None
    if not is_range:
        return ""
    ranges_of_reports = re.findall(r"\[([0-9]{1,6}-[0-9]{1,6})\]", report_text)
    for range_text in (*ranges_of_reports, rank_text):
        first, last = map(int, range_text.split("-"))
        if last < first:
            return f"the range {range_text} ends before it starts"
    if n_reports == n_ranks:
        return ""
    reports = f"{n_reports} reports" if n_reports > 1 else f"{n_reports} report"
    ranks = f"{n_ranks} ranks" if n_ranks > 1 else f"{n_ranks} rank"
    return f"{reports}, {ranks}"


def _numbered_texts(text: str, pattern: str) -> list[str]:
    """Return a text once for each number of its range; an empty list if it has no range.

    ``node[0-3]`` becomes node0, node1, node2 and node3. A first number with a zero in front tells
    how many digits all numbers have, as in a shell: ``node[08-10]`` becomes node08, node09 and
    node10. The groups of `pattern` are the text before the range, the first number, the last
    number, and the text after the range.
    """
    match = re.fullmatch(pattern, text)
    if not match:
        return []
    before, first, last, after = match.groups()
    has_leading_zero = first.startswith("0")
    min_digits = len(first) if has_leading_zero else 1
    numbers = range(int(first), int(last) + 1)
    return [f"{before}{number:0{min_digits}}{after}" for number in numbers]


def check_whole(name: str, value: object, fix: str, least: int = 1) -> None:
    """Raise an OptionError if a parameter of the API is no integer of at least `least`.

    None is a value that was not given, and is allowed.
    """
    if value is None:
        return
    if isinstance(value, bool) or not isinstance(value, Integral):
        raise OptionError.of_kind(name, value, "a whole number", fix)
    if value < least:
        subject = f"{name}={short_repr(value)}"
        raise OptionError(subject, f"is not an integer of at least {least}", fix=fix)


def check_number(name: str, value: object, fix: str) -> None:
    """Raise an OptionError if a parameter of the API is no number that fits into a float.

    None is a value that was not given, and is allowed.
    """
    if value is None:
        return
    if isinstance(value, bool) or not isinstance(value, Real):
        raise OptionError.of_kind(name, value, "one number", fix)
    try:
        float(value)
    except OverflowError as error:
        subject = f"{name}={short_repr(value)}"
        raise OptionError(subject, "is too large", fix="a smaller number") from error


def plain_number(value: Any) -> Any:  # noqa: ANN401 - any value of a user
    """Return a number of numpy or a fraction as a float, and any other value unchanged.

    Unlike these, a float can be written to documents.
    """
    if isinstance(value, int | float) or not isinstance(value, Real):
        return value
    # A number that is too large for a float stays as it is.
    with contextlib.suppress(OverflowError):
        return float(value)
    return value


def check_text(name: str, value: object, fix: str) -> None:
    """Raise an OptionError if a parameter of the API is no text that can be written.

    None is a value that was not given, and is allowed.
    """
    check_kind(name, value, str, "a text", fix)
    if value is None:
        return
    text = str(value)
    # UTF-8 has no bytes for half of a surrogate pair. They become question marks here.
    text_as_written = text.encode(errors="replace").decode()
    problem = None
    if not text:
        problem = "is empty"
    elif text_as_written != text:
        problem = "contains a lone surrogate, which cannot be written"
    if problem is not None:
        raise OptionError(f"{name}={short_repr(value)}", problem, fix=fix)


def check_kind(name: str, value: object, kind: type | UnionType, needed: str, fix: str) -> None:
    """Raise an OptionError if a parameter of the API is not of a kind.

    None is a value that was not given, and is allowed. `needed` is the kind in words.
    """
    if value is None:
        return
    # For Python, a truth value is an integer.
    is_truth_value = isinstance(value, bool) and kind is Integral
    if is_truth_value or not isinstance(value, kind):
        raise OptionError.of_kind(name, value, needed, fix)


def check_flags(**flags: object) -> None:
    """Raise an OptionError if parameters of the API are not True or False.

    Python would take any text for true.
    """
    for name, value in flags.items():
        if not isinstance(value, bool):
            raise OptionError.of_kind(name, value, "True or False", f"{name}=True")


def path_of(name: str, value: object, fix: str) -> str:
    """Return the path that is the value of a parameter; an `OptionError` if it is no path."""
    if not isinstance(value, str | os.PathLike):
        raise OptionError.of_kind(name, value, "a path", fix)
    path = os.fspath(value)
    # A text that the file system cannot encode is no path either.
    with contextlib.suppress(UnicodeEncodeError):
        has_null = b"\0" in os.fsencode(path)
        if path and not has_null:
            return path
    raise OptionError(f"{name}={short_repr(value)}", "is not a file name", fix=fix)


def paths_of(name: str, value: object, fix: str) -> list[str]:
    """Return the paths that a parameter of the API names: one path or several."""
    if isinstance(value, str | os.PathLike):
        return [path_of(name, value, fix)]
    paths = several(name, value, "a path", fix)
    return [path_of(name, path, fix) for path in paths]


def several(name: str, value: object, needed: str, fix: str) -> Iterable[Any]:
    """Return a value that is an iterable of several values; an `OptionError` for another value.

    The error says what is `needed`. Mappings, tables and files are iterables too, but each of them
    counts as one value. The caller has handled texts.
    """
    is_table_or_file = not {"columns", "read"}.isdisjoint(dir(value))
    is_one_value = isinstance(value, Mapping | bytes) or is_table_or_file
    if is_one_value or not isinstance(value, Iterable):
        raise OptionError.of_kind(name, value, needed, fix)
    return value


def _number(option: str, word: str, value: str | int) -> int | None:
    """Return the number of an option's value; None if the value is `word`, for example ``auto``.

    A number with more than 18 digits becomes 10**18.
    """
    text = str(value).strip().lower()
    if text == word:
        return None
    if not re.fullmatch(r"[0-9]+", text):
        subject = f"{option} {shortened(str(value), _MAX_VALUE_CHARACTERS)}"
        problem = f"is neither an integer of at least 0 nor '{word}'"
        raise OptionError(subject, problem, fix=f"{option} {word}")
    return int(text) if len(text) <= _MAX_DIGITS else 10**_MAX_DIGITS


# The number of findings to show; None for all.
parse_findings = partial(_number, "--findings", "all")
# The number of complete steps to skip at the start; None to decide automatically.
parse_skip_first = partial(_number, "--skip-first", AUTO)


def logs_refused(option: str) -> OptionError:
    """Return the error of a log or topology next to an option that ignores both."""
    problem = "ignores logs and topologies, but one was given"
    return OptionError(f"--no-logs with {option}", problem, fix="leave out one of them")

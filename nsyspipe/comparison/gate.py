"""The gate of a comparison: what makes a job fail, and when it cannot be decided."""

from __future__ import annotations

import math
from dataclasses import dataclass
from numbers import Real
from typing import TYPE_CHECKING, Any

from nsyspipe.errors import OptionError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from nsyspipe.comparison.difference import RunDifference
    from nsyspipe.comparison.statistics import Better


REGRESSION, ANY_CHANGE = "regression", "any-change"
FAIL_ON = (REGRESSION, ANY_CHANGE)
# Exit codes of the contract.
PASSED, FAILED, UNDECIDED = 0, 3, 4

_FAILING = {REGRESSION: (REGRESSION,), ANY_CHANGE: (REGRESSION, "improvement", "change")}
_NO_CHANGE, _IMPROVEMENT, _NEITHER = "no change", "improvement", "neither"


@dataclass(frozen=True)
class Gate:
    """What a gate says.

    Attributes
    ----------
    fail_on
        `REGRESSION` or `ANY_CHANGE`.
    exit_code
        `PASSED`, `FAILED`, or `UNDECIDED`: none failed, but of a judged metric it is not sure.
    failed, undecided
        Rows of `tables.METRIC_ROWS` that failed, and of which it is not sure.
    """

    fail_on: str
    exit_code: int
    failed: tuple[dict[str, Any], ...]
    undecided: tuple[dict[str, Any], ...]

    @property
    def outcome(self) -> str:
        """``passed``, ``failed`` or ``undecided``."""
        return {PASSED: "passed", FAILED: "failed", UNDECIDED: "undecided"}[self.exit_code]


def _passes(row: Mapping[str, Any], fail_on: str) -> bool:
    """Whether there is nothing to fail for, for sure: of regressions it is enough that the interval ends below what counts."""
    if row["verdict"] == _NO_CHANGE:
        return True
    return fail_on == REGRESSION and (
        row["verdict"] == _IMPROVEMENT or bool(row.get("no_regression"))
    )


def check_can_fail(
    fail_on: str,
    judged: Mapping[str, Better],
    given: str = f"--fail-on {REGRESSION}",
    fix: str = f"--fail-on {ANY_CHANGE}",
) -> None:
    """Refuse a gate that no run could ever fail: one for regressions of what cannot get worse.

    Parameters
    ----------
    judged
        By name of the metric, which way is better.
    given, fix
        How an error names the gate for regressions, and what could stand there.

    Raises
    ------
    OptionError
        If there is no such gate, or it is `REGRESSION` and a metric has no direction.
    """
    if fail_on not in FAIL_ON:
        raise OptionError.no_such_name(f"--fail-on {fail_on!r}", "is no gate", fail_on, FAIL_ON)
    without = [name for name, better in judged.items() if better == _NEITHER]
    if fail_on == REGRESSION and without:
        verb = "is" if len(without) == 1 else "are"
        problem = f"can never fail: {', '.join(without)} {verb} neither better lower nor higher"
        raise OptionError(given, problem, fix=fix)


def gate(difference: RunDifference, fail_on: str) -> Gate:
    """Judge the metrics that a difference's verdict rests on.

    Parameters
    ----------
    fail_on
        `REGRESSION`: something got worse; passed where the worse end of each interval lies below what counts.
        `ANY_CHANGE`: something changed either way, as after a change that should change nothing; passed where
        nothing changed.

    Raises
    ------
    OptionError
        If it is neither, or `REGRESSION` for a metric that is neither better lower nor higher.
    """
    rows = difference.judged_rows
    check_can_fail(fail_on, {row["metric"]: row["better"] for row in rows})
    failed = tuple(row for row in rows if row["verdict"] in _FAILING[fail_on])
    undecided = tuple(row for row in rows if not _passes(row, fail_on) and row not in failed)
    code = FAILED if failed else UNDECIDED if undecided else PASSED
    return Gate(fail_on, code, failed, undecided)


# What counts as a change, unless something else is asked for.


DEFAULT_MIN_EFFECT_PCT, DEFAULT_CONFIDENCE = 2.0, 0.95
DEFAULT_MIN_EFFECT = DEFAULT_MIN_EFFECT_PCT / 100
_LEAST_CONFIDENCE = 0.5


def check_confidence(confidence: object, given: str, fix: str) -> float:
    """Return a confidence above 0.5 and below 1.

    Parameters
    ----------
    given, fix
        How an error names it, and a value that could be used.

    Raises
    ------
    OptionError
        If it is not.
    """
    value = _number(confidence)
    if not _LEAST_CONFIDENCE < value < 1:
        raise OptionError(given, f"is no number between {_LEAST_CONFIDENCE} and 1", fix=fix)
    return value


def effect_ratio(min_effect_pct: object, min_effect: object = None) -> float:
    """Return a percentage from 0 as a ratio: 2 and "2%" are both 0.02.

    Parameters
    ----------
    min_effect
        What an earlier parameter was given, which took ratios: refused, since it may mean either.

    Raises
    ------
    OptionError
        If it is no percentage.
    """
    fix = "min_effect_pct=2"
    if min_effect is not None:
        raise OptionError(f"min_effect={min_effect!r}", "may be a ratio or per cent", fix=fix)
    text = min_effect_pct.strip().removesuffix("%") if isinstance(min_effect_pct, str) else None
    try:
        value = _number(min_effect_pct) if text is None else float(text)
    except ValueError:
        value = math.nan
    if not 0 <= value < math.inf:
        raise OptionError(f"min_effect_pct={min_effect_pct!r}", "is no percentage from 0", fix=fix)
    return value / 100


def _number(value: object) -> float:
    """Return a number of Python or numpy; NaN for a flag and for anything else."""
    is_number = isinstance(value, Real) and not isinstance(value, bool)
    return float(value) if is_number else math.nan  # type: ignore[arg-type]  # a number

"""The gate of a comparison: what makes a job fail, and when it cannot be decided."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from nsyspipe.errors import OptionError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from nsyspipe.compare.decision import Better
    from nsyspipe.compare.difference import RunDifference


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

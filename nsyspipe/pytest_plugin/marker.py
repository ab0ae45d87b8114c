"""The arguments of the marker ``step_time``, and their checks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from nsyspipe.comparison import gate
from nsyspipe.comparison.gate import GateSettings
from nsyspipe.errors import OptionError, short_repr
from nsyspipe.model.options import check_flags, check_text

_MARKER = "@pytest.mark.step_time"
_EXAMPLE = 'baseline="main"'
_ARGUMENTS = ("baseline", "max_regression", "confidence", "force")


@dataclass(frozen=True)
class StepTimeRule:
    """Compare the captures of a test with a baseline in a run store.

    The test calls the fixture ``step_time`` with its captures. Pass all arguments by name. The run
    store is the option ``--nsyspipe-store=STORE`` or the setting ``nsyspipe_store`` of pytest.

    Parameters
    ----------
    baseline
        Label of the baseline in the run store. All runs with this label are captures of the
        baseline.
    max_regression
        Smallest regression of the step time that fails, in percent of the baseline: ``"2%"`` and 2
        are the same. By default, this is ``min-effect`` of the settings file of `nsyspipe diff`,
        or 2%.
    confidence
        Confidence of the interval, between 0.5 and 1. By default, this is ``confidence`` of the
        settings file, or 0.95.
    force
        Whether the test compares runs even if world size, GPU model, ranks, model-parallel size or
        the work of a step differ.
    """

    baseline: str
    # As a ratio. None if it is not set.
    max_regression: float | None = None
    confidence: float | None = None
    force: bool = False

    @classmethod
    def of_marker(cls, positional: Sequence[object], named: Mapping[str, Any]) -> Self:
        """Return the rule of a marker with these positional and named arguments.

        Raises
        ------
        OptionError
            If an argument is unknown or missing, or has a value that cannot be used.
        """
        if positional:
            problem = "takes its arguments by name"
            raise OptionError(_MARKER, problem, fix=f"{_MARKER}({_EXAMPLE})")
        for name in named:
            if name not in _ARGUMENTS:
                problem = f"has no argument {name!r}"
                raise OptionError.no_such_name(_MARKER, problem, name, _ARGUMENTS)
        baseline = named.get("baseline")
        if baseline is None:
            raise OptionError(_MARKER, "has no baseline", fix=f"{_MARKER}({_EXAMPLE})")
        check_text("baseline", baseline, _EXAMPLE)
        max_regression = named.get("max_regression")
        if max_regression is not None:
            max_regression = _check_max_regression(max_regression)
        confidence = named.get("confidence")
        if confidence is not None:
            confidence = gate.check_confidence(confidence, "confidence =", "confidence=0.95")
        force = named.get("force", False)
        check_flags(force=force)
        return cls(
            baseline=baseline,
            max_regression=max_regression,
            confidence=confidence,
            force=force,
        )

    def thresholds(self, directory: Path) -> dict[str, Any]:
        """Return the thresholds, as parameters of `nsyspipe.diff`.

        What the marker does not set comes from the nearest settings file, from `directory` up.
        """
        settings_of_rule = GateSettings(min_effect=self.max_regression, confidence=self.confidence)
        settings_of_file = gate.read_settings(directory)
        names = ("min_effect", "confidence")
        settings = gate.settled(settings_of_rule, settings_of_file, names)
        return settings.thresholds


def _check_max_regression(value: object) -> float:
    """Return the smallest regression that fails, as a ratio: 0.02 for ``"2%"`` and for 2.

    Raise an OptionError for any other value than a percentage.
    """
    name = "max_regression ="
    fix = 'max_regression="2%"'
    # A bool is an int in Python, but no percentage.
    is_bool = isinstance(value, bool)
    if is_bool or not isinstance(value, int | float | str):
        raise OptionError.of_kind("max_regression", value, "a percentage", fix)
    try:
        text = str(value)
    except ValueError as error:
        # Python refuses to write integers of thousands of digits.
        problem = "is not a percentage below 100%"
        raise OptionError(f"{name} {short_repr(value)}", problem, fix=fix) from error
    return gate.parse_min_effect(text, name, fix)

"""The comparison of a test with its baseline: passes, fails with the verdict, or skips."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn, Self, cast

import pytest

from nsyspipe.errors import NsyspipeError, OptionError, in_python, shortage
from nsyspipe.model.names import printable
from nsyspipe.pytest_plugin.marker import StepTimeRule
from nsyspipe.store.choice import runs_by_label
from nsyspipe.store.layout import is_one_run, run_reference

if TYPE_CHECKING:
    from nsyspipe.report.public.difference import RunDifference
    from nsyspipe.run.run import Run

    Capture = Run | str | os.PathLike[str] | Iterable[str | os.PathLike[str]]

_NO_STORE = (
    "No baseline: no run store is set. Pass --nsyspipe-store STORE, or set nsyspipe_store in the "
    "settings of pytest."
)
_AGAINST = "against="


@dataclass
class StepTime:
    """Compares the captures of a test with the baseline that its marker names.

    The fixture ``step_time`` is an object of this class, which a test calls.
    """

    rule: StepTimeRule
    # Absolute. None if none is set.
    store: Path | None
    # The parameters of `nsyspipe.diff`.
    thresholds: dict[str, Any]
    # One for each call, in words.
    verdicts: list[str] = field(default_factory=list)

    @classmethod
    def of_marker(cls, marker: pytest.Mark, store: Path | None, directory: Path) -> Self:
        """Return the comparison of a test.

        A settings file is looked for in `directory` and the directories above it.
        """
        __tracebackhide__ = True
        with _failing():
            rule = StepTimeRule.of_marker(marker.args, marker.kwargs)
            return cls(rule, store, rule.thresholds(directory))

    def check_baseline(self) -> None:
        """Skip the test if there is no saved run. Fail the test if no run has the label."""
        if self.store is None:
            _skip_where_the_test_is(_NO_STORE)
        relative_store = os.path.relpath(self.store)
        with _failing():
            _check_characters(relative_store)
        shown_store = printable(relative_store)
        # STORE:ID is no path, but the name of one run. `_check_label` says what is wrong with it.
        if not os.path.lexists(self.store) and not is_one_run(self.store):
            _skip_where_the_test_is(f"No baseline: the run store {shown_store} does not exist.")
        if _is_empty(self.store):
            _skip_where_the_test_is(f"No baseline: {shown_store} has no saved run.")
        with _failing():
            self._check_label(relative_store)

    def _check_label(self, store: str) -> None:
        """Raise an OptionError in the words of the marker if no run of a store has the label."""
        reference = run_reference(Path(store))
        if reference is not None:
            problem = "is one run, and not a run store"
            fix = f"--nsyspipe-store {reference.store}"
            raise OptionError(f"--nsyspipe-store {store}", problem, fix=fix)
        # `runs_by_label` looks for a label of a candidate that is a text. What the test compares is
        # not known yet, so an object that is no text stands for it.
        candidates = [object()]
        try:
            # This raises the error if no run has the label.
            _ = runs_by_label(store, self.rule.baseline, candidates)
        except OptionError as error:
            subject = f"baseline={self.rule.baseline!r}"
            fix = _fix_of_marker(error)
            raise OptionError(subject, error.problem, found=error.found, fix=fix) from error

    def __call__(self, *captures: Capture) -> RunDifference:
        """Compare captures of one configuration with the baseline of the test.

        This is a fixture of pytest, for tests with the marker ``step_time``. The test fails if the
        gate of ``nsyspipe diff --fail-on regression`` fails for the step time, or if a capture
        cannot be used. The test is skipped if the gate is undecided.

        Parameters
        ----------
        *captures
            One argument for each capture: what `nsyspipe.load` accepts, or a run. Several captures
            let the interval include the variation between captures.

        Returns
        -------
        RunDifference
            The difference, if the gate passed.
        """
        __tracebackhide__ = True
        with _failing():
            difference = self._compare(captures)
            gate: Any = difference.gate
            gate_text = printable(gate.headline)
            verdict = printable(difference.headline)
        self.verdicts.append(f"{gate_text}.\n{verdict}")
        if gate.outcome == "failed":
            pytest.fail("\n".join([gate_text, verdict, *_likely_causes(difference)]), pytrace=False)
        if gate.outcome == "undecided":
            pytest.skip(f"{gate_text}.")
        return difference

    def _compare(self, captures: Sequence[Capture]) -> RunDifference:
        """Return the difference of the captures to all runs with the label of the baseline."""
        if not captures:
            raise OptionError("step_time()", "has no capture", fix="step_time('reports/')")
        # A test without a baseline is skipped before. So it does not import Arrow and numpy, which
        # these modules need.
        from nsyspipe.api import diff, load
        from nsyspipe.run.run import Run

        runs: Any = [run if isinstance(run, Run) else load(run) for run in captures]
        # A test without a run store is skipped before, too.
        store = os.path.relpath(cast("str", self.store))
        options = self.thresholds | {"force": self.rule.force}
        label = self.rule.baseline
        return diff(store, runs, against=label, fail_on="regression", **options)


def _fix_of_marker(error: OptionError) -> str:
    """Return what fixes a wrong label, as an argument of the marker."""
    fix = in_python(error.fix or "")
    if fix.startswith(_AGAINST):
        return f"baseline={fix.removeprefix(_AGAINST)}"
    # Any other fix is a command, which a marker cannot use. The error shows the labels instead.
    return "use one of these" if error.found else fix


def _likely_causes(difference: RunDifference) -> list[str]:
    """Return a sentence about the cause of a change of the step time; none if it is not known."""
    from nsyspipe.report.difference import cause_text

    cause = difference.cause
    return [] if cause is None else [printable(in_python(cause_text(cause)))]


def _check_characters(store: str) -> None:
    """Raise an OptionError for a run store whose name no file can have."""
    if "\0" in store:
        problem = "contains a NUL character, which no file name can have"
        raise OptionError(f"nsyspipe_store {store!r}", problem, fix="nsyspipe_store = STORE")


def _is_empty(directory: Path) -> bool:
    """Tell whether a directory has no files, except hidden files, which keep it in git."""
    try:
        return all(path.name.startswith(".") for path in directory.iterdir())
    except OSError:
        # It is no directory, or it cannot be read. The reader of the store raises the error.
        return False


def _skip_where_the_test_is(reason: str) -> NoReturn:
    """Skip a test. The summary names the place of the test, and not the place of this function."""
    skipped: Any = pytest.skip.Exception(reason)
    # The mark `skip` of pytest sets this too. If a version of pytest does not know it, the summary
    # names the place of this function.
    skipped._use_item_location = True  # noqa: SLF001
    raise skipped


@contextlib.contextmanager
def _failing() -> Iterator[None]:
    """Fail the test with the message of an error that a user can cause, without a traceback."""
    __tracebackhide__ = True
    try:
        yield
    except Exception as error:
        user_error = error if isinstance(error, NsyspipeError) else shortage(error)
        if user_error is None:
            raise
        # Names of files and ranges may have control characters.
        lines = map(printable, f"error: {user_error}".split("\n"))
        raise pytest.fail.Exception("\n".join(lines), pytrace=False) from None

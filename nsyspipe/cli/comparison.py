"""``nsyspipe diff`` and ``nsyspipe compare``: differences between runs, and a gate for CI."""

import shlex
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from nsyspipe.cli.inputs import ONE_RUN, NamedRuns, labelled_runs, names_in, opened_runs, parse_runs
from nsyspipe.cli.options import (
    INPUT,
    OUTPUT,
    RunningOptions,
    SeveralRunsOptions,
    option,
    with_options,
)
from nsyspipe.cli.outputs import ComparisonOutputs, ScoreboardOutputs
from nsyspipe.comparison import gate as gate_rules
from nsyspipe.errors import OptionError
from nsyspipe.model.names import few, printable
from nsyspipe.store.layout import is_saved

if TYPE_CHECKING:
    from nsyspipe.run.run import Run

_AGAINST = (
    "Use all runs with this label in a run store as captures of the baseline. The arguments are "
    "then STORE [CANDIDATE]. CANDIDATE is a run, or another label of the store. CANDIDATE "
    "may be left out if the store has exactly one other label."
)
_EACH_RUN = "One argument per run, the baseline first (a run store means all its runs)"
_SORT = (
    "Sort by this metric, the best run first: step_time, throughput, speedup, exposed_comm_share, "
    "... [default: as given]"
)
# The fix if the arguments are not one per side.
_HOW_TO_NAME_SIDES = (
    'quote globs ("before_*.sqlite" "after_*.sqlite"), and use the same LABEL= for several '
    "captures of one side"
)


@dataclass(frozen=True)
class RuleOptions:
    """What counts as a difference, and where the nearest file of settings says it."""

    fail_on: str | None = None
    min_effect: str | None = option(
        "Smallest change that matters, in percent (2% and 2 are the same). [default: 2%]",
        "PCT|PCT%",
    )
    confidence: str | None = option(
        "Confidence of the intervals, between 0.5 and 1. [default: 0.95]", "0.5..1"
    )
    metric: list[str] | None = None

    # The further options are fields of `GateSettings`.
    def settled(self, **more: Any) -> gate_rules.GateSettings:  # noqa: ANN401
        """Return the checked options, and `more` checked ones, completed by the nearest file.

        The file has the setting of each option that the user left out. A setting that is in neither
        has its default.
        """
        effect = None
        if self.min_effect is not None:
            effect = gate_rules.parse_min_effect(self.min_effect)
        confidence = None
        if self.confidence is not None:
            confidence = gate_rules.check_confidence(self.confidence)
        options = gate_rules.GateSettings(min_effect=effect, confidence=confidence, **more)
        settings_of_file = gate_rules.read_settings(Path.cwd())
        names_of_settings = ("min_effect", "confidence", *more)
        return gate_rules.settled(options, settings_of_file, names_of_settings)


@dataclass(frozen=True)
class GateOptions(RuleOptions):
    """What counts as a difference, and which one fails."""

    fail_on: str | None = option(
        (
            "Exit with 3 if a judged metric got worse (or changed at all), and with 4 if the data "
            "cannot show it."
        ),
        "regression|any-change",
    )
    metric: list[str] | None = option(
        "Metrics that the verdict and the gate use, separated by commas or repeated. The "
        "verdict is a regression if any "
        "metric regressed. [default: step_time]",
        "NAME,...",
    )

    def settings(self) -> gate_rules.GateSettings:
        """Return the options, completed by the nearest file of settings.

        Raise an OptionError for a gate that can never fail.
        """
        metrics = None
        if self.metric:
            metrics = gate_rules.check_metrics(",".join(self.metric))
        fail_on = None
        if self.fail_on is not None:
            fail_on = gate_rules.check_gate(self.fail_on)
        settings = self.settled(fail_on=fail_on, metrics=metrics)
        if settings.fail_on and settings.metrics:
            from nsyspipe.model.figures import METRICS

            better_of_metric = {name: METRICS[name].better for name in settings.metrics}
            if fail_on:
                gate_rules.check_can_fail(settings.fail_on, better_of_metric)
            else:
                # The gate is that of the file, so the error names the setting of the file.
                setting = f"{settings.path}: fail-on"
                fix = f'fail-on = "{gate_rules.ANY_CHANGE}"'
                gate_rules.check_can_fail(
                    settings.fail_on, better_of_metric, option=setting, fix=fix
                )
        return settings


def _thresholds(settings: gate_rules.GateSettings, *, is_quiet: bool) -> dict[str, Any]:
    """Return the smallest change that matters, and the confidence of intervals.

    If they are from a file, the text of the answer names the file. A quiet command prints no text,
    so stderr names the file.
    """
    if settings.file and is_quiet:
        text = printable(f"Thresholds from {settings.file}.")
        typer.echo(text, err=True)
    return settings.thresholds


def _runs(metavar: str, which: str, several: str) -> Any:  # noqa: ANN401 - what Typer takes
    """Return the declaration of the RUN arguments of a command.

    `several` is the word for what several captures with one label are: a run, or a side.
    """
    more = f"For several captures of one {several}, repeat LABEL=REPORTS."
    help_text = f"{which}. Quote globs. {ONE_RUN} {more}"
    return typer.Argument(metavar=metavar, help=help_text)


@with_options
def diff(
    runs: Annotated[list[str], _runs("BASELINE CANDIDATE", "One argument per side", "side")],
    *,
    against: Annotated[
        str | None, typer.Option(metavar="LABEL", help=_AGAINST, rich_help_panel=INPUT)
    ] = None,
    rule: GateOptions,
    outputs: ComparisonOutputs,
    reading: SeveralRunsOptions,
    running: RunningOptions,
) -> None:
    """Compare two runs, and decide whether the difference is real or noise.

    You can set fail-on, min-effect, confidence and metric in the nearest nsyspipe.toml ([diff]) or
    pyproject.toml ([tool.nsyspipe.diff]) of this directory or a parent. Options override the file.
    For security, nsyspipe refuses a file that another user owns or that everybody can write to.

    \b
    Examples:
      nsyspipe diff "before_*.sqlite" "after_*.sqlite"
      nsyspipe diff base=main/ bucket25=branch/ --json diff.json
      nsyspipe diff runs:main "new_*.sqlite" --fail-on regression
      nsyspipe diff a=day1/ a=day2/ b=day3/ b=day4/
      nsyspipe diff --against main runs/ new=day1/ new=day2/
      nsyspipe diff main/ new/ --fail-on regression --metric step_time,exposed_comm
    """
    settings = rule.settings()
    outputs.check()
    runs_of_sides = parse_runs(runs) if against is None else labelled_runs(against, *runs)
    named = _two_sides(runs_of_sides)
    is_quiet = running.quiet or bool(outputs.printed)
    thresholds = _thresholds(settings, is_quiet=is_quiet)
    with opened_runs(named, reading, running) as opened:
        from nsyspipe.api import diff as computed_difference
        from nsyspipe.report.difference import (
            difference_blocks,
            difference_formats,
            gate_line,
            identity_of,
        )
        from nsyspipe.report.difference_screen import screen_blocks

        options = thresholds | {
            "metrics": settings.metrics,
            "fail_on": settings.fail_on,
            "force": outputs.force,
        }
        baseline, candidate = opened
        difference = computed_difference(baseline, candidate, **options)
        difference = replace(difference, settings=settings)
        formats = difference_formats(difference)
        if outputs.verbose:
            blocks = difference_blocks(difference, has_gate=False)
        else:
            blocks = screen_blocks(difference)
        inputs = _inputs_of(opened)
        outputs.answer(formats, blocks, inputs, identity_of(difference), quiet=running.quiet)
    gate = difference.gate
    if gate is not None:
        is_passed = bool(gate)
        # A quiet command only says that a gate has failed.
        if not is_passed or not running.quiet:
            typer.echo(printable(gate_line(gate)), err=True)
        if not is_passed:
            raise typer.Exit(gate.exit_code)


def _inputs_of(opened: Iterable[Iterable["Run"]]) -> list[Path]:
    """Return the files that runs were read from."""
    inputs: list[Path] = []
    for runs in opened:
        for run in runs:
            inputs += run.inputs
    return inputs


def _names_in_only_place(named: Sequence[NamedRuns]) -> tuple[list[str], list[str]]:
    """Return the runs and the labels that are in the only place that a user names.

    Both are empty if the user names several places.
    """
    places = [place for run in named for place in run.places]
    if len(places) == 1:
        return names_in(places[0])
    return [], []


def _two_sides(named: list[NamedRuns]) -> list[NamedRuns]:
    """Return the two sides of a difference. Raise an OptionError for another number of runs."""
    if len(named) == 2:  # noqa: PLR2004 - the sides
        return named
    runs, labels = _names_in_only_place(named)
    if len(runs) > 1:
        raise _several_runs_error(named[0].places[0], runs, labels)
    if len(named) == 1:
        problem = "takes exactly two runs, but the candidate is missing"
        has_several_captures = len(named[0].places) > 1
        how = "each with its own label" if has_several_captures else _HOW_TO_NAME_SIDES
        fix = f"nsyspipe diff BASELINE CANDIDATE, {how}"
    else:
        problem = f"takes exactly two runs, but got {len(named)}"
        fix = _HOW_TO_NAME_SIDES
    names = [run.label or run.places[0] for run in named]
    raise OptionError("diff", problem, found=few(names, 4), fix=fix)


def _several_runs_error(place: str, runs: Sequence[str], labels: Sequence[str]) -> OptionError:
    """Return the error of a difference for which the user named one place with several runs."""
    problem = f"takes exactly two runs, but {place} has {len(runs)}"
    # A run that cannot be read has no label.
    has_two_labels = len(labels) == 2 and all(labels)  # noqa: PLR2004 - the sides
    if has_two_labels:
        fix = f"nsyspipe diff --against {shlex.quote(labels[0])} {shlex.quote(place)}"
        return OptionError("diff", problem, found=few(labels, 4), fix=fix)
    fix = f"nsyspipe diff {runs[0]} {runs[1]}"
    return OptionError("diff", problem, found=few(runs, 4), fix=fix)


def _check_is_not_a_place_of_several_runs(named: Sequence[NamedRuns]) -> None:
    """Raise an OptionError if the only argument is a path with the reports of several runs.

    A store of several runs is fine.
    """
    places = named[0].places
    place = places[0]
    is_only_place = len(named) == 1 and len(places) == 1
    if not is_only_place or is_saved(Path(place)):
        return
    runs, _ = names_in(place)
    if len(runs) > 1:
        problem = f"takes each run as an argument, but {place} has {len(runs)} runs"
        fix = f"nsyspipe compare {' '.join(runs)}"
        raise OptionError("compare", problem, found=few(runs, 4), fix=fix)


@with_options
def compare(
    runs: Annotated[list[str], _runs("RUN...", _EACH_RUN, "run")],
    *,
    sort: Annotated[
        str | None, typer.Option(metavar="METRIC", help=_SORT, rich_help_panel=OUTPUT)
    ] = None,
    rule: RuleOptions,
    outputs: ScoreboardOutputs,
    reading: SeveralRunsOptions,
    running: RunningOptions,
) -> None:
    """Compare several runs, and rank the runs that are comparable.

    nsyspipe ranks runs only within a group of runs with the same world size, GPU model and work per
    step. The first run of a group is the baseline of the group. The settings file of diff also sets
    min-effect and confidence here.

    \b
    Examples:
      nsyspipe compare ddp/ bucket25/ fsdp/
      nsyspipe compare ddp="runs/ddp_*.sqlite" view="runs/view_*.sqlite" --sort step_time
      nsyspipe compare runs/ --html study.html --csv study.csv
      nsyspipe compare ddp=day1/ ddp=day2/ fsdp=day3/ fsdp=day4/ --markdown comment.md
    """
    outputs.check()
    settings = rule.settled()
    is_quiet = running.quiet or bool(outputs.printed)
    thresholds = _thresholds(settings, is_quiet=is_quiet)
    if sort is not None:
        from nsyspipe.comparison.scoreboard import check_sort

        sort = check_sort(sort, "--sort")
    named = parse_runs(runs, is_any_number=True)
    _check_is_not_a_place_of_several_runs(named)
    with opened_runs(named, reading, running) as opened:
        from nsyspipe.api import compare as computed_scoreboard
        from nsyspipe.report.scoreboard import identity_of, scoreboard_blocks, scoreboard_formats

        board = computed_scoreboard(opened, sort=sort, **thresholds, force=outputs.force)
        board = replace(board, settings=settings)
        formats = scoreboard_formats(board)
        blocks = scoreboard_blocks(board, is_verbose=outputs.verbose)
        inputs = _inputs_of(opened)
        outputs.answer(formats, blocks, inputs, identity_of(board), quiet=running.quiet)

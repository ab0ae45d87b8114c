"""``nsyspipe diff``: before and after, and a gate for CI."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from nsyspipe.cli.inputs import opened_runs, parse_runs
from nsyspipe.cli.options import (
    RuleOptions,
    RunningOptions,
    SeveralRunsOptions,
    name_file,
    settled_here,
    shown_path,
    thresholds,
    with_options,
)
from nsyspipe.cli.outputs import DifferenceOutputs
from nsyspipe.cli.terminal import progress, text_of, write_stdout
from nsyspipe.comparison.gate import (
    ANY_CHANGE,
    GateSettings,
    check_can_fail,
    check_gate,
    gate,
    parse_metrics,
)
from nsyspipe.errors import OptionError
from nsyspipe.model.text import printable

if TYPE_CHECKING:
    from nsyspipe.cli.inputs import NamedRuns
    from nsyspipe.comparison.difference import RunDifference


_TWO = 2
_SHOWN = 4


@with_options
def diff(
    runs: Annotated[
        list[str],
        typer.Argument(
            metavar="BASELINE CANDIDATE",
            help="One argument each: a quoted glob, a directory of reports, one report, or a run saved with --out "
            "(STORE, or STORE/runs/run_id=ID); LABEL= in front names it. Several captures of one side: repeat "
            "LABEL=REPORTS.",
        ),
    ],
    *,
    fail_on: Annotated[
        str | None,
        typer.Option(
            "--fail-on",
            metavar="regression|any-change",
            help="Exit with 3 if a judged metric is worse (or changed at all), with 4 if that cannot be decided.",
        ),
    ] = None,
    rule: RuleOptions,
    metric: Annotated[
        list[str] | None,
        typer.Option(
            "--metric",
            metavar="NAMES",
            help="What the verdict and the gate rest on, comma separated or several times: a regression of any, else "
            "what cannot be told of any, else an improvement. [default: step_time]",
        ),
    ] = None,
    outputs: DifferenceOutputs,
    reading: SeveralRunsOptions,
    running: RunningOptions,
) -> None:
    """Did it help, and is it noise? Two runs, metric by metric, and where the difference comes from.

    Thresholds may stand in the nearest nsyspipe.toml ([diff]) or pyproject.toml ([tool.nsyspipe.diff]) of this
    directory or one above: fail-on, min-effect, confidence, metric. Options win over the file. One of another owner,
    or that anybody may write or replace, is refused unless options say all that it does.

    \b
    Examples:
      nsyspipe diff "before_*.sqlite" "after_*.sqlite"
      nsyspipe diff base=main/ bucket25=branch/ --json diff.json
      nsyspipe diff runs/runs/run_id=main "new_*.sqlite" --fail-on regression
      nsyspipe diff a=day1/ a=day2/ b=day3/ b=day4/
      nsyspipe diff main/ new/ --fail-on regression --metric step_time,exposed_comm
    """
    settings = _settings(fail_on, rule, metric)
    outputs.check()
    named = _two_sides(runs)
    if running.quiet or outputs.takes_stdout:
        name_file(settings)
    with (
        progress(shown=running.is_shown) as stage,
        opened_runs(
            named, reading.chosen(), nccl_logs=reading.nccl_log or [], topologies=reading.topology or [],
            jobs=running.jobs, stage=stage,
        ) as open_runs,
    ):  # fmt: skip
        from nsyspipe.api import diff as compared
        from nsyspipe.comparison.difference import Side

        # What tells the sides apart is no fact of a run: documents have the label of reports and saved runs alike.
        baseline, candidate = (Side(of[0].header.label, of, name) for name, of in open_runs())
        difference = compared(
            baseline,
            candidate,
            **thresholds(settings),
            metrics=settings.metrics,
            force=outputs.force,
        )
        _answer(difference, outputs, settings, quiet=running.quiet)


def _answer(difference: RunDifference, outputs: DifferenceOutputs, settings: GateSettings, *, quiet: bool) -> None:
    """Write and print everything, then end as the gate says."""
    judged = gate(difference, settings.fail_on) if settings.fail_on else None
    path = shown_path(settings)
    from nsyspipe.report.difference import difference_blocks, difference_formats, gate_text, identity_of

    sides = (difference.baseline, difference.candidate)
    inputs = [path for side in sides for run in side.runs for path in run.inputs]
    formats = difference_formats(difference, judged, settings_file=path)
    outputs.write(formats, inputs, identity_of(difference))
    if not (quiet or outputs.takes_stdout):
        write_stdout(text_of(difference_blocks(difference, judged, settings_file=path)))
    if judged is None or not judged.exit_code:
        return
    typer.echo(printable(f"error: {gate_text(judged)}"), err=True)
    raise typer.Exit(judged.exit_code)


def _settings(fail_on: str | None, rule: RuleOptions, metric: list[str] | None) -> GateSettings:
    """Return what options say, else what the nearest file says."""
    metrics = parse_metrics(",".join(metric)) if metric else None
    options = rule.settings(fail_on=None if fail_on is None else check_gate(fail_on), metrics=metrics)
    settings = settled_here(options, "fail_on", "min_effect", "confidence", "metrics")
    _check_gate(settings, is_of_file=fail_on is None)
    return settings


def _check_gate(settings: GateSettings, *, is_of_file: bool) -> None:
    """Refuse a gate that could never fail, before anything is read."""
    if not (settings.fail_on and settings.metrics):
        return
    from nsyspipe.comparison.metrics import METRICS

    judged = {name: METRICS[name].better for name in settings.metrics}
    names = (f"{settings.path}: fail-on", f'fail-on = "{ANY_CHANGE}"') if is_of_file else ()
    check_can_fail(settings.fail_on, judged, *names)


def _two_sides(arguments: list[str]) -> list[NamedRuns]:
    named = parse_runs(arguments)
    if len(named) == _TWO:
        return named
    shown = [one.label or one.places[0] for one in named[:_SHOWN]]
    more = f" and {len(named) - _SHOWN} more" if len(named) > _SHOWN else ""
    raise OptionError(
        "diff",
        f"compares two runs, and {len(named)} {'is' if len(named) == 1 else 'are'} named",
        found=", ".join(shown) + more,
        fix='quote globs ("before_*.sqlite" "after_*.sqlite"); several captures of one side share a LABEL=',
    )

"""``nsyspipe compare``: N runs side by side, the first is the reference."""

from __future__ import annotations

from typing import Annotated

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
from nsyspipe.cli.outputs import ScoreboardOutputs
from nsyspipe.cli.terminal import progress, text_of, write_stdout


@with_options
def compare(
    runs: Annotated[
        list[str],
        typer.Argument(
            metavar="RUN RUN...",
            help="One argument each, the reference first: a quoted glob, a directory of reports, one report, or a run "
            "saved with --out (STORE, or STORE/runs/run_id=ID); LABEL= in front names it. Several captures of one "
            "run: repeat LABEL=REPORTS.",
        ),
    ],
    *,
    sort: Annotated[
        str | None,
        typer.Option(
            "--sort",
            metavar="METRIC",
            help="The best by this metric first: step_time, throughput, speedup, exposed_comm_share, ... "
            "[default: as given]",
        ),
    ] = None,
    rule: RuleOptions,
    outputs: ScoreboardOutputs,
    reading: SeveralRunsOptions,
    running: RunningOptions,
) -> None:
    """Which of these runs is best? Speed-up over the first with its interval, and what the steps' time goes to.

    Runs that differ from the first in world size, GPU model or ranks are parted from it, and measured against the
    first of their own kind: a step of more ranks does more work. Thresholds (min-effect, confidence) may stand in the
    file that diff reads them from.

    \b
    Examples:
      nsyspipe compare ddp/ bucket25/ fsdp/
      nsyspipe compare ddp="runs/ddp_*.sqlite" view="runs/view_*.sqlite" --sort step_time
      nsyspipe compare study/runs/runs/run_id=* --html study.html --csv study.csv
      nsyspipe compare ddp=day1/ ddp=day2/ fsdp=day3/ fsdp=day4/ --markdown comment.md
    """  # fmt: skip
    outputs.check()
    rules = settled_here(rule.settings(), "min_effect", "confidence")
    if running.quiet or outputs.takes_stdout:
        name_file(rules)
    if sort is not None:
        from nsyspipe.comparison.scoreboard import check_sort

        sort = check_sort(sort, "--sort")
    with (
        progress(shown=running.is_shown) as stage,
        opened_runs(
            parse_runs(runs), reading.chosen(), nccl_logs=reading.nccl_log or [], topologies=reading.topology or [],
            jobs=running.jobs, stage=stage,
        ) as open_runs,
    ):  # fmt: skip
        from nsyspipe.api import compare as compared
        from nsyspipe.comparison.difference import Side

        board = compared(
            [Side(*one) for one in open_runs()],
            sort=sort,
            **thresholds(rules),
            force=outputs.force,
            settings_file=shown_path(rules),
        )
        from nsyspipe.report.scoreboard import identity_of, scoreboard_blocks, scoreboard_formats

        inputs = [path for side in board.sides for run in side.runs for path in run.inputs]
        outputs.write(scoreboard_formats(board), inputs, identity_of(board))
        if not (running.quiet or outputs.takes_stdout):
            write_stdout(text_of(scoreboard_blocks(board)))

"""``nsyspipe compare``: N runs side by side, the first is the reference."""

from __future__ import annotations

from typing import Annotated

import typer

from nsyspipe.cli import options as output, options as reading
from nsyspipe.cli.inputs import opened_runs, parse_runs
from nsyspipe.cli.options import Confidence, MinEffect, name_file, settled_here, shown_path
from nsyspipe.cli.outputs import CompareOutputs
from nsyspipe.cli.terminal import progress, write_stdout
from nsyspipe.comparison.gate import (
    DEFAULT_CONFIDENCE,
    DEFAULT_MIN_EFFECT_PCT,
    GateSettings,
    parse_confidence,
    parse_min_effect,
)
from nsyspipe.model.options import AUTO


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
    sort: Annotated[
        str | None,
        typer.Option(
            "--sort",
            metavar="METRIC",
            help="The best by this metric first: step_time, throughput, speedup, exposed_comm_share, ... "
            "[default: as given]",
        ),
    ] = None,
    min_effect: MinEffect = None,
    confidence: Confidence = None,
    json_file: output.Json = None,
    markdown: output.Markdown = None,
    csv_file: Annotated[
        str | None,
        typer.Option(
            "--csv",
            metavar="FILE|-",
            help="Write the table for spreadsheets; - prints it and nothing else.",
        ),
    ] = None,
    html: output.Html = None,
    force: output.ForceComparison = False,
    step: reading.Step = None,
    backward: reading.Backward = None,
    forward: reading.Forward = None,
    optimizer: reading.Optimizer = None,
    data: reading.Data = None,
    comm_kernel: reading.CommKernel = None,
    skip_first: reading.SkipFirst = AUTO,
    rank_map: reading.RankMap = None,
    nccl_log: reading.NcclLogs = None,
    topology: reading.TopologyFiles = None,
    jobs: reading.Jobs = None,
    quiet: output.Quiet = False,
    no_progress: output.NoProgress = False,
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
    outputs = CompareOutputs(json_file, markdown, csv_file, html, force)
    outputs.check()
    rules = settled_here(
        GateSettings(
            min_effect=None if min_effect is None else parse_min_effect(min_effect),
            confidence=None if confidence is None else parse_confidence(confidence),
        ),
        "min_effect",
        "confidence",
    )
    if quiet or outputs.takes_stdout:
        name_file(rules)
    if sort is not None:
        from nsyspipe.comparison.scoreboard import check_sort

        sort = check_sort(sort, "--sort")
    options = reading.chosen(locals())
    with (
        progress(shown=not (quiet or no_progress)) as stage,
        opened_runs(
            parse_runs(runs), options, nccl_logs=nccl_log or [], topologies=topology or [], jobs=jobs, stage=stage
        ) as open_runs,
    ):  # fmt: skip
        from nsyspipe.api import compare as compared
        from nsyspipe.comparison.difference import Side

        board = compared(
            [Side(*one) for one in open_runs()],
            sort=sort,
            min_effect_pct=DEFAULT_MIN_EFFECT_PCT
            if rules.min_effect is None
            else round(100 * rules.min_effect, 12),
            confidence=rules.confidence or DEFAULT_CONFIDENCE,
            force=force,
            settings_file=shown_path(rules),
        )
        outputs.write(board)
        if not (quiet or outputs.takes_stdout):
            from rich.console import Console

            from nsyspipe.report.scoreboard import scoreboard_text

            write_stdout(scoreboard_text(board, Console()))

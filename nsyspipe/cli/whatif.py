"""``nsyspipe whatif``: what a change of the communication would bring."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from nsyspipe.cli import options as output, options as reading
from nsyspipe.cli.inputs import opened_runs, parse_runs
from nsyspipe.cli.terminal import progress, write_stdout
from nsyspipe.model.options import AUTO

if TYPE_CHECKING:
    from nsyspipe.replay.answer import WhatIf
    from nsyspipe.run.run import Run


_STDOUT = "-"


def whatif(
    run: Annotated[
        str,
        typer.Argument(
            metavar="RUN",
            help="One run: a quoted glob, a directory of reports, one report, or a run saved with --out DIR --events; "
            "LABEL= in front names it.",
        ),
    ],
    bandwidth: Annotated[
        str | None,
        typer.Option(
            "--bandwidth",
            metavar="RATE",
            help="Bus bandwidth that collectives reach (busbw of nccl-tests), in bytes, as 300GB/s.",
        ),
    ] = None,
    link: Annotated[
        str | None,
        typer.Option(
            "--link",
            metavar="LINK",
            help="nvlink2 to 5 (v100, a100, h100, h200, b200), pcie3x16 to pcie6x16, infiniband-edr to -xdr, roce-100 to -400, or shm: its bandwidth.",
        ),
    ] = None,
    gradient_dtype: Annotated[
        str | None,
        typer.Option(
            "--gradient-dtype", metavar="TYPE", help="bf16 or fp16: send gradients as that."
        ),
    ] = None,
    bucket_mb: Annotated[
        float | None,
        typer.Option("--bucket-mb", metavar="MIB", help="DDP's bucket_cap_mb."),
    ] = None,
    no_wait: Annotated[
        bool, typer.Option("--no-wait", help="No rank is later than the others.")
    ] = False,
    no_grad_copy: Annotated[
        bool, typer.Option("--no-grad-copy", help="gradient_as_bucket_view=True.")
    ] = False,
    perfect_overlap: Annotated[
        bool, typer.Option("--perfect-overlap", help="All communication beside compute.")
    ] = False,
    gradient_bytes: Annotated[
        float | None,
        typer.Option(
            "--gradient-bytes",
            metavar="N",
            help="Bytes of gradients per step, where the capture does not say them.",
        ),
    ] = None,
    step: reading.Step = None,
    backward: reading.Backward = None,
    forward: reading.Forward = None,
    optimizer: reading.Optimizer = None,
    data: reading.Data = None,
    comm_kernel: reading.CommKernel = None,
    skip_first: reading.SkipFirst = AUTO,
    rank_map: reading.RankMap = None,
    nccl_log: reading.NcclLog = None,
    topology: reading.TopologyFile = None,
    json_file: output.Json = None,
    force: output.Force = False,
    jobs: reading.Jobs = None,
    quiet: output.Quiet = False,
    no_progress: output.NoProgress = False,
) -> None:
    """Replay the captured steps with other communication: what a change would bring, before anybody makes it.

    Without a change named: a menu of all of them, the largest gain first.

    \b
    Examples:
      nsyspipe whatif "ddp-4gpu_*.sqlite"
      nsyspipe whatif "ddp-4gpu_*.sqlite" --bucket-mb 25 --no-grad-copy
      nsyspipe whatif reports/ --link nvlink4 --gradient-dtype bf16
      nsyspipe whatif reports/ --bandwidth 300GB/s --json - | jq .scenarios[0].gain_pct
      nsyspipe whatif runs/ --no-wait
    """
    from nsyspipe.replay.knobs import knobs_of
    from nsyspipe.report.files import check_directory

    if json_file is not None and json_file != _STDOUT:
        check_directory(Path(json_file))
    changes: dict[str, Any] = {
        "bandwidth": bandwidth,
        "link": link,
        "gradient_dtype": gradient_dtype,
        "bucket_mb": bucket_mb,
        "no_wait": no_wait,
        "no_grad_copy": no_grad_copy,
        "perfect_overlap": perfect_overlap,
        "gradient_bytes": gradient_bytes,
    }
    knobs_of(**changes)  # refused before anything is read
    reading_options = reading.chosen(locals())
    with (
        progress(shown=not (quiet or no_progress)) as stage,
        opened_runs(
            parse_runs([run]),
            reading_options,
            nccl_logs=nccl_log or [],
            topologies=[] if topology is None else [topology],
            jobs=jobs,
            stage=stage,
        ) as open_runs,
    ):
        opened = open_runs()[0][1][0]
        from nsyspipe.replay.answer import whatif as ask

        found = ask(opened, **changes)
    _write(found, opened, json_file, is_quiet=quiet, is_forced=force)


def _write(
    found: WhatIf, run: Run, json_file: str | None, *, is_quiet: bool, is_forced: bool
) -> None:
    from nsyspipe.report.whatif import whatif_document_text

    if json_file == _STDOUT:
        write_stdout(whatif_document_text(found))
        return
    if json_file is not None:
        from nsyspipe.report.files import write_text
        from nsyspipe.report.whatif import run_id_of_answer

        path = Path(json_file)
        write_text(
            path,
            whatif_document_text(found),
            run.inputs,
            may_replace=lambda: is_forced or run_id_of_answer(path) == run.header.run_id,
        )
    if not is_quiet:
        from rich.console import Console

        from nsyspipe.report.whatif import whatif_text

        write_stdout(whatif_text(found, run, Console()))

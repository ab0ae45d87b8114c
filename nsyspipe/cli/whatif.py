"""``nsyspipe whatif``: what a change of the communication would bring."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Annotated

import typer

from nsyspipe.cli.inputs import opened_runs, parse_runs
from nsyspipe.cli.options import OneRunOptions, RunningOptions, with_options
from nsyspipe.cli.outputs import Outputs
from nsyspipe.cli.terminal import progress, text_of, write_stdout


@dataclass(frozen=True)
class Changes:
    """What is to be changed."""

    bandwidth: Annotated[
        str | None,
        typer.Option(
            "--bandwidth",
            metavar="RATE",
            help="Bus bandwidth that collectives reach (busbw of nccl-tests), in bytes, as 300GB/s.",
        ),
    ] = None
    link: Annotated[
        str | None,
        typer.Option(
            "--link",
            metavar="LINK",
            help="nvlink2 to 5 (v100, a100, h100, h200, b200), pcie3x16 to pcie6x16, infiniband-edr to -xdr, roce-100 to -400, or shm: its bandwidth.",
        ),
    ] = None
    gradient_dtype: Annotated[
        str | None, typer.Option("--gradient-dtype", metavar="TYPE", help="bf16 or fp16: send gradients as that.")
    ] = None
    bucket_mb: Annotated[float | None, typer.Option("--bucket-mb", metavar="MIB", help="DDP's bucket_cap_mb.")] = None
    no_wait: Annotated[bool, typer.Option("--no-wait", help="No rank is later than the others.")] = False
    no_grad_copy: Annotated[bool, typer.Option("--no-grad-copy", help="gradient_as_bucket_view=True.")] = False
    perfect_overlap: Annotated[bool, typer.Option("--perfect-overlap", help="All communication beside compute.")] = (
        False
    )
    gradient_bytes: Annotated[
        float | None,
        typer.Option(
            "--gradient-bytes", metavar="N", help="Bytes of gradients per step, where the capture does not say them."
        ),
    ] = None


@with_options
def whatif(
    run: Annotated[
        str,
        typer.Argument(
            metavar="RUN",
            help="One run: a quoted glob, a directory of reports, one report, or a run saved with --out DIR --events; "
            "LABEL= in front names it.",
        ),
    ],
    *,
    changes: Changes,
    reading: OneRunOptions,
    outputs: Outputs,
    running: RunningOptions,
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

    outputs.check()
    knobs_of(**asdict(changes))  # refused before anything is read
    with (
        progress(shown=running.is_shown) as stage,
        opened_runs(
            parse_runs([run]), reading.chosen(), nccl_logs=reading.nccl_log or [],
            topologies=[] if reading.topology is None else [reading.topology], jobs=running.jobs, stage=stage,
        ) as open_runs,
    ):  # fmt: skip
        opened = open_runs()[0][1][0]
        from nsyspipe.replay.answer import whatif as ask

        found = ask(opened, **asdict(changes))
    from nsyspipe.report.whatif import whatif_blocks, whatif_formats

    outputs.write(whatif_formats(found, opened), opened.inputs, opened.header.run_id)
    if not (running.quiet or outputs.takes_stdout):
        write_stdout(text_of(whatif_blocks(found, opened)))

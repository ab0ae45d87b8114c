"""``nsyspipe whatif``: predict the step time after a change of the communication."""

from dataclasses import asdict, dataclass
from typing import Annotated

import typer

from nsyspipe.cli.inputs import ONE_RUN, opened_run
from nsyspipe.cli.options import RunningOptions, RunWithoutWorkOptions, flag, option, with_options
from nsyspipe.cli.outputs import VerboseOutputs

NOTHING_ANSWERED = 4  # exit code where none of what was asked has an answer


@dataclass(frozen=True)
class Changes:
    """What is to be changed."""

    bandwidth: str | None = option(
        "Bus bandwidth of collectives (busbw of nccl-tests): 300GB/s, or 2x the captured "
        "bandwidth. For one kind of "
        "parallelism: tensor=2x (data, sharded, tensor, pipeline, expert, other).",
        "300GB/s|2x|KIND=2x",
    )
    link: str | None = option(
        "Bandwidth of an interconnect: nvlink2 to nvlink5 (or v100, a100, h100, h200, b200), "
        "pcie3x16 to pcie6x16, "
        "infiniband-edr to -xdr, roce-100 to -400, or shm.",
        "LINK",
    )
    gradient_dtype: str | None = option("Send gradients as bf16 or fp16.", "bf16|fp16")
    bucket_mb: float | None = option("Set bucket_cap_mb of DDP.", "MIB")
    no_wait: bool = flag("Predict as if no rank were late.")
    no_grad_copy: bool = flag("Set gradient_as_bucket_view=True.")
    no_sync: bool = flag("Use no_sync(): send gradients only in the last micro-batch.")
    prefetch: bool = flag("FSDP: gather parameters one layer earlier.")
    perfect_overlap: bool = flag("Overlap all communication with compute (a limit, not a setting).")
    gradient_bytes: float | None = option(
        "Size of the gradients of one rank in bytes, if the capture does not record it: the sum of "
        "the message sizes of one step, not the bytes on the wire.",
        "N",
    )


@with_options
def whatif(
    run: Annotated[
        list[str], typer.Argument(metavar="RUN...", help=f"{ONE_RUN} A saved run needs --events.")
    ],
    *,
    changes: Changes,
    reading: RunWithoutWorkOptions,
    outputs: VerboseOutputs,
    running: RunningOptions,
) -> None:
    """Predict the step time after a change of the communication, by a simulation of the captured
    steps.

    If you name no change, whatif tries every change that it can model, and shows settings first.
    The exit code is 4 if no change has an estimate.

    \b
    Examples:
      nsyspipe whatif "ddp-4gpu_*.sqlite"
      nsyspipe whatif "ddp-4gpu_*.sqlite" --bucket-mb 25 --no-grad-copy
      nsyspipe whatif reports/ --link nvlink4 --gradient-dtype bf16
      nsyspipe whatif reports/ --bandwidth 300GB/s --json - | jq .scenarios[0].gain_pct
      nsyspipe whatif reports/ --bandwidth tensor=2x
      nsyspipe whatif runs/ --no-wait
    """  # noqa: D205 - the summary is longer than a line
    from nsyspipe.replay.knobs import knobs_of

    outputs.check()
    # This raises the error for impossible changes, before anything is read.
    _ = knobs_of(**asdict(changes))
    with opened_run(run, reading, running) as (opened, _):
        from nsyspipe.replay.answer import whatif as simulate

        answer = simulate(opened, **asdict(changes))
    from nsyspipe.report.whatif import whatif_blocks, whatif_formats

    formats = whatif_formats(answer, opened)
    blocks = whatif_blocks(answer, opened, is_verbose=outputs.verbose, has_bars=True)
    outputs.answer(formats, blocks, opened.inputs, opened.header.run_id, quiet=running.quiet)
    # `refused` is the reason why a change has no estimate.
    if all(scenario.refused for scenario in answer.scenarios):
        raise typer.Exit(NOTHING_ANSWERED)

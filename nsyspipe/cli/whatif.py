"""``nsyspipe whatif``: what a change of the communication would bring."""

from dataclasses import asdict, dataclass
from typing import Annotated

import typer

from nsyspipe.cli.inputs import ONE_RUN, opened_run
from nsyspipe.cli.options import OneRunOptions, RunningOptions, flag, option, with_options
from nsyspipe.cli.outputs import VerboseOutputs

NOTHING_ANSWERED = 4  # exit code where none of what was asked has an answer


@dataclass(frozen=True)
class Changes:
    """What is to be changed."""

    bandwidth: str | None = option(
        "Bus bandwidth that collectives reach (busbw of nccl-tests), in bytes, as 300GB/s, or 2x the captured one; of "
        "one kind of traffic: tensor=2x (data, sharded, tensor, pipeline, expert, other).",
        "300GB/s|2x|KIND=2x",
    )
    link: str | None = option(
        "nvlink2 to 5 (v100, a100, h100, h200, b200), pcie3x16 to pcie6x16, infiniband-edr to -xdr, roce-100 to -400, "
        "or shm: its bandwidth.",
        "LINK",
    )
    gradient_dtype: str | None = option("bf16 or fp16: send gradients as that.", "bf16|fp16")
    bucket_mb: float | None = option("DDP's bucket_cap_mb.", "MIB")
    no_wait: bool = flag("No rank is later than the others.")
    no_grad_copy: bool = flag("gradient_as_bucket_view=True.")
    no_sync: bool = flag("Gradients are sent in the last micro-batch alone.")
    prefetch: bool = flag("FSDP: parameters are gathered one layer earlier.")
    perfect_overlap: bool = flag("All communication beside compute.")
    gradient_bytes: float | None = option("Bytes of gradients per step, where the capture does not say them.", "N")


@with_options
def whatif(
    run: Annotated[list[str], typer.Argument(metavar="RUN...", help=f"{ONE_RUN} Of a saved one --events is needed.")],
    *,
    changes: Changes,
    reading: OneRunOptions,
    outputs: VerboseOutputs,
    running: RunningOptions,
) -> None:
    """Replay the captured steps with other communication: what a change would bring, before anybody makes it.

    Without a change named: a menu of all of them, the largest gain first. Exits with 4 where nothing has an answer.

    \b
    Examples:
      nsyspipe whatif "ddp-4gpu_*.sqlite"
      nsyspipe whatif "ddp-4gpu_*.sqlite" --bucket-mb 25 --no-grad-copy
      nsyspipe whatif reports/ --link nvlink4 --gradient-dtype bf16
      nsyspipe whatif reports/ --bandwidth 300GB/s --json - | jq .scenarios[0].gain_pct
      nsyspipe whatif reports/ --bandwidth tensor=2x
      nsyspipe whatif runs/ --no-wait
    """
    from nsyspipe.replay.knobs import knobs_of

    outputs.check()
    knobs_of(**asdict(changes))  # refused before anything is read
    with opened_run(run, reading, running) as (opened, _):
        from nsyspipe.replay.answer import whatif as ask

        found = ask(opened, **asdict(changes))
    from nsyspipe.report.whatif import whatif_blocks, whatif_formats

    formats, blocks = whatif_formats(found, opened), whatif_blocks(found, opened, is_verbose=outputs.verbose)
    outputs.answer(formats, blocks, opened.inputs, opened.header.run_id, quiet=running.quiet)
    if all(scenario.refused for scenario in found.scenarios):
        raise typer.Exit(NOTHING_ANSWERED)

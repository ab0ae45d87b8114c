"""The training loop: labelled, measured, and captured by whoever started it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
import vit_job
import vit_result
from torch.nn.functional import cross_entropy

from nsyspipe.capture import annotate, captured_steps

if TYPE_CHECKING:
    import argparse


def run(options: argparse.Namespace) -> int:
    """Train, and say how fast it was, on rank 0; return this process's rank."""
    place = vit_job.join(options.model)
    result = train(options, place)
    if place.rank == 0:
        print(vit_result.sentence(result), flush=True)
        if options.json:
            vit_result.write(Path(options.json), result)
    if place.is_joined:
        torch.distributed.destroy_process_group()
    return place.rank


def train(options: argparse.Namespace, place: vit_job.Place) -> dict[str, Any]:
    """Make the warm-up and the measured steps; return the figures of the measured ones."""
    network = vit_job.build(options, place)
    make = torch.optim.AdamW if options.optimizer == "adamw" else torch.optim.SGD
    optimizer = make(network.module.parameters(), lr=options.lr)
    scaler = torch.amp.GradScaler(place.device.type, enabled=options.dtype == "float16")
    if place.rank == 0:
        print(_configuration(options, place, network), flush=True)

    watch = vit_result.Stopwatch(place.device, options.warmup, options.steps)
    batches = vit_job.fed(vit_job.batches(options, place), options, place, watch.before)
    captured_batches = captured_steps(
        batches,
        warmup=options.warmup,
        steps=options.steps,
        stop=True,
        capture=not options.no_capture,
    )
    loss = torch.zeros(())
    n_micro_batches = options.accumulate
    for number, (images, labels) in enumerate(captured_batches):
        _crash_if_asked(options, place, number)
        micro_batches = zip(
            images.chunk(n_micro_batches), labels.chunk(n_micro_batches), strict=True
        )
        for n_begun, (micro_images, micro_labels) in enumerate(micro_batches, start=1):
            is_last = n_begun == n_micro_batches
            # Only the last backward pass of a step exchanges gradients.
            with network.exchanging(is_last):
                with annotate("forward"), vit_job.precision(options, place):
                    scores = network.forward(micro_images)
                    # The sum over micro-batches is then the mean over the images of the step.
                    loss = cross_entropy(scores.float(), micro_labels) / n_micro_batches
                with annotate("backward"):
                    scaler.scale(loss).backward()
        with annotate("optimizer"):
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad(set_to_none=True)
        watch.after(number)
    return {
        **vars(options),
        "scheme": network.scheme,
        "world_size": place.world_size,
        "n_parameters": network.n_parameters,
        "torch_version": torch.__version__,
        **watch.result(options.batch_size * n_micro_batches * place.world_size),
        # Of the last micro-batch.
        "loss": loss.item() * n_micro_batches,
    }


def _configuration(
    options: argparse.Namespace, place: vit_job.Place, network: vit_job.Network
) -> str:
    """Return the line about what is trained, with what, and how."""
    device = torch.cuda.get_device_name() if place.device.type == "cuda" else "CPU"
    # Those that are None or False are as usual, and left out.
    settings = {
        "bucket_cap_mb": options.bucket_cap_mb,
        "static_graph": options.static_graph,
        "gradient_as_bucket_view": options.gradient_as_bucket_view,
        "hook": None if options.hook == "none" else options.hook,
        "accumulate": options.accumulate if options.accumulate > 1 else None,
        "compile": options.compile,
    }
    unusual = [f"{name}={value}" for name, value in settings.items() if value]
    scheme = " ".join([network.scheme, *unusual])
    return (
        f"ViT {options.model}, {network.n_parameters / 1e6:.1f} M parameters | "
        f"{place.world_size} x {device} | "
        f"{scheme} | "
        f"{options.dtype}, batch {options.batch_size} per rank | "
        f"{options.warmup} + {options.steps} steps, data from {options.data} | "
        f"torch {torch.__version__}"
    )


def _crash_if_asked(options: argparse.Namespace, place: vit_job.Place, number: int) -> None:
    """Fail in the step of --crash-at. Without --crash-rank, every rank fails."""
    if number == options.crash_at and options.crash_rank in {None, place.rank}:
        message = f"demonstration: --crash-at {number}: rank {place.rank} fails on purpose"
        raise RuntimeError(message)

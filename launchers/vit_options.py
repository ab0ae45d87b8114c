"""The options of train_vit.py, and which of them exclude each other. Without torch, so that --help is instant."""

from __future__ import annotations

import argparse
import math
import os
from pathlib import Path
from typing import NoReturn

POWERSGD_START = 2  # the earliest that PyTorch allows: DDP rebuilds its buckets at iteration 1
_EVERY_RANK = -1
_DRIVER = (Path("/proc/driver/nvidia/version"), Path("/dev/nvidiactl"), Path("/dev/dxg"))
_TORCHRUN = "torchrun --standalone --nproc_per_node=N train_vit.py"

_EXAMPLES = """\
examples:
  python train_vit.py                                           one GPU, without DDP
  torchrun --standalone --nproc_per_node=4 train_vit.py         DDP on four GPUs
  torchrun ... train_vit.py --gradient-as-bucket-view --hook bf16
  torchrun --standalone --nproc_per_node=2 train_vit.py --model tiny   CPU and gloo, where there is no GPU
"""


class _Parser(argparse.ArgumentParser):
    """A parser whose errors begin with the name of the option, as those of all commands."""

    def error(self, message: str) -> NoReturn:
        """End the program. argparse writes "argument" before the name of an option."""
        super().error(message.removeprefix("argument "))


def parser() -> argparse.ArgumentParser:
    """Return the parser of the command line."""
    result = _Parser(
        description="Train a vision transformer on synthetic images. Its steps and phases are NVTX ranges,"
        " and a profiler captures the steps after the warm-up.",
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    _add_work(result.add_argument_group("what is trained"))
    _add_parallel(result.add_argument_group("how the ranks work together"))
    _add_run(result.add_argument_group("the run"))
    _add_demonstrations(
        result.add_argument_group("demonstrations of what goes wrong, for tests and teaching")
    )
    return result


def _add_work(group: argparse._ArgumentGroup) -> None:
    group.add_argument(
        "--model",
        choices=("tiny", "small", "base", "large"),
        help="large: ViT-L/32, 306 million parameters (default, or tiny without a GPU)",
    )
    group.add_argument(
        "--batch-size",
        type=_positive,
        metavar="N",
        help="images per rank and forward pass (default 64, or 4 for tiny)",
    )
    group.add_argument(
        "--dtype",
        choices=("float32", "bfloat16", "float16"),
        default="float32",
        help="of the forward pass, by autocast. float16 scales the loss",
    )
    group.add_argument("--optimizer", choices=("adamw", "sgd"), default="adamw")
    group.add_argument("--lr", type=float, default=1e-4, metavar="RATE")
    group.add_argument("--seed", type=_natural, default=0, metavar="N")
    group.add_argument(
        "--data",
        choices=("loader", "gpu"),
        default="loader",
        help="a DataLoader, or batches that are on the GPU already",
    )
    group.add_argument(
        "--workers",
        type=_natural,
        metavar="N",
        help="processes of the DataLoader (default 4, or 0 without a GPU)",
    )
    group.add_argument("--compile", action="store_true", help="torch.compile")


def _add_parallel(group: argparse._ArgumentGroup) -> None:
    group.add_argument(
        "--no-ddp",
        action="store_true",
        help="every rank trains alone: the limit of what communication can cost",
    )
    group.add_argument(
        "--bucket-cap-mb",
        type=_megabytes,
        metavar="MB",
        help="bucket size of DDP. none or 0 is PyTorch's default of 25, and 2000 is one bucket",
    )
    group.add_argument("--static-graph", action="store_true", help="DDP(static_graph=True)")
    group.add_argument(
        "--gradient-as-bucket-view",
        action="store_true",
        help="DDP(gradient_as_bucket_view=True): no copies between bucket and gradient",
    )
    group.add_argument(
        "--hook",
        choices=("none", "bf16", "fp16", "powersgd"),
        default="none",
        help="compresses the gradients that DDP sends",
    )
    group.add_argument(
        "--powersgd-rank",
        type=_positive,
        default=1,
        metavar="N",
        help="matrix_approximation_rank of --hook powersgd (default 1)",
    )
    group.add_argument(
        "--accumulate",
        type=_positive,
        default=1,
        metavar="N",
        help="forward and backward passes per step. Only the last exchanges gradients",
    )
    group.add_argument("--fsdp", action="store_true", help="fully_shard (FSDP2) in place of DDP")


def _add_run(group: argparse._ArgumentGroup) -> None:
    group.add_argument(
        "--warmup",
        type=_natural,
        default=10,
        metavar="N",
        help="steps before those that are measured (default 10)",
    )
    group.add_argument(
        "--steps",
        type=_positive,
        default=20,
        metavar="N",
        help="steps that are measured and captured (default 20)",
    )
    group.add_argument(
        "--no-capture",
        action="store_true",
        help="ranges, but no cudaProfilerStart: to measure what the profiler costs",
    )
    group.add_argument("--json", metavar="FILE", help="where rank 0 writes its results")


def _add_demonstrations(group: argparse._ArgumentGroup) -> None:
    group.add_argument("--slow-rank", type=_natural, metavar="R", help="a straggler: this rank ...")
    group.add_argument(
        "--slow-ms",
        type=_milliseconds,
        default=20.0,
        metavar="MS",
        help="... sleeps so long in every step, in its data phase (default 20)",
    )
    group.add_argument(
        "--crash-at",
        type=_natural,
        metavar="STEP",
        help="fail in this step, counted from 0 with the warm-up",
    )
    group.add_argument("--crash-rank", type=_natural, metavar="R", help="only this rank fails")
    group.add_argument(
        "--hang-at-exit",
        type=_natural,
        nargs="?",
        const=_EVERY_RANK,
        metavar="RANK",
        help="never end after the training: all ranks, or this one",
    )


def parse(arguments: list[str] | None = None) -> argparse.Namespace:
    """Return the options. If one cannot be used, end the program with a message and status 2."""
    command_line = parser()
    options = command_line.parse_args(arguments)
    problem = _conflict(options)
    if problem:
        command_line.error(problem)
    if options.model is None:
        options.model = "large" if _has_gpus() else "tiny"
    if options.batch_size is None:
        options.batch_size = 4 if options.model == "tiny" else 64
    return options


def _has_gpus() -> bool:
    """Tell whether there may be a GPU, by the driver, because torch would take seconds."""
    return any(path.exists() for path in _DRIVER) and os.environ.get("CUDA_VISIBLE_DEVICES") != ""


def hangs(options: argparse.Namespace, rank: int) -> bool:
    """Tell whether a rank is to hang at its end."""
    return options.hang_at_exit in (_EVERY_RANK, rank)


def _conflict(options: argparse.Namespace) -> str | None:
    """Return the problem with the options; None if they can be used."""
    return (
        _unusable_alone(options) or _conflict_of_schemes(options) or _conflict_within_ddp(options)
    )


def _unusable_alone(options: argparse.Namespace) -> str | None:
    if options.crash_rank is not None and options.crash_at is None:
        return "--crash-rank needs --crash-at STEP"
    if options.json and not Path(options.json).absolute().parent.is_dir():
        return f"--json {options.json}: no such directory"
    return None


def _conflict_of_schemes(options: argparse.Namespace) -> str | None:
    ddp_options = _ddp_options(options)
    if options.fsdp and options.no_ddp:
        return "--fsdp and --no-ddp: choose one"
    if ddp_options and (options.fsdp or options.no_ddp):
        scheme = "--fsdp" if options.fsdp else "--no-ddp"
        return f"{ddp_options[0]} is an option of DDP: it does nothing with {scheme}"
    is_started_by_torchrun = "RANK" in os.environ
    if (ddp_options or options.fsdp) and not is_started_by_torchrun:
        option = "--fsdp" if options.fsdp else ddp_options[0]
        return f"{option} needs a process group: start with '{_TORCHRUN} ...'"
    if options.fsdp and options.dtype == "float16":
        return (
            "--fsdp with --dtype float16: FSDP2 has no scaler for the loss, so use --dtype bfloat16"
        )
    return None


def _conflict_within_ddp(options: argparse.Namespace) -> str | None:
    if options.static_graph and options.accumulate > 1:
        return (
            "--static-graph with --accumulate: PyTorch's static graph fails, or stops "
            "exchanging gradients,"
            " when the first backward pass is under no_sync (pytorch/pytorch pull request 187732)"
        )
    if options.hook == "powersgd" and options.warmup <= POWERSGD_START:
        return (
            f"--hook powersgd compresses from step {POWERSGD_START} on, and that step sets it up:"
            f" needs --warmup {POWERSGD_START + 1} or more, got {options.warmup}"
        )
    return None


def _ddp_options(options: argparse.Namespace) -> list[str]:
    """Return the options that the user has passed and that concern DDP only."""
    is_passed_by_option = {
        "--bucket-cap-mb": options.bucket_cap_mb is not None,
        "--static-graph": options.static_graph,
        "--gradient-as-bucket-view": options.gradient_as_bucket_view,
        "--hook": options.hook != "none",
    }
    return [option for option, is_passed in is_passed_by_option.items() if is_passed]


def _natural(text: str) -> int:
    number = int(text)
    if number < 0:
        message = f"{text} is negative"
        raise argparse.ArgumentTypeError(message)
    return number


def _positive(text: str) -> int:
    number = int(text)
    if number < 1:
        message = f"{text} is less than 1"
        raise argparse.ArgumentTypeError(message)
    return number


def _megabytes(text: str) -> float | None:
    if text.lower() == "none":
        return None
    number = float(text)
    if not 0 <= number < 2**20:
        message = f"{text} is not a size in MB"
        raise argparse.ArgumentTypeError(message)
    # 0 is the default of PyTorch too.
    return number or None


def _milliseconds(text: str) -> float:
    number = float(text)
    if not 0 <= number < math.inf:
        message = f"{text} is no duration"
        raise argparse.ArgumentTypeError(message)
    return number


# argparse names the type in its message about a wrong value: "invalid number value".
_milliseconds.__name__ = "duration"
_natural.__name__, _positive.__name__, _megabytes.__name__ = "number", "number", "size"

"""What stands around the model: the process group, DDP or FSDP, the gradient hook, the data."""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import os
import sys
import time
from dataclasses import dataclass
from datetime import timedelta
from itertools import count
from typing import TYPE_CHECKING, Any

import torch
from torch import distributed
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook
from torch.distributed.device_mesh import init_device_mesh
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset
from vit_model import IMAGE_SIZE, N_CHANNELS, SHAPES, VisionTransformer
from vit_options import POWERSGD_START

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable, Iterable, Iterator

_DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
_N_DIFFERENT = 2  # batches that a rank goes round in
_TIMEOUT = timedelta(minutes=10)

Batch = tuple[torch.Tensor, torch.Tensor]


@dataclass(frozen=True)
class Place:
    """Where this process stands in the job."""

    rank: int
    world_size: int
    device: torch.device
    is_joined: bool


def join(model: str) -> Place:
    """Choose the device, and join the process group if torchrun started this process."""
    is_joined = "RANK" in os.environ
    local_rank = int(os.environ.get("LOCAL_RANK", "0"))
    if torch.cuda.is_available():
        n_gpus = torch.cuda.device_count()
        if local_rank >= n_gpus:
            fix = f"start with --nproc_per_node={n_gpus}"
            sys.exit(f"error: local rank {local_rank} has no GPU, there are {n_gpus}: {fix}")
        device = torch.device("cuda", local_rank)
        # Before the process group is made. Otherwise NCCL would put the communicator of every rank
        # on the first GPU.
        torch.cuda.set_device(device)
    else:
        device = torch.device("cpu")
        n_ranks_here = int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
        n_cores = len(os.sched_getaffinity(0))
        n_cores_of_rank = max(1, n_cores // n_ranks_here)
        torch.set_num_threads(1 if model == "tiny" else n_cores_of_rank)
    if not is_joined:
        return Place(rank=0, world_size=1, device=device, is_joined=False)
    if device.type == "cuda":
        distributed.init_process_group("nccl", timeout=_TIMEOUT, device_id=device)
    else:
        distributed.init_process_group("gloo", timeout=_TIMEOUT)
    rank = distributed.get_rank()
    world_size = distributed.get_world_size()
    return Place(rank, world_size, device, is_joined=True)


@dataclass(frozen=True)
class Network:
    """The model as it is trained.

    Attributes
    ----------
    forward
        Maps images to scores.
    exchanging
        Context of one forward and backward pass: exchanges gradients at its end, or does not.
    scheme
        ``DDP``, ``FSDP2`` or ``no DDP``.
    """

    forward: Callable[[torch.Tensor], torch.Tensor]
    module: torch.nn.Module
    exchanging: Callable[[bool], contextlib.AbstractContextManager[Any]]
    scheme: str
    n_parameters: int


def build(options: argparse.Namespace, place: Place) -> Network:
    """Make the model, the same on every rank, and wrap it."""
    torch.manual_seed(options.seed)
    model = VisionTransformer(SHAPES[options.model]).to(place.device)
    n_parameters = sum(parameter.numel() for parameter in model.parameters())
    if options.fsdp:
        return Network(
            model, _shard(model, options, place), _fsdp_exchange(model), "FSDP2", n_parameters
        )
    if not place.is_joined or options.no_ddp:
        forward = torch.compile(model) if options.compile else model
        return Network(forward, model, lambda _: contextlib.nullcontext(), "no DDP", n_parameters)
    bucket_size = {}
    if options.bucket_cap_mb is not None:
        # PyTorch makes a first bucket of 1 MB only if no size is passed.
        bucket_size = {"bucket_cap_mb": options.bucket_cap_mb}
    wrapped = DistributedDataParallel(
        model,
        device_ids=[place.device.index] if place.device.type == "cuda" else None,
        static_graph=options.static_graph,
        gradient_as_bucket_view=options.gradient_as_bucket_view,
        **bucket_size,
    )
    _hook(wrapped, options, place)
    if options.compile and options.static_graph:
        # Splitting the graph at bucket borders does not go with DDP's own static graph.
        torch._dynamo.config.optimize_ddp = False  # noqa: SLF001 - its documented switch
    forward = torch.compile(wrapped) if options.compile else wrapped

    def exchanging(is_last: bool) -> contextlib.AbstractContextManager[Any]:  # noqa: FBT001
        return contextlib.nullcontext() if is_last else wrapped.no_sync()

    return Network(forward, wrapped, exchanging, "DDP", n_parameters)


def _hook(wrapped: DistributedDataParallel, options: argparse.Namespace, place: Place) -> None:
    if options.hook in {"bf16", "powersgd"} and place.device.type == "cpu":
        sys.exit(
            f"error: --hook {options.hook}: PyTorch's hook needs GPUs and NCCL, here is gloo: "
            "use --hook fp16"
        )
    if options.hook in {"bf16", "fp16"}:
        wrapped.register_comm_hook(None, getattr(default_hooks, f"{options.hook}_compress_hook"))
    elif options.hook == "powersgd":
        if importlib.util.find_spec("numpy") is None:  # PowerSGD takes its random numbers from it
            sys.exit("error: --hook powersgd: PyTorch's PowerSGD needs numpy: pip install numpy")
        state = powerSGD_hook.PowerSGDState(
            process_group=None,
            matrix_approximation_rank=options.powersgd_rank,
            start_powerSGD_iter=POWERSGD_START,
        )
        wrapped.register_comm_hook(state, powerSGD_hook.powerSGD_hook)


def _shard(model: VisionTransformer, options: argparse.Namespace, place: Place) -> torch.nn.Module:
    fsdp = importlib.import_module("torch.distributed.fsdp")
    if not hasattr(fsdp, "fully_shard"):
        sys.exit(f"error: --fsdp: needs PyTorch 2.6 or later, this is {torch.__version__}")
    mesh = init_device_mesh(place.device.type, (place.world_size,))
    policy = fsdp.MixedPrecisionPolicy()
    if options.dtype != "float32":
        policy = fsdp.MixedPrecisionPolicy(_DTYPES[options.dtype], reduce_dtype=torch.float32)
    for block in model.blocks:
        if options.compile:  # block by block: what gathers the parameters lies between them
            block.compile()
        fsdp.fully_shard(block, mesh=mesh, mp_policy=policy)
    return fsdp.fully_shard(model, mesh=mesh, mp_policy=policy)


def _fsdp_exchange(
    model: torch.nn.Module,
) -> Callable[[bool], contextlib.AbstractContextManager[Any]]:
    def exchanging(is_last: bool) -> contextlib.AbstractContextManager[Any]:  # noqa: FBT001
        model.set_requires_gradient_sync(is_last)
        return contextlib.nullcontext()

    return exchanging


def precision(options: argparse.Namespace, place: Place) -> contextlib.AbstractContextManager[Any]:
    """Return the context of a forward pass; FSDP2 converts by itself."""
    if options.dtype == "float32" or options.fsdp:
        return contextlib.nullcontext()
    return torch.autocast(place.device.type, dtype=_DTYPES[options.dtype])


class _Batches(Dataset[Batch]):
    """Whole batches of synthetic images, as bytes: what a decoder would give."""

    def __init__(self, options: argparse.Namespace, place: Place) -> None:
        self._n_batches = options.warmup + options.steps
        self._n_images = options.batch_size * options.accumulate
        self._n_classes = SHAPES[options.model].n_classes
        self._seed = options.seed * place.world_size + place.rank
        self._made: dict[int, Batch] = {}

    def __len__(self) -> int:
        return self._n_batches

    def __getitem__(self, index: int) -> Batch:
        # A GPU would wait for new random numbers in each batch. So only a few batches are made, and
        # their copies are used again and again.
        made_index = index % _N_DIFFERENT
        if made_index not in self._made:
            source = torch.Generator().manual_seed(self._seed * _N_DIFFERENT + made_index)
            shape = (self._n_images, N_CHANNELS, IMAGE_SIZE, IMAGE_SIZE)
            images = torch.randint(256, shape, dtype=torch.uint8, generator=source)
            labels = torch.randint(self._n_classes, (self._n_images,), generator=source)
            self._made[made_index] = images, labels
        images, labels = self._made[made_index]
        return images.clone(), labels.clone()


def batches(options: argparse.Namespace, place: Place) -> Iterable[Batch]:
    """Return one batch per step: from a DataLoader, or from the device's memory."""
    source = _Batches(options, place)
    has_gpu = place.device.type == "cuda"
    if options.data == "gpu":
        on_device = []
        for index in range(_N_DIFFERENT):
            images, labels = source[index]
            on_device.append((images.to(place.device), labels.to(place.device)))
        return (on_device[index % _N_DIFFERENT] for index in range(len(source)))
    n_workers = options.workers
    if n_workers is None:
        n_workers = 4 if has_gpu else 0
    return DataLoader(source, batch_size=None, num_workers=n_workers, pin_memory=has_gpu)


def fed(
    source: Iterable[Batch],
    options: argparse.Namespace,
    place: Place,
    before: Callable[[int], None],
) -> Iterator[Batch]:
    """Yield the batches on the device. The rank of --slow-rank sleeps before each of them.

    `before` is called before each step with its number, and once more at the end of the batches.
    """
    batches_on_host = iter(source)
    for number in count():
        before(number)
        if options.slow_rank == place.rank:
            time.sleep(options.slow_ms / 1000)
        batch = next(batches_on_host, None)
        if batch is None:
            return
        images, labels = batch
        images_on_device = images.to(place.device, non_blocking=True)
        labels_on_device = labels.to(place.device, non_blocking=True)
        yield images_on_device, labels_on_device

"""Which kernels and calls of other libraries communicate, by their names; and which collective that is.

NCCL's own kernels are told by how their names begin (`names.collective_of` reads the rest).
"""

import re
from functools import lru_cache

import pyarrow as pa
import pyarrow.compute as pc
from msgspec import Struct

from nsyspipe.model.names import OTHER, collective_of, kernel_label

NCCL_PREFIX = "nccl"
_MOST_NAMES = 4096


class CommLibrary(Struct, frozen=True):
    """Kernels of one library that communicate."""

    name: str
    pattern: re.Pattern[
        str
    ]  # of the kernel's name with its namespaces, without template arguments and parameters
    collective: str | None  # one of `names.COLLECTIVES`; None where the kernel's own name says it
    source: str  # where these names stand


_START = r"(?:^|::)"
LIBRARIES = (
    CommLibrary(
        "DeepEP",
        re.compile(
            r"^deep_ep::(?:intranode|internode|internode_ll)::(?:cached_)?(?:notify|dispatch|combine|barrier)\w*$"
        ),
        "all_to_all",
        "deepseek-ai/DeepEP: csrc/kernels/intranode.cu, internode.cu, internode_ll.cu",
    ),
    CommLibrary(
        "DeepEP (hybrid)",
        re.compile(r"^hybrid_ep::(?:dispatch|combine)_kernel$"),
        "all_to_all",
        "deepseek-ai/DeepEP, branch hybrid-ep: csrc/hybrid_ep/backend/hybrid_ep_backend.cuh",
    ),
    CommLibrary(
        "userbuffers, reduce-scatter",
        re.compile(_START + r"userbuffers_\w*_rs(?:_\w+)?$"),
        "reduce_scatter",
        (
            "NVIDIA/TransformerEngine: "
            "transformer_engine/common/comm_gemm_overlap/userbuffers/userbuffers.cu"
        ),
    ),
    CommLibrary(
        "userbuffers, all-gather",
        re.compile(_START + r"userbuffers_\w*_ag(?:_\w+)?$"),
        "all_gather",
        "as before",
    ),
    CommLibrary(
        "userbuffers, all-reduce",
        re.compile(_START + r"userbuffers_\w*_(?:rw|rr|mc)$"),
        "all_reduce",
        "as before",
    ),
    CommLibrary(
        "userbuffers, all-to-all",
        re.compile(_START + r"kuserbuffers_alltoall\w*$"),
        "all_to_all",
        "as before",
    ),
    CommLibrary(
        "userbuffers, sends and receives",
        re.compile(_START + r"kuserbuffers_(?:pull|push|proxy)\w*$"),
        "send_recv",
        "as before",
    ),
    CommLibrary(
        "NVSHMEM, all-gather",
        re.compile(_START + r"fcollect\w*_on_stream_kernel\w*$"),
        "all_gather",
        (
            "NVIDIA/nvshmem: src/include/non_abi/device/coll/*.cuh, "
            "src/device/launch/collective_launch.cpp"
        ),
    ),
    CommLibrary(
        "NVSHMEM, all-reduce",
        re.compile(_START + r"rdxn\w*_on_stream_kernel\w*$"),
        "all_reduce",
        "as before",
    ),
    CommLibrary(
        "NVSHMEM, other collectives",
        re.compile(
            _START
            + r"(?:alltoall|broadcast|reduce|reducescatter|barrier|sync)\w*_on_stream_kernel\w*$"
        ),
        None,
        "as before",
    ),
    CommLibrary(
        "NVSHMEM in PyTorch",
        re.compile(_START + r"(?:allToAllV\w*|exchangeSplitAndOffset\w*)$"),
        "all_to_all",
        "pytorch/pytorch: torch/csrc/distributed/c10d/symm_mem/nvshmem_extension.cu",
    ),
    CommLibrary(
        "NVSHMEM",
        re.compile(_START + r"nvshmem\w*(?:::\w+)*$"),
        None,
        "NVIDIA/nvshmem: the prefix of all that is public, nvshmem, nvshmemx, nvshmemi",
    ),
    CommLibrary(
        "PyTorch's symmetric memory",
        re.compile(
            _START
            + r"(?:(?:multimem_)?(?:one|two)_shot|multimem)_(?:all_reduce|all_gather|reduce_scatter)\w*$"
        ),
        None,
        "pytorch/pytorch: torch/csrc/distributed/c10d/symm_mem/CUDASymmetricMemoryOps.cu",
    ),
    CommLibrary(
        "PyTorch's symmetric memory, reduce",
        re.compile(_START + r"multimem_one_shot_reduce\w*$"),
        "reduce",
        "as before",
    ),
    CommLibrary(
        "TensorRT-LLM, PyTorch's intra-node communication",
        re.compile(_START + r"(?:one|two)ShotAllReduceKernel\w*$"),
        "all_reduce",
        "NVIDIA/TensorRT-LLM: cpp/tensorrt_llm/kernels/customAllReduceKernels.cu; "
        "pytorch/pytorch: torch/csrc/distributed/c10d/intra_node_comm.cu",
    ),
    CommLibrary(
        "TensorRT-LLM, FlashInfer: all-reduce with what follows it",
        re.compile(
            _START
            + r"(?:allreduce_fusion_kernel_(?:one|two)shot\w*|lamport_style_one_shot_all_reduce\w*"
            r"|(?:one|two)shotAllreduceFusionKernel\w*)$"
        ),
        "all_reduce",
        "NVIDIA/TensorRT-LLM: cpp/tensorrt_llm/kernels/communicationKernels/*.cu; "
        "flashinfer-ai/flashinfer: include/flashinfer/comm/trtllm_allreduce_fusion.cuh",
    ),
    CommLibrary(
        "TensorRT-LLM, all-to-all of experts",
        re.compile(_START + r"moeAllToAllKernel\w*$"),
        "all_to_all",
        "NVIDIA/TensorRT-LLM: cpp/tensorrt_llm/kernels/fusedMoeCommKernels.cu",
    ),
    CommLibrary(
        "vLLM, SGLang",
        re.compile(_START + r"cross_device_reduce_[12]stage\w*$"),
        "all_reduce",
        (
            "vllm-project/vllm: csrc/custom_all_reduce.cuh; sgl-project/sglang: "
            "sgl-kernel/csrc/allreduce"
        ),
    ),
    CommLibrary(
        "vLLM, quick all-reduce",
        re.compile(r"(?:^|::)quickreduce::allreduce_prototype\w*$"),
        "all_reduce",
        "vllm-project/vllm: csrc/quickreduce",
    ),
)

# What kernels that communicate are named like in any library.
LIKE_COMMUNICATION = re.compile(
    r"(?i)nccl|nvshmem|multimem|cross_device|userbuffers|deep_ep::|all_?reduce|all_?gather|all_?to_?all|reduce_?scatter|"
    r"send_?recv"
)
# Of these the compute kernels: what torch.compile fuses is named by all operators around it, and
# threads of one block or warp reduce among themselves.
_LIKE_COMPUTE = re.compile(
    r"(?i)^triton_\w+_fused_|(?:warp|block|cta|thread)_?all_?(?:reduce|gather)|get_dispatch_layout"
)


@lru_cache(_MOST_NAMES)
def library_of(label: str) -> CommLibrary | None:
    """Return whose communication a kernel is, NCCL's apart, by its `names.kernel_label`; None of other kernels."""
    function = label.partition(" [")[0]
    return next((one for one in LIBRARIES if one.pattern.search(function)), None)


@lru_cache(_MOST_NAMES)
def is_communication(label: str) -> bool:
    """Tell whether a label is that of a collective or of a kernel that communicates, as far as its name says it."""
    is_nccls = label.lower().startswith(NCCL_PREFIX)
    return is_nccls or label.endswith(_COPIES) or library_of(label) is not None


def are_communication(labels: pa.ChunkedArray) -> pa.ChunkedArray:
    """Tell of each of many labels whether it `is_communication`."""
    texts = labels.cast(pa.string())
    wanted = [
        label
        for label in pc.unique(texts).to_pylist()
        if label is not None and is_communication(label)
    ]
    return pc.is_in(texts, value_set=pa.array(wanted, pa.string()))


def looks_like_communication(label: str) -> bool:
    """Tell whether a kernel is named like communication, which only its user can tell for certain.

    >>> looks_like_communication("my_all_reduce"), looks_like_communication("triton_poi_fused_add_all_reduce_3")
    (True, False)
    """
    function = label.partition(" [")[0]
    return (
        LIKE_COMMUNICATION.search(function) is not None and _LIKE_COMPUTE.search(function) is None
    )


@lru_cache(_MOST_NAMES)
def collective_of_kernel(name: str) -> str:
    """Return the collective that a kernel of any library runs, or ``other``.

    >>> collective_of_kernel("void deep_ep::internode::dispatch<false>(int)")
    'all_to_all'
    """
    library = library_of(kernel_label(name))
    return (
        collective_of(name) if library is None or library.collective is None else library.collective
    )


# The calls, by the texts of their ranges.

# NCCL's functions that move data; those of a group launch nothing until it ends.
_NCCL_CALL = re.compile(
    r"(?i)^p?nccl(?:All_?Reduce|All_?Gather|All_?to_?All|Reduce_?Scatter|Broadcast|Bcast|Reduce|Gather|Scatter|Send|Recv)v?$"
)
_GROUP = re.compile(r"(?i)^p?ncclGroup(Start|End)$")
# PyTorch's operators that copy between GPUs by symmetric memory, as
# torch.autograd.profiler.emit_nvtx names them; also called without their namespace.
# pytorch/pytorch: torch/distributed/_symmetric_memory/__init__.py
_SYMMETRIC_CALL = re.compile(
    r"^(?:symm_mem::_?|_?(?=low_contention_))(\w*(?:all_gather|reduce_scatter|all_reduce|all_to_all)\w*)(?:,|$)"
)
_BY_ALIAS = {"bcast": "broadcast", "send": "send_recv", "recv": "send_recv"}
_SPELLINGS = {
    "reduce_scatter": "ReduceScatter",
    "all_reduce": "AllReduce",
    "all_gather": "AllGather",
    "broadcast": "Broadcast",
    "all_to_all": "AllToAll",
    "send_recv": "SendRecv",
    "reduce": "Reduce",
}
_COPIES = " [copies]"
MIXED_GROUP = "ncclGroup"  # a group of several collectives


class CommCall(Struct, frozen=True):
    """What the text of a range says of the call that it is of."""

    name: str  # of the function, without namespace
    collective: str  # one of `names.COLLECTIVES`
    is_group_start: bool = False
    is_group_end: bool = False
    is_symmetric: bool = False  # whether symmetric memory does it, and not NCCL


def comm_call_of(text: str) -> CommCall | None:
    """Return the call that a range is of, if that communicates, or begins or ends a group of NCCL's calls.

    >>> comm_call_of("ncclAllGather"), comm_call_of("ncclCommInitRank")
    (CommCall(name='ncclAllGather', collective='all_gather', is_group_start=False,
    is_group_end=False, is_symmetric=False), None)
    """
    group = _GROUP.match(text)
    if group:
        is_start = group[1].lower() == "start"
        return CommCall(MIXED_GROUP, OTHER, is_group_start=is_start, is_group_end=not is_start)
    if _NCCL_CALL.match(text):
        bare = text.lower().removeprefix("p").removeprefix(NCCL_PREFIX)
        collective = _BY_ALIAS.get(bare) or collective_of(bare)
        spelling = _SPELLINGS.get(collective)
        return CommCall(text if spelling is None else f"nccl{spelling}", collective)
    symmetric = _SYMMETRIC_CALL.match(text)
    if symmetric:
        return CommCall(symmetric[1], collective_of(symmetric[1]), is_symmetric=True)
    return None


def name_of_copies(call: str) -> str:
    """Return what the copies of a call are called: they are one collective."""
    return f"{call}{_COPIES}"


def name_with_collective(kernel: str, collective: str) -> str:
    """Return what a kernel is called whose own name does not say its collective."""
    return f"{kernel_label(kernel)} [{collective}]"

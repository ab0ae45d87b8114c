"""Which kernels and calls communicate, by their names, and which collective they are.

Kernels of NCCL are recognized by how their names begin. `names.collective_of` reads the rest.
"""

import re
from functools import lru_cache

import pyarrow as pa
import pyarrow.compute as pc
from msgspec import Struct

from nsyspipe.model.names import OTHER, collective_of, kernel_label

NCCL_PREFIX = "nccl"
# The ranks of a job run the same kernels, so their names are looked up again and again.
_MAX_CACHED_NAMES = 4096


class CommLibrary(Struct, frozen=True, kw_only=True):
    """Kernels of one library that communicate."""

    name: str
    # Matches the name of the kernel with its namespaces, without template arguments and parameters.
    pattern: re.Pattern[str]
    # One of `names.COLLECTIVES`. None if the name of the kernel tells the collective.
    collective: str | None
    # Where the library declares these kernels.
    source: str


_START = r"(?:^|::)"
_USERBUFFERS_SOURCE = (
    "NVIDIA/TransformerEngine: "
    "transformer_engine/common/comm_gemm_overlap/userbuffers/userbuffers.cu"
)
_NVSHMEM_SOURCE = (
    "NVIDIA/nvshmem: src/include/non_abi/device/coll/*.cuh, src/device/launch/collective_launch.cpp"
)
_SYMMETRIC_MEMORY_SOURCE = (
    "pytorch/pytorch: torch/csrc/distributed/c10d/symm_mem/CUDASymmetricMemoryOps.cu"
)
LIBRARIES = (
    CommLibrary(
        name="DeepEP",
        pattern=re.compile(
            r"^deep_ep::(?:intranode|internode|internode_ll)::"
            r"(?:cached_)?(?:notify|dispatch|combine|barrier)\w*$"
        ),
        collective="all_to_all",
        source="deepseek-ai/DeepEP: csrc/kernels/intranode.cu, internode.cu, internode_ll.cu",
    ),
    CommLibrary(
        name="DeepEP (hybrid)",
        pattern=re.compile(r"^hybrid_ep::(?:dispatch|combine)_kernel$"),
        collective="all_to_all",
        source="deepseek-ai/DeepEP, branch hybrid-ep: csrc/hybrid_ep/backend/hybrid_ep_backend.cuh",
    ),
    CommLibrary(
        name="userbuffers, reduce-scatter",
        pattern=re.compile(_START + r"userbuffers_\w*_rs(?:_\w+)?$"),
        collective="reduce_scatter",
        source=_USERBUFFERS_SOURCE,
    ),
    CommLibrary(
        name="userbuffers, all-gather",
        pattern=re.compile(_START + r"userbuffers_\w*_ag(?:_\w+)?$"),
        collective="all_gather",
        source=_USERBUFFERS_SOURCE,
    ),
    CommLibrary(
        name="userbuffers, all-reduce",
        pattern=re.compile(_START + r"userbuffers_\w*_(?:rw|rr|mc)$"),
        collective="all_reduce",
        source=_USERBUFFERS_SOURCE,
    ),
    CommLibrary(
        name="userbuffers, all-to-all",
        pattern=re.compile(_START + r"kuserbuffers_alltoall\w*$"),
        collective="all_to_all",
        source=_USERBUFFERS_SOURCE,
    ),
    CommLibrary(
        name="userbuffers, sends and receives",
        pattern=re.compile(_START + r"kuserbuffers_(?:pull|push|proxy)\w*$"),
        collective="send_recv",
        source=_USERBUFFERS_SOURCE,
    ),
    CommLibrary(
        name="NVSHMEM, all-gather",
        pattern=re.compile(_START + r"fcollect\w*_on_stream_kernel\w*$"),
        collective="all_gather",
        source=_NVSHMEM_SOURCE,
    ),
    CommLibrary(
        name="NVSHMEM, all-reduce",
        pattern=re.compile(_START + r"rdxn\w*_on_stream_kernel\w*$"),
        collective="all_reduce",
        source=_NVSHMEM_SOURCE,
    ),
    CommLibrary(
        name="NVSHMEM, other collectives",
        pattern=re.compile(
            _START + r"(?:alltoall|broadcast|reduce|reducescatter|barrier|sync)"
            r"\w*_on_stream_kernel\w*$"
        ),
        collective=None,
        source=_NVSHMEM_SOURCE,
    ),
    CommLibrary(
        name="NVSHMEM in PyTorch",
        pattern=re.compile(_START + r"(?:allToAllV\w*|exchangeSplitAndOffset\w*)$"),
        collective="all_to_all",
        source="pytorch/pytorch: torch/csrc/distributed/c10d/symm_mem/nvshmem_extension.cu",
    ),
    CommLibrary(
        name="NVSHMEM",
        pattern=re.compile(_START + r"nvshmem\w*(?:::\w+)*$"),
        collective=None,
        source="NVIDIA/nvshmem: the prefix of all that is public, nvshmem, nvshmemx, nvshmemi",
    ),
    CommLibrary(
        name="PyTorch's symmetric memory",
        pattern=re.compile(
            _START + r"(?:(?:multimem_)?(?:one|two)_shot|multimem)_"
            r"(?:all_reduce|all_gather|reduce_scatter)\w*$"
        ),
        collective=None,
        source=_SYMMETRIC_MEMORY_SOURCE,
    ),
    CommLibrary(
        name="PyTorch's symmetric memory, reduce",
        pattern=re.compile(_START + r"multimem_one_shot_reduce\w*$"),
        collective="reduce",
        source=_SYMMETRIC_MEMORY_SOURCE,
    ),
    CommLibrary(
        name="TensorRT-LLM, PyTorch's intra-node communication",
        pattern=re.compile(_START + r"(?:one|two)ShotAllReduceKernel\w*$"),
        collective="all_reduce",
        source=(
            "NVIDIA/TensorRT-LLM: cpp/tensorrt_llm/kernels/customAllReduceKernels.cu; "
            "pytorch/pytorch: torch/csrc/distributed/c10d/intra_node_comm.cu"
        ),
    ),
    CommLibrary(
        name="TensorRT-LLM, FlashInfer: all-reduce with what follows it",
        pattern=re.compile(
            _START + r"(?:allreduce_fusion_kernel_(?:one|two)shot\w*|"
            r"lamport_style_one_shot_all_reduce\w*|"
            r"(?:one|two)shotAllreduceFusionKernel\w*)$"
        ),
        collective="all_reduce",
        source=(
            "NVIDIA/TensorRT-LLM: cpp/tensorrt_llm/kernels/communicationKernels/*.cu; "
            "flashinfer-ai/flashinfer: include/flashinfer/comm/trtllm_allreduce_fusion.cuh"
        ),
    ),
    CommLibrary(
        name="TensorRT-LLM, all-to-all of experts",
        pattern=re.compile(_START + r"moeAllToAllKernel\w*$"),
        collective="all_to_all",
        source="NVIDIA/TensorRT-LLM: cpp/tensorrt_llm/kernels/fusedMoeCommKernels.cu",
    ),
    CommLibrary(
        name="vLLM, SGLang",
        pattern=re.compile(_START + r"cross_device_reduce_[12]stage\w*$"),
        collective="all_reduce",
        source=(
            "vllm-project/vllm: csrc/custom_all_reduce.cuh; sgl-project/sglang: "
            "sgl-kernel/csrc/allreduce"
        ),
    ),
    CommLibrary(
        name="vLLM, quick all-reduce",
        pattern=re.compile(_START + r"quickreduce::allreduce_prototype\w*$"),
        collective="all_reduce",
        source="vllm-project/vllm: csrc/quickreduce",
    ),
)

# Names that kernels of any library have if they communicate.
LIKE_COMMUNICATION = re.compile(
    r"(?i)nccl|nvshmem|multimem|cross_device|userbuffers|deep_ep::|"
    r"all_?reduce|all_?gather|all_?to_?all|reduce_?scatter|send_?recv"
)
# Compute kernels with such names. torch.compile names a fused kernel by all operators around it,
# and the threads of one block or warp reduce among themselves.
_LIKE_COMPUTE = re.compile(
    r"(?i)^triton_\w+_fused_|(?:warp|block|cta|thread)_?all_?(?:reduce|gather)|get_dispatch_layout"
)


@lru_cache(_MAX_CACHED_NAMES)
def library_of(label: str) -> CommLibrary | None:
    """Return the library of a kernel that communicates, by its `names.kernel_label`.

    NCCL is not one of these libraries.
    """
    function = _function_of(label)
    for library in LIBRARIES:
        if library.pattern.search(function):
            return library
    return None


def _function_of(label: str) -> str:
    """Return a label without the functor in brackets."""
    return label.partition(" [")[0]


@lru_cache(_MAX_CACHED_NAMES)
def is_communication(label: str) -> bool:
    """Tell whether a label names a collective or a kernel that is known to communicate."""
    is_of_nccl = label.lower().startswith(NCCL_PREFIX)
    is_of_copies = label.endswith(_COPIES_SUFFIX)
    return is_of_nccl or is_of_copies or library_of(label) is not None


def are_communication(labels: pa.ChunkedArray) -> pa.ChunkedArray:
    """Tell for each label whether it `is_communication`. Each distinct label is looked at once."""
    texts = labels.cast(pa.string())
    distinct_labels = pc.unique(texts).drop_null().to_pylist()
    comm_labels = [label for label in distinct_labels if is_communication(label)]
    return pc.is_in(texts, value_set=pa.array(comm_labels, pa.string()))


def looks_like_communication(label: str) -> bool:
    """Tell whether a kernel has a name like communication. Only the user can tell for certain.

    >>> looks_like_communication("my_all_reduce")
    True
    >>> looks_like_communication("triton_poi_fused_add_all_reduce_3")
    False
    """
    function = _function_of(label)
    is_named_like_communication = LIKE_COMMUNICATION.search(function) is not None
    return is_named_like_communication and _LIKE_COMPUTE.search(function) is None


@lru_cache(_MAX_CACHED_NAMES)
def collective_of_kernel(name: str) -> str:
    """Return the collective that a kernel of any library runs, or ``other``.

    >>> collective_of_kernel("void deep_ep::internode::dispatch<false>(int)")
    'all_to_all'
    """
    library = library_of(kernel_label(name))
    if library is None or library.collective is None:
        return collective_of(name)
    return library.collective


# Functions of NCCL that move data, by the texts of their ranges.
_NCCL_CALL = re.compile(
    r"(?i)^p?nccl(?:All_?Reduce|All_?Gather|All_?to_?All|Reduce_?Scatter|Broadcast|Bcast|"
    r"Reduce|Gather|Scatter|Send|Recv)v?$"
)
# Calls in a group launch nothing until the group ends.
_GROUP = re.compile(r"(?i)^p?ncclGroup(Start|End)$")
# The beginning of a group in the advanced NCCL trace, a range around all of the group.
ADVANCED_GROUP = "API Group"
_ADVANCED_TEXTS = {ADVANCED_GROUP: "ncclGroupStart", "GroupLaunch": "ncclGroupEnd"}
# Operators of PyTorch that copy between GPUs by symmetric memory, as
# torch.autograd.profiler.emit_nvtx names them. Some are called without their namespace.
# pytorch/pytorch: torch/distributed/_symmetric_memory/__init__.py
_SYMMETRIC_CALL = re.compile(
    r"^(?:symm_mem::_?|_?(?=low_contention_))"
    r"(\w*(?:all_gather|reduce_scatter|all_reduce|all_to_all)\w*)(?:,|$)"
)
_COLLECTIVE_BY_ALIAS = {"bcast": "broadcast", "send": "send_recv", "recv": "send_recv"}
# Collective -> the name of NCCL's function, without its prefix.
_NCCL_FUNCTIONS = {
    "reduce_scatter": "ReduceScatter",
    "all_reduce": "AllReduce",
    "all_gather": "AllGather",
    "broadcast": "Broadcast",
    "all_to_all": "AllToAll",
    "send_recv": "SendRecv",
    "reduce": "Reduce",
}
# Ends the label of copies that are a collective.
_COPIES_SUFFIX = " [copies]"
# A group of several collectives.
MIXED_GROUP = "ncclGroup"


class CommCall(Struct, frozen=True):
    """A call that communicates, as the text of its range names it."""

    # The function without its namespace.
    name: str
    # One of `names.COLLECTIVES`.
    collective: str
    is_group_start: bool = False
    is_group_end: bool = False
    # Whether symmetric memory makes the call, and not NCCL.
    is_symmetric: bool = False


def comm_call_of(text: str) -> CommCall | None:
    """Return the call of a range with some text; None if the range is no call that communicates.

    A call that begins or ends a group of calls of NCCL counts too.

    >>> comm_call_of("ncclAllGather").collective
    'all_gather'
    >>> comm_call_of("ncclCommInitRank")
    """
    group = _GROUP.match(text)
    if group is not None:
        is_start = group[1].lower() == "start"
        return CommCall(MIXED_GROUP, OTHER, is_group_start=is_start, is_group_end=not is_start)
    if _NCCL_CALL.match(text):
        return _nccl_call(text)
    symmetric = _SYMMETRIC_CALL.match(text)
    if symmetric is not None:
        function = symmetric[1]
        return CommCall(function, collective_of(function), is_symmetric=True)
    return None


def usual_text_of(text: str) -> str:
    """Return the usual text of a range in NCCL's own domain.

    The advanced NCCL trace of nsys leaves out the prefix. Its ``GroupLaunch`` is ncclGroupEnd, and
    its ``API Group`` begins where ncclGroupStart ends.

    >>> usual_text_of("AllReduce"), usual_text_of("GroupLaunch"), usual_text_of("KernelLaunch")
    ('ncclAllReduce', 'ncclGroupEnd', 'KernelLaunch')
    """
    with_prefix = f"{NCCL_PREFIX}{text}"
    if _NCCL_CALL.match(with_prefix):
        return with_prefix
    return _ADVANCED_TEXTS.get(text, text)


def _nccl_call(text: str) -> CommCall:
    """Return the call of a function of NCCL, by the text of its range.

    Different spellings, ``pncclAllReduce`` and ``ncclAllReduce``, become the usual one.
    """
    # Without the p of the profiling interface.
    function = text.lower().removeprefix("p").removeprefix(NCCL_PREFIX)
    if function in _COLLECTIVE_BY_ALIAS:
        collective = _COLLECTIVE_BY_ALIAS[function]
    else:
        collective = collective_of(function)
    usual_function = _NCCL_FUNCTIONS.get(collective)
    name = text if usual_function is None else f"nccl{usual_function}"
    return CommCall(name, collective)


def name_of_copies(call: str) -> str:
    """Return the name of the copies of a call, which are one collective."""
    return f"{call}{_COPIES_SUFFIX}"


def name_with_collective(kernel: str, collective: str) -> str:
    """Return the label of a kernel with its collective, which its own name does not tell."""
    return f"{kernel_label(kernel)} [{collective}]"

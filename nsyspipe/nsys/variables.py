"""Variables of NCCL, CUDA and PyTorch that a capture writes down: those that something of ours reads, and their values."""

from __future__ import annotations

import re
from dataclasses import dataclass

SLOW_LINK, COMM_SLOWS, SYNC, DOCTOR, DIFF = (
    "slow-link",
    "comm-slows-compute",
    "sync-bound",
    "doctor",
    "diff",
)


@dataclass(frozen=True)
class Variable:
    """A variable, the values of it that may be written down, and who reads it.

    Attributes
    ----------
    reader
        The finding or command that first asks for it; `diff` says of all of them whether they changed.
    values
        Pattern of a whole value; every other value is written as its hash.
    """

    name: str
    reader: str
    values: str

    def allows(self, value: str) -> bool:
        """Tell whether a value may be written down."""
        return re.fullmatch(self.values, value, re.ASCII | re.IGNORECASE) is not None


_SWITCH = r"-?[0-2]|true|false"
_COUNT = r"-?\d{1,7}"
_BYTES = r"\d{1,7}|\d{1,4}[kmg]|" + "|".join(str(2**power) for power in range(20, 34))
_LEVEL = r"[0-9]|LOC|NVL|PIX|PXB|PHB|PXN|P2C|C2C|SYS"
_WORDS_OF_ALGO = (
    r"\^?(?:(?:tree|ring|collnet|collnetdirect|collnetchain|nvls|nvlstree|pat)(?:,|\Z))+"
)
_WORDS_OF_PROTO = r"\^?(?:(?:LL|LL128|simple)(?:,|\Z))+"
# As Linux and Slurm clusters call them; a list of some, or of all others (^), or exactly so (=).
_INTERFACE = r"(?:lo|eth|en[opsx]|ib|ibs|ibp|bond|docker|br|hsn|rdma|roce|rocep|mlx5_|mlx5_bond_|bnxt_re|irdma|efa_|rdmap)"
_INTERFACES = rf"\^?=?(?:{_INTERFACE}(?:\d{{1,4}}(?:[sfdnp]\d{{1,4}}){{0,4}}(?:np?\d{{1,2}})?)?(?::\d)?(?:,|\Z))+"
_ALLOCATOR = (
    r"(?:(?:expandable_segments:(?:true|false)|backend:(?:native|cudaMallocAsync)|max_split_size_mb:\d{1,7}"
    r"|garbage_collection_threshold:0?\.\d{1,3}|roundup_power2_divisions:\d{1,3}"
    r"|pinned_use_cuda_host_register:(?:true|false)|pinned_num_register_threads:\d{1,3})(?:,|\Z))+"
)

VARIABLES: tuple[Variable, ...] = (
    Variable("NCCL_P2P_DISABLE", SLOW_LINK, _SWITCH),
    Variable("NCCL_P2P_LEVEL", SLOW_LINK, _LEVEL),
    Variable("NCCL_P2P_DIRECT_DISABLE", SLOW_LINK, _SWITCH),
    Variable("NCCL_SHM_DISABLE", SLOW_LINK, _SWITCH),
    Variable("NCCL_IB_DISABLE", SLOW_LINK, _SWITCH),
    Variable("NCCL_IB_HCA", SLOW_LINK, _INTERFACES),
    Variable("NCCL_NET", SLOW_LINK, r"IB|Socket|AWS Libfabric|OFI|UCX"),
    Variable("NCCL_NET_PLUGIN", SLOW_LINK, r"none|ofi|aws-ofi|ucx|sharp|spcx"),
    Variable("NCCL_NET_GDR_LEVEL", SLOW_LINK, _LEVEL),
    Variable("NCCL_SOCKET_IFNAME", SLOW_LINK, _INTERFACES),
    Variable("NCCL_CROSS_NIC", SLOW_LINK, _SWITCH),
    Variable("NCCL_MAX_CTAS", COMM_SLOWS, _COUNT),
    Variable("NCCL_MIN_CTAS", COMM_SLOWS, _COUNT),
    Variable("NCCL_MAX_NCHANNELS", COMM_SLOWS, _COUNT),
    Variable("NCCL_MIN_NCHANNELS", COMM_SLOWS, _COUNT),
    Variable("NCCL_CTA_POLICY", COMM_SLOWS, r"[0-9]|default|efficiency|zero"),
    Variable("NCCL_CGA_CLUSTER_SIZE", COMM_SLOWS, _COUNT),
    Variable("PYTORCH_CUDA_ALLOC_CONF", SYNC, _ALLOCATOR),
    Variable("PYTORCH_ALLOC_CONF", SYNC, _ALLOCATOR),
    Variable("CUDA_LAUNCH_BLOCKING", SYNC, _SWITCH),
    Variable("TORCH_NCCL_BLOCKING_WAIT", SYNC, _SWITCH),
    Variable("NCCL_NVTX_DISABLE", DOCTOR, _SWITCH),
    Variable("NCCL_DEBUG", DOCTOR, r"version|warn|info|abort|trace"),
    Variable("CUDA_VISIBLE_DEVICES", DOCTOR, r"|-1|(?:\d{1,3}(?:,|\Z))+"),
    Variable("CUDA_DEVICE_MAX_CONNECTIONS", DIFF, _COUNT),
    Variable("CUDA_MODULE_LOADING", DIFF, r"lazy|eager|default"),
    Variable("NCCL_ALGO", DIFF, _WORDS_OF_ALGO),
    Variable("NCCL_PROTO", DIFF, _WORDS_OF_PROTO),
    Variable("NCCL_BUFFSIZE", DIFF, _BYTES),
    Variable("NCCL_NTHREADS", DIFF, _COUNT),
    Variable("NCCL_NVLS_ENABLE", DIFF, _SWITCH),
    Variable("NCCL_COLLNET_ENABLE", DIFF, _SWITCH),
    Variable("NCCL_P2P_NVL_CHUNKSIZE", DIFF, _BYTES),
    Variable("NCCL_P2P_PCI_CHUNKSIZE", DIFF, _BYTES),
    Variable("NCCL_P2P_NET_CHUNKSIZE", DIFF, _BYTES),
    Variable("NCCL_PXN_DISABLE", DIFF, _SWITCH),
    Variable("NCCL_CUMEM_ENABLE", DIFF, _SWITCH),
    Variable("NCCL_GRAPH_MIXING_SUPPORT", DIFF, _SWITCH),
    Variable("NCCL_LAUNCH_MODE", DIFF, r"parallel|group"),
    Variable("NCCL_NSOCKS_PERTHREAD", DIFF, _COUNT),
    Variable("NCCL_SOCKET_NTHREADS", DIFF, _COUNT),
    Variable("NCCL_IB_QPS_PER_CONNECTION", DIFF, _COUNT),
    Variable("NCCL_IB_SPLIT_DATA_ON_QPS", DIFF, _SWITCH),
    Variable("NCCL_IB_GID_INDEX", DIFF, _COUNT),
    Variable("NCCL_IB_TC", DIFF, _COUNT),
    Variable("NCCL_IB_SL", DIFF, _COUNT),
    Variable("NCCL_IB_TIMEOUT", DIFF, _COUNT),
    Variable("TORCH_DISTRIBUTED_DEBUG", DIFF, r"off|info|detail"),
    Variable("TORCH_NCCL_ASYNC_ERROR_HANDLING", DIFF, r"[0-3]"),
    Variable("TORCH_NCCL_AVOID_RECORD_STREAMS", DIFF, _SWITCH),
    Variable("TORCH_NCCL_CUDA_EVENT_CACHE", DIFF, _SWITCH),
    Variable("TORCH_NCCL_ENABLE_TIMING", DIFF, _SWITCH),
    Variable("TORCH_NCCL_HIGH_PRIORITY", DIFF, _SWITCH),
    Variable("TORCH_NCCL_USE_COMM_NONBLOCKING", DIFF, _SWITCH),
)

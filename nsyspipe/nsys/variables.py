"""Variables of NCCL, CUDA and PyTorch that a capture writes down: those that something of ours reads, and their values."""

from __future__ import annotations

import re

_SWITCH = r"-?[0-2]|true|false"
_COUNT = r"-?\d{1,7}"
_BYTES = r"\d{1,7}|\d{1,4}[kmg]|" + "|".join(str(2**power) for power in range(20, 34))
_LEVEL = r"[0-9]|LOC|NVL|PIX|PXB|PHB|PXN|P2C|C2C|SYS"
_WORDS_OF_ALGO = r"\^?(?:(?:tree|ring|collnet|collnetdirect|collnetchain|nvls|nvlstree|pat)(?:,|\Z))+"
_WORDS_OF_PROTO = r"\^?(?:(?:LL|LL128|simple)(?:,|\Z))+"
# As Linux and Slurm clusters call them; a list of some, or of all others (^), or exactly so (=).
_INTERFACE = (
    r"(?:lo|eth|en[opsx]|ib|ibs|ibp|bond|docker|br|hsn|rdma|roce|rocep|mlx5_|mlx5_bond_|bnxt_re|irdma|efa_|rdmap)"
)
_INTERFACES = rf"\^?=?(?:{_INTERFACE}(?:\d{{1,4}}(?:[sfdnp]\d{{1,4}}){{0,4}}(?:np?\d{{1,2}})?)?(?::\d)?(?:,|\Z))+"
_ALLOCATOR = (
    r"(?:(?:expandable_segments:(?:true|false)|backend:(?:native|cudaMallocAsync)|max_split_size_mb:\d{1,7}"
    r"|garbage_collection_threshold:0?\.\d{1,3}|roundup_power2_divisions:\d{1,3}"
    r"|pinned_use_cuda_host_register:(?:true|false)|pinned_num_register_threads:\d{1,3})(?:,|\Z))+"
)

# Patterns of whole values that may be written down; every other value of these variables is written as its hash.
_NAMES = {
    _SWITCH: (
        "NCCL_P2P_DISABLE NCCL_P2P_DIRECT_DISABLE NCCL_SHM_DISABLE NCCL_IB_DISABLE NCCL_CROSS_NIC "
        "CUDA_LAUNCH_BLOCKING TORCH_NCCL_BLOCKING_WAIT NCCL_NVTX_DISABLE NCCL_NVLS_ENABLE NCCL_COLLNET_ENABLE "
        "NCCL_PXN_DISABLE NCCL_CUMEM_ENABLE NCCL_GRAPH_MIXING_SUPPORT NCCL_IB_SPLIT_DATA_ON_QPS "
        "TORCH_NCCL_AVOID_RECORD_STREAMS TORCH_NCCL_CUDA_EVENT_CACHE TORCH_NCCL_ENABLE_TIMING "
        "TORCH_NCCL_HIGH_PRIORITY TORCH_NCCL_USE_COMM_NONBLOCKING"
    ),
    _LEVEL: "NCCL_P2P_LEVEL NCCL_NET_GDR_LEVEL",
    _INTERFACES: "NCCL_IB_HCA NCCL_SOCKET_IFNAME",
    r"IB|Socket|AWS Libfabric|OFI|UCX": "NCCL_NET",
    r"none|ofi|aws-ofi|ucx|sharp|spcx": "NCCL_NET_PLUGIN",
    _COUNT: (
        "NCCL_MAX_CTAS NCCL_MIN_CTAS NCCL_MAX_NCHANNELS NCCL_MIN_NCHANNELS NCCL_CGA_CLUSTER_SIZE "
        "CUDA_DEVICE_MAX_CONNECTIONS NCCL_NTHREADS NCCL_NSOCKS_PERTHREAD NCCL_SOCKET_NTHREADS "
        "NCCL_IB_QPS_PER_CONNECTION NCCL_IB_GID_INDEX NCCL_IB_TC NCCL_IB_SL NCCL_IB_TIMEOUT"
    ),
    r"[0-9]|default|efficiency|zero": "NCCL_CTA_POLICY",
    _ALLOCATOR: "PYTORCH_CUDA_ALLOC_CONF PYTORCH_ALLOC_CONF",
    r"version|warn|info|abort|trace": "NCCL_DEBUG",
    r"|-1|(?:\d{1,3}(?:,|\Z))+": "CUDA_VISIBLE_DEVICES",
    r"lazy|eager|default": "CUDA_MODULE_LOADING",
    _WORDS_OF_ALGO: "NCCL_ALGO",
    _WORDS_OF_PROTO: "NCCL_PROTO",
    _BYTES: "NCCL_BUFFSIZE NCCL_P2P_NVL_CHUNKSIZE NCCL_P2P_PCI_CHUNKSIZE NCCL_P2P_NET_CHUNKSIZE",
    r"parallel|group": "NCCL_LAUNCH_MODE",
    r"off|info|detail": "TORCH_DISTRIBUTED_DEBUG",
    r"[0-3]": "TORCH_NCCL_ASYNC_ERROR_HANDLING",
}
VARIABLES = {name: values for values, names in _NAMES.items() for name in names.split()}

# What says how ranks are linked.
OF_LINKS = (
    "NCCL_P2P_DISABLE", "NCCL_P2P_LEVEL", "NCCL_P2P_DIRECT_DISABLE", "NCCL_SHM_DISABLE", "NCCL_IB_DISABLE", "NCCL_IB_HCA",
    "NCCL_NET", "NCCL_NET_PLUGIN", "NCCL_NET_GDR_LEVEL", "NCCL_SOCKET_IFNAME", "NCCL_CROSS_NIC",
)  # fmt: skip


def allows(name: str, value: str) -> bool:
    """Tell whether a value of one of `VARIABLES` may be written down."""
    return re.fullmatch(VARIABLES[name], value, re.ASCII | re.IGNORECASE) is not None

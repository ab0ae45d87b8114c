"""What stays of each table that nsys exports, and to which class every other table belongs.

Compiled from the tables and columns of 22 real exports of 2020 to 2026, up to schema version 3.25.0.
"""

from __future__ import annotations

import re

# Of each table the columns of whole numbers, which are copied where they are whole numbers; behind the first bar those that
# are copied value by value, after a look at each; behind the second those that are known and stay behind.
_KEPT = """
CUPTI_ACTIVITY_KIND_KERNEL: start end deviceId contextId streamId correlationId globalPid demangledName shortName launchType
    cacheConfig registersPerThread gridX gridY gridZ blockX blockY blockZ staticSharedMemory dynamicSharedMemory
    localMemoryPerThread localMemoryTotal gridId sharedMemoryExecuted graphNodeId sharedMemoryLimitConfig greenContextId
    graphId clusterX clusterY clusterZ
    | | mangledName qmdBulkReleaseDone qmdPreexitDone qmdLastCtaDone clusterSchedulingPolicy maxPotentialClusterSize
    maxActiveClusters sharedMemoryRequestedPercentage tensorSizeMinusOneElements
CUPTI_ACTIVITY_KIND_MEMCPY: start end deviceId contextId streamId correlationId globalPid bytes copyKind srcKind dstKind
    srcDeviceId srcContextId dstDeviceId dstContextId graphNodeId greenContextId copyCount
    | | deprecatedSrcId migrationCause virtualAddress name
CUPTI_ACTIVITY_KIND_MEMSET: start end deviceId contextId streamId correlationId globalPid bytes graphNodeId memKind
    greenContextId | | value
CUPTI_ACTIVITY_KIND_GRAPH_TRACE: start end deviceId contextId greenContextId streamId correlationId globalPid graphId
    graphExecId
CUPTI_ACTIVITY_KIND_RUNTIME: start end eventClass globalTid correlationId nameId returnValue | | callchainId name
CUPTI_ACTIVITY_KIND_SYNCHRONIZATION: start end deviceId contextId streamId correlationId globalPid syncType eventId
    greenContextId eventSyncId | | deprecatedSyncType
CUPTI_ACTIVITY_KIND_CUDA_EVENT: deviceId contextId streamId correlationId globalPid eventId greenContextId eventSyncId
    timestamp
PROFILER_OVERHEAD: start end globalTid correlationId overheadType | | nameId returnValue
TARGET_INFO_SESSION_START_TIME: utcEpochNs | | utcTime localTime systemClockNs
TARGET_INFO_CUDA_DEVICE: gpuId cudaId pid numMultiprocessors | | uuid
TARGET_INFO_GPU: vmId id deviceId cuDevice isDiscrete l2CacheSize totalMemory memoryBandwidth clockRate smCount computeMajor
    computeMinor smMajor smMinor | name
    | busLocation pwGpuId uuid luid chipName ctxswDevPath ctrlDevPath revision nodeMask constantMemory maxIPC
    maxRegistersPerBlock maxShmemPerBlock maxShmemPerBlockOptin maxShmemPerSm maxRegistersPerSm threadsPerWarp asyncEngines
    maxWarpsPerSm maxBlocksPerSm maxThreadsPerBlock maxBlockDimX maxBlockDimY maxBlockDimZ maxGridDimX maxGridDimY
    maxGridDimZ
NVTX_EVENTS: start end eventType rangeId category color globalTid endGlobalTid domainId | textId text binaryData
    | uint64Value int64Value doubleValue uint32Value int32Value floatValue jsonTextId jsonText
NVTX_PAYLOAD_SCHEMAS: domainId schemaId type flags numEntries payloadSize alignTo | | name
NVTX_PAYLOAD_SCHEMA_ENTRIES: domainId schemaId idx flags type arrayOrUnionDetail offset | name | description
NVTX_PAYLOAD_ENUMS: domainId schemaId size | | name numEntries
StringIds: | id value
META_DATA_EXPORT: | name value
EXPORT_META_DATA: | name value
META_DATA_CAPTURE: | name value
TARGET_INFO_SYSTEM_ENV: | name value | globalVid devStateName nameEnum
"""
# Tables that stay behind, by what they hold; a star stands for the rest of a name.
_DROPPED = """
process list: PROCESSES TARGET_INFO_PROCESS ThreadNames MPI_RANKS UCP_WORKERS
program output and files: ANALYSIS_FILE ANALYSIS_DETAILS ProcessStreams OSRT_FILE_ACCESS_DESCRIPTORS OSRT_FILE_ACCESS_EVENTS
diagnostics: DIAGNOSTIC_EVENT
operating system calls, CPU samples and call chains: OSRT_API OSRT_CALLCHAINS CUDA_CALLCHAINS SAMPLING_CALLCHAINS
    COMPOSITE_EVENTS SCHED_EVENTS UnwindMethodType PERF_EVENT_CPU_METRIC_EVENT PERF_EVENT_CPU_RAW_EVENT PMU_EVENTS
    PMU_EVENT_COUNTERS PMU_EVENT_REQUESTS UNCORE_PMU_EVENTS UNCORE_PMU_EVENT_VALUES TARGET_INFO_PERF_METRIC
    TARGET_INFO_XMC_SPEC
network and its devices: NET_IB_* NET_NIC_METRIC NIC_ID_MAP TARGET_INFO_NETWORK_METRICS TARGET_INFO_NIC_INFO
names of the values of payloads: NVTX_PAYLOAD_ENUM_ENTRIES
GPU metrics, contexts and streams: GPU_METRICS TARGET_INFO_GPU_METRICS GPU_CONTEXT_SWITCH_EVENTS FECS_EVENTS
    TARGET_INFO_CUDA_GPU TARGET_INFO_CUDA_CONTEXT_INFO TARGET_INFO_CUDA_NULL_STREAM TARGET_INFO_CUDA_STREAM
    TARGET_INFO_NVTX_CUDA_*
calls of MPI, UCX, OpenACC, OpenMP, cuBLAS, cuDNN: CUBLAS_EVENTS CUDNN_EVENTS CUPTI_ACTIVITY_KIND_OPENACC_* MPI_COLLECTIVES_EVENTS
    MPI_COMMUNICATORS MPI_OTHER_EVENTS MPI_P2P_EVENTS MPI_START_WAIT_EVENTS OPENMP_EVENT_KIND_* UCP_EVENTS
    UCP_PROGRESS_EVENTS UCP_SUBMIT_EVENTS
memory and graph events of CUDA: CUDA_GPU_MEMORY_* CUDA_GRAPH_EVENTS CUDA_GRAPH_NODE_EVENTS CUDA_UM_*
    CUPTI_ACTIVITY_KIND_OVERHEAD
tables that nsys stats added: NvtxPushPopRanges DomainStrings MemcpyOperationStrings cudaAPIStats cudaKernelStats
    cudaMemoryOperationByteStats cudaMemoryOperationTimeStats estEnd me ms nvtxPushPopRangeStats osrtAPIStats
graphics, video and Windows: D3D11_* D3D12_* DX12_* ETW_* GENERIC_EVENT* GPU_MEMORY_* GPU_VIDEO_* KHR_* NVVIDEO_*
    NV_LOAD_BALANCE_* OPENGL_* SLI_* VULKAN_* WDDM_* DEMOTED_BYTES_EVENTS MEMORY_TRANSFER_EVENTS TARGET_INFO_WDDM_CONTEXTS
    TOTAL_BYTES_RESIDENT_IN_SEGMENT_EVENTS TRACE_PROCESS_EVENT_NVMEDIA
nsys's own names of constants: ENUM_*
"""


def _entries(text: str) -> dict[str, str]:
    """Return what stands behind each name; indented lines go on."""
    lines = text.strip().replace("\n    ", " ").splitlines()
    return {name: rest for name, _, rest in (line.partition(":") for line in lines)}


_COLUMNS = {
    table: (*(tuple(part.split()) for part in columns.split("|")), (), ())[:3]
    for table, columns in _entries(_KEPT).items()
}
# Columns of whole numbers, and those that are copied after a look at each value, of the tables that have some.
NUMBERS = {table: columns[0] for table, columns in _COLUMNS.items() if columns[0]}
CHECKED = {table: columns[1] for table, columns in _COLUMNS.items() if columns[1]}
_CLASSES = {table: kind for kind, tables in _entries(_DROPPED).items() for table in tables.split()}
# Some exporters append a version to a table's name.
_VERSIONED = re.compile(r"(.+)_V[0-9]{1,6}")


def base_name(table: str) -> str:
    """Return a table's name without the version that some exporters append."""
    found = None if is_known(table) else _VERSIONED.fullmatch(table)
    return found[1] if found else table


def is_known(table: str) -> bool:
    """Tell whether it is settled what becomes of a table of this name."""
    return table in _COLUMNS or class_of(table) is not None


def class_of(table: str) -> str | None:
    """Return the class of a table that stays behind as a whole; None for any other."""
    families = (
        kind for name, kind in _CLASSES.items() if name[-1] == "*" and table.startswith(name[:-1])
    )
    return _CLASSES.get(table) or next(families, None)


def known_columns(table: str) -> frozenset[str]:
    """Return the columns of a table that are copied, or are known and stay behind."""
    return frozenset(name for columns in _COLUMNS.get(table, ()) for name in columns)

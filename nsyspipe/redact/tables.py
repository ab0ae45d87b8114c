"""What stays of each table that nsys exports, and to which class every other table belongs.

Compiled from the tables and columns of 22 real exports of 2020 to 2026, up to schema version 3.25.0.
"""

from __future__ import annotations

import re


def _table(names: str) -> frozenset[str]:
    return frozenset(names.split())


# Columns of whole numbers, copied where they are whole numbers.
NUMBERS: dict[str, tuple[str, ...]] = {
    table: tuple(columns.split())
    for table, columns in {
        "CUPTI_ACTIVITY_KIND_KERNEL": (
            "start end deviceId contextId streamId correlationId globalPid demangledName shortName launchType "
            "cacheConfig registersPerThread gridX gridY gridZ blockX blockY blockZ staticSharedMemory "
            "dynamicSharedMemory localMemoryPerThread localMemoryTotal gridId sharedMemoryExecuted graphNodeId "
            "sharedMemoryLimitConfig greenContextId graphId clusterX clusterY clusterZ"
        ),
        "CUPTI_ACTIVITY_KIND_MEMCPY": (
            "start end deviceId contextId streamId correlationId globalPid bytes copyKind srcKind dstKind "
            "srcDeviceId srcContextId dstDeviceId dstContextId graphNodeId greenContextId copyCount"
        ),
        "CUPTI_ACTIVITY_KIND_MEMSET": (
            "start end deviceId contextId streamId correlationId globalPid bytes graphNodeId memKind "
            "greenContextId"
        ),
        "CUPTI_ACTIVITY_KIND_GRAPH_TRACE": "start end deviceId contextId greenContextId streamId correlationId globalPid graphId graphExecId",
        "CUPTI_ACTIVITY_KIND_RUNTIME": "start end eventClass globalTid correlationId nameId returnValue",
        "CUPTI_ACTIVITY_KIND_SYNCHRONIZATION": (
            "start end deviceId contextId streamId correlationId globalPid syncType eventId greenContextId "
            "eventSyncId"
        ),
        "CUPTI_ACTIVITY_KIND_CUDA_EVENT": "deviceId contextId streamId correlationId globalPid eventId greenContextId eventSyncId timestamp",
        "PROFILER_OVERHEAD": "start end globalTid correlationId overheadType",
        "TARGET_INFO_SESSION_START_TIME": "utcEpochNs",
        "TARGET_INFO_CUDA_DEVICE": "gpuId cudaId pid numMultiprocessors",
        "TARGET_INFO_GPU": (
            "vmId id deviceId cuDevice isDiscrete l2CacheSize totalMemory memoryBandwidth clockRate smCount "
            "computeMajor computeMinor smMajor smMinor"
        ),
        "NVTX_EVENTS": "start end eventType rangeId category color globalTid endGlobalTid domainId",
        "NVTX_PAYLOAD_SCHEMAS": "domainId schemaId type flags numEntries payloadSize alignTo",
        "NVTX_PAYLOAD_SCHEMA_ENTRIES": "domainId schemaId idx flags type arrayOrUnionDetail offset",
        "NVTX_PAYLOAD_ENUMS": "domainId schemaId size",
    }.items()
}

# Columns that are copied value by value, after a look at each.
CHECKED: dict[str, tuple[str, ...]] = {
    "StringIds": ("id", "value"),
    "META_DATA_EXPORT": (
        "name",
        "value",
    ),
    "EXPORT_META_DATA": (
        "name",
        "value",
    ),
    "META_DATA_CAPTURE": (
        "name",
        "value",
    ),
    "TARGET_INFO_SYSTEM_ENV": (
        "name",
        "value",
    ),
    "TARGET_INFO_GPU": ("name",),
    "NVTX_EVENTS": (
        "textId",
        "text",
        "binaryData",
    ),
    "NVTX_PAYLOAD_SCHEMA_ENTRIES": ("name",),
}

# Known columns of these tables that stay behind.
_LEFT_OUT = {
    table: _table(columns)
    for table, columns in {
        "CUPTI_ACTIVITY_KIND_KERNEL": (
            "mangledName qmdBulkReleaseDone qmdPreexitDone qmdLastCtaDone clusterSchedulingPolicy "
            "maxPotentialClusterSize maxActiveClusters sharedMemoryRequestedPercentage "
            "tensorSizeMinusOneElements"
        ),
        "CUPTI_ACTIVITY_KIND_MEMCPY": "deprecatedSrcId migrationCause virtualAddress name",
        "CUPTI_ACTIVITY_KIND_MEMSET": "value",
        "CUPTI_ACTIVITY_KIND_RUNTIME": "callchainId name",
        "CUPTI_ACTIVITY_KIND_SYNCHRONIZATION": "deprecatedSyncType",
        "PROFILER_OVERHEAD": "nameId returnValue",
        "TARGET_INFO_SESSION_START_TIME": "utcTime localTime systemClockNs",
        "TARGET_INFO_CUDA_DEVICE": "uuid",
        "TARGET_INFO_GPU": (
            "busLocation pwGpuId uuid luid chipName ctxswDevPath ctrlDevPath revision nodeMask constantMemory "
            "maxIPC maxRegistersPerBlock maxShmemPerBlock maxShmemPerBlockOptin maxShmemPerSm maxRegistersPerSm "
            "threadsPerWarp asyncEngines maxWarpsPerSm maxBlocksPerSm maxThreadsPerBlock maxBlockDimX "
            "maxBlockDimY maxBlockDimZ maxGridDimX maxGridDimY maxGridDimZ"
        ),
        "NVTX_EVENTS": "uint64Value int64Value doubleValue uint32Value int32Value floatValue jsonTextId jsonText",
        "NVTX_PAYLOAD_SCHEMAS": "name",
        "NVTX_PAYLOAD_SCHEMA_ENTRIES": "description",
        "NVTX_PAYLOAD_ENUMS": "name numEntries",
        "TARGET_INFO_SYSTEM_ENV": "globalVid devStateName nameEnum",
    }.items()
}

# Tables that stay behind, by what they hold.
_DROPPED = {
    name: _table(tables)
    for name, tables in {
        "process list": "PROCESSES TARGET_INFO_PROCESS ThreadNames MPI_RANKS UCP_WORKERS",
        "program output and files": "ANALYSIS_FILE ANALYSIS_DETAILS ProcessStreams OSRT_FILE_ACCESS_DESCRIPTORS OSRT_FILE_ACCESS_EVENTS",
        "diagnostics": "DIAGNOSTIC_EVENT",
        "operating system calls, CPU samples and call chains": (
            "OSRT_API OSRT_CALLCHAINS CUDA_CALLCHAINS SAMPLING_CALLCHAINS COMPOSITE_EVENTS SCHED_EVENTS "
            "UnwindMethodType PERF_EVENT_CPU_METRIC_EVENT PERF_EVENT_CPU_RAW_EVENT PMU_EVENTS "
            "PMU_EVENT_COUNTERS PMU_EVENT_REQUESTS UNCORE_PMU_EVENTS UNCORE_PMU_EVENT_VALUES "
            "TARGET_INFO_PERF_METRIC TARGET_INFO_XMC_SPEC"
        ),
        "network and its devices": (
            "NET_IB_DEVICE_INFO NET_IB_DEVICE_PORT_INFO NET_IB_DEVICE_TYPE_MAP NET_IB_SWITCH_METRIC "
            "NET_NIC_METRIC NIC_ID_MAP TARGET_INFO_NETWORK_METRICS TARGET_INFO_NIC_INFO"
        ),
        "names of the values of payloads": "NVTX_PAYLOAD_ENUM_ENTRIES",
        "GPU metrics, contexts and streams": (
            "GPU_METRICS TARGET_INFO_GPU_METRICS GPU_CONTEXT_SWITCH_EVENTS FECS_EVENTS TARGET_INFO_CUDA_GPU "
            "TARGET_INFO_CUDA_CONTEXT_INFO TARGET_INFO_CUDA_NULL_STREAM TARGET_INFO_CUDA_STREAM "
            "TARGET_INFO_NVTX_CUDA_CONTEXT TARGET_INFO_NVTX_CUDA_DEVICE TARGET_INFO_NVTX_CUDA_STREAM"
        ),
        "calls of MPI, UCX, OpenACC, OpenMP, cuBLAS, cuDNN": (
            "CUBLAS_EVENTS CUDNN_EVENTS CUPTI_ACTIVITY_KIND_OPENACC_DATA CUPTI_ACTIVITY_KIND_OPENACC_LAUNCH "
            "CUPTI_ACTIVITY_KIND_OPENACC_OTHER MPI_COLLECTIVES_EVENTS MPI_COMMUNICATORS MPI_OTHER_EVENTS "
            "MPI_P2P_EVENTS MPI_START_WAIT_EVENTS OPENMP_EVENT_KIND_CANCEL OPENMP_EVENT_KIND_CRITICAL_SECTION "
            "OPENMP_EVENT_KIND_DISPATCH OPENMP_EVENT_KIND_FLUSH OPENMP_EVENT_KIND_LOCK_DESTROY "
            "OPENMP_EVENT_KIND_LOCK_INIT OPENMP_EVENT_KIND_MASTER OPENMP_EVENT_KIND_MUTEX_RELEASED "
            "OPENMP_EVENT_KIND_MUTEX_WAIT OPENMP_EVENT_KIND_PARALLEL OPENMP_EVENT_KIND_REDUCTION "
            "OPENMP_EVENT_KIND_SYNC_REGION OPENMP_EVENT_KIND_SYNC_REGION_WAIT OPENMP_EVENT_KIND_TASK "
            "OPENMP_EVENT_KIND_TASK_CREATE OPENMP_EVENT_KIND_TASK_SCHEDULE OPENMP_EVENT_KIND_THREAD "
            "OPENMP_EVENT_KIND_WORKSHARE UCP_EVENTS UCP_PROGRESS_EVENTS UCP_SUBMIT_EVENTS"
        ),
        "memory and graph events of CUDA": (
            "CUDA_GPU_MEMORY_POOL_EVENTS CUDA_GPU_MEMORY_USAGE_EVENTS CUDA_GRAPH_EVENTS CUDA_GRAPH_NODE_EVENTS "
            "CUDA_UM_CPU_PAGE_FAULT_EVENTS CUDA_UM_GPU_PAGE_FAULT_EVENTS CUPTI_ACTIVITY_KIND_OVERHEAD"
        ),
        "tables that nsys stats added": (
            "NvtxPushPopRanges DomainStrings MemcpyOperationStrings cudaAPIStats cudaKernelStats "
            "cudaMemoryOperationByteStats cudaMemoryOperationTimeStats estEnd me ms nvtxPushPopRangeStats "
            "osrtAPIStats"
        ),
        "graphics, video and Windows": (
            "D3D11_PIX_DEBUG_API D3D12_PIX_DEBUG_API DEMOTED_BYTES_EVENTS DX12_API DX12_MEMORY_OPERATION "
            "DX12_WORKLOAD ETW_EVENTS ETW_EVENTS_DEPRECATED_TABLE ETW_PROVIDERS ETW_TASKS GENERIC_EVENTS "
            "GENERIC_EVENT_SOURCES GENERIC_EVENT_TYPES GPU_MEMORY_BUDGET_EVENTS GPU_MEMORY_USAGE_EVENTS "
            "GPU_VIDEO_ENGINE_MISSING GPU_VIDEO_ENGINE_WORKLOAD KHR_DEBUG_EVENTS MEMORY_TRANSFER_EVENTS "
            "NVVIDEO_DECODER_API NVVIDEO_ENCODER_API NVVIDEO_JPEG_API NV_LOAD_BALANCE_EVENTS "
            "NV_LOAD_BALANCE_MASTER_EVENTS OPENGL_API OPENGL_WORKLOAD SLI_P2P SLI_QUERIES SLI_STATS "
            "TARGET_INFO_WDDM_CONTEXTS TOTAL_BYTES_RESIDENT_IN_SEGMENT_EVENTS TRACE_PROCESS_EVENT_NVMEDIA "
            "VULKAN_API VULKAN_DEBUG_API VULKAN_PIPELINE_CREATION_EVENTS VULKAN_PIPELINE_STAGE_EVENTS "
            "VULKAN_WORKLOAD WDDM_DMA_PACKET_INFO_EVENTS WDDM_DMA_PACKET_START_EVENTS "
            "WDDM_DMA_PACKET_STOP_EVENTS WDDM_EVICT_ALLOCATION_EVENTS WDDM_HW_QUEUE_EVENTS "
            "WDDM_PAGING_QUEUE_PACKET_INFO_EVENTS WDDM_PAGING_QUEUE_PACKET_START_EVENTS "
            "WDDM_PAGING_QUEUE_PACKET_STOP_EVENTS WDDM_QUEUE_PACKET_INFO_EVENTS WDDM_QUEUE_PACKET_START_EVENTS "
            "WDDM_QUEUE_PACKET_STOP_EVENTS"
        ),
    }.items()
}
_CLASSES = {table: name for name, tables in _DROPPED.items() for table in tables}
# Names of the values of columns; each release of nsys has more of them.
_CONSTANTS, _CONSTANTS_CLASS = "ENUM_", "nsys's own names of constants"

# Some exporters append a version to a table's name.
_VERSIONED = re.compile(r"(.+)_V[0-9]{1,6}")


def base_name(table: str) -> str:
    """Return a table's name without the version that some exporters append."""
    found = None if is_known(table) else _VERSIONED.fullmatch(table)
    return found[1] if found else table


def is_known(table: str) -> bool:
    """Tell whether it is settled what becomes of a table of this name."""
    return table in NUMBERS or table in CHECKED or class_of(table) is not None


def class_of(table: str) -> str | None:
    """Return the class of a table that stays behind as a whole; None for any other."""
    return _CONSTANTS_CLASS if table.startswith(_CONSTANTS) else _CLASSES.get(table)


def known_columns(table: str) -> frozenset[str]:
    """Return the columns of a table that are copied, or are known and stay behind."""
    copied = (*NUMBERS.get(table, ()), *CHECKED.get(table, ()))
    return _LEFT_OUT.get(table, frozenset()).union(copied)

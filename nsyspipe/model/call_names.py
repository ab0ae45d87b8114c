"""Names of CUDA API calls, and which of them manage memory of a GPU."""

import re
from collections.abc import Iterable

import pyarrow as pa
import pyarrow.compute as pc

# Calls of the runtime end with _ptsz_v7000, calls of the driver with _v2_ptsz.
_API_VERSION = re.compile(r"(?:_v[0-9]+|_ptsz|_ptds)+$")
# Calls that take memory from a pool of CUDA, such as cudaMallocAsync, are not among them: they wait
# for nothing, and a program may make one for each tensor.
ALLOCATING = frozenset(
    {
        "cudaMalloc",
        "cudaMalloc3D",
        "cudaMalloc3DArray",
        "cudaMallocArray",
        "cudaMallocManaged",
        "cudaMallocMipmappedArray",
        "cudaMallocPitch",
        "cuMemAlloc",
        "cuMemAllocManaged",
        "cuMemAllocPitch",
        "cuMemCreate",
    }
)
FREEING = frozenset(
    {"cudaFree", "cudaFreeArray", "cudaFreeMipmappedArray", "cuMemFree", "cuMemRelease"}
)
# They make memory of cuMemCreate usable, and unusable again.
_MAPPING = frozenset({"cuMemMap", "cuMemSetAccess", "cuMemUnmap"})
MANAGING_MEMORY = ALLOCATING | FREEING | _MAPPING
# How these names begin.
MEMORY_PREFIXES = ("cudaMalloc", "cudaFree", "cuMem")


def without_version(name: str) -> str:
    """Return the name of a call without the version of the API at its end."""
    return _API_VERSION.sub("", name)


def are_named(calls: pa.StringArray, names: Iterable[str]) -> pa.BooleanArray:
    """Tell which calls have one of some names."""
    value_set = pa.array(sorted(names))
    return pc.is_in(calls, value_set=value_set)

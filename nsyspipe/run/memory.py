"""How much memory the GPU of each rank has, and how much of it torch used."""

from __future__ import annotations

from nsyspipe.model.captured import MemoryPeaks
from nsyspipe.run.digests import Rank
from nsyspipe.run.process import ProcessDigest
from nsyspipe.run.sidecars import RunSidecars


def memory_of_rank(rank: Rank[ProcessDigest], sidecars: RunSidecars) -> dict[str, int | None]:
    """Return the columns of `schema.RANKS` about memory. What is not known is None.

    Torch's peaks are those of one device of a process. If a process uses several devices, it is not
    known which one has them.
    """
    process = rank.process
    facts = rank.report.facts
    total = facts.gpu_memory(process.pid, process.device_id)
    uses_several_devices = len(process.device_ids) > 1
    peaks = MemoryPeaks() if uses_several_devices else _peaks_of_rank(rank, sidecars)
    return {
        "gpu_memory_bytes": total,
        "peak_allocated_bytes": peaks.peak_allocated_bytes,
        "peak_reserved_bytes": peaks.peak_reserved_bytes,
        "headroom_bytes": _headroom(total, peaks.peak_reserved_bytes),
        "n_alloc_retries": peaks.allocator_retries,
    }


def _headroom(total: int | None, reserved: int | None) -> int | None:
    """Return the memory that torch never reserved; None if a sidecar claims more than there is."""
    if total is None or reserved is None or reserved > total:
        return None
    return total - reserved


def _peaks_of_rank(rank: Rank[ProcessDigest], sidecars: RunSidecars) -> MemoryPeaks:
    """Return the peaks of a rank at the end of its last capture with known peaks.

    Torch does not reset peaks between captures, so the last ones are the largest.
    """
    for part in reversed(rank.parts):
        entry = sidecars.rank_of(part.argument, part.process.pid, is_alone=part.is_alone)
        if entry is not None and entry.memory is not None:
            return entry.memory
    return MemoryPeaks()

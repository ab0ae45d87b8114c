"""What a process without device activity comes down to: its step ranges and the phases in them, on the host.

Only reports without any device activity are asked. Their ranges were read anyway.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from nsyspipe import schema
from nsyspipe.attribution import distinct, operations_of
from nsyspipe.families import Candidate, TextFamilies, candidates, choose_host, members_of
from nsyspipe.intervals import grouped_lengths
from nsyspipe.labels import PHASES, step_number
from nsyspipe.phases import phase_ranges
from nsyspipe.read.rows import pid_of

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from nsyspipe.attribution import ProcessOperations
    from nsyspipe.read.ranges import Ranges

    Int64 = NDArray[np.int64]

__all__ = ["HostDigest", "HostFamilies", "digest_hosts", "host_families"]


@dataclass(frozen=True)
class HostDigest:
    """One process with ranges of its own and without device activity.

    Attributes
    ----------
    candidates
        Every family of ranges on it, largest first.
    members
        One row per step range: ``number`` (null: not exactly one integer in the text), ``start_ns`` and ``end_ns`` in
        report time, ``is_complete``, and for each phase ``<phase>_ns`` (null: none of it on this process).
    """

    process_id: int
    candidates: tuple[Candidate, ...]
    members: pa.Table

    @property
    def pid(self) -> int:
        """The operating system's process id."""
        return pid_of(self.process_id)

    @property
    def device_id(self) -> None:
        """There is no device."""

    @property
    def span(self) -> tuple[int, int]:
        """First start and last end of its steps, report time, ns; asked only where there are any."""
        bounds = pc.min_max(self.members["start_ns"]), pc.min_max(self.members["end_ns"])
        return bounds[0]["min"].as_py(), bounds[1]["max"].as_py()


@dataclass(frozen=True)
class HostFamilies:
    """The ranges of each process of a report without device activity, and the families that they form."""

    ranges: dict[int, pa.Table]
    candidates: dict[int, list[Candidate]]

    @property
    def best(self) -> str | None:
        """The step family if this report were alone."""
        return choose_host([list(self.candidates.values())], [0])


def host_families(ranges: Ranges, families: TextFamilies) -> HostFamilies:
    """Measure every family on every process of a report without device activity."""
    nothing = _no_operations()
    processes = sorted(distinct(ranges.table["process_id"]).tolist())
    split = {
        process: ranges.table.filter(pc.equal(ranges.table["process_id"], process))
        for process in processes
    }
    found = {process: candidates(own, families, nothing) for process, own in split.items()}
    kept = {process: own for process, own in found.items() if own}
    return HostFamilies({process: split[process] for process in kept}, kept)


def digest_hosts(
    found: HostFamilies,
    families: TextFamilies,
    codes: Int64,
    *,
    family: str | None,
    open_end_ns: int | None,
) -> tuple[HostDigest, ...]:
    """Reduce each process to its digest.

    Parameters
    ----------
    codes
        `phases.phase_codes` of the ranges' dictionary.
    family
        The step family; a process that lacks it has no members.
    open_end_ns
        The end that ranges got which were never closed; None when all were.
    """
    digests = []
    for process, own in found.candidates.items():
        candidate = next((one for one in own if one.name == family), None)
        members = (
            _NO_MEMBERS
            if candidate is None
            else _members(found.ranges[process], families, codes, candidate, open_end_ns)
        )
        digests.append(HostDigest(process, tuple(own), members))
    return tuple(digests)


_NO_MEMBERS = pa.table(
    {
        name: pa.array([], pa.bool_() if name == "is_complete" else pa.int64())
        for name in (
            "number",
            "start_ns",
            "end_ns",
            "is_complete",
            *(f"{phase}_ns" for phase in PHASES),
        )
    }
)


def _members(
    ranges: pa.Table,
    families: TextFamilies,
    codes: Int64,
    candidate: Candidate,
    open_end_ns: int | None,
) -> pa.Table:
    members = members_of(ranges, families, candidate)
    texts = ranges["text"].take(pa.array(members.rows)).to_pylist()
    n_members = members.starts.size
    phases = {
        f"{phase}_ns": pa.array(grouped_lengths(one.member, one.starts, one.ends, n_members))
        if one.starts.size
        else pa.nulls(n_members, pa.int64())
        for phase, one in phase_ranges(ranges, codes, members).items()
    }
    # Such an end lies behind all that were recorded.
    never_closed = members.ends == open_end_ns if open_end_ns is not None else np.zeros(n_members)
    return pa.table(
        {
            "number": pa.array([step_number(text) for text in texts], pa.int64()),
            "start_ns": members.starts,
            "end_ns": members.ends,
            "is_complete": pa.array(~np.asarray(never_closed, np.bool_)),
            **phases,
        }
    )


def _no_operations() -> ProcessOperations:
    never = np.empty(0, np.int64)
    return operations_of(schema.KERNELS.empty(), never, schema.COPIES.empty(), never)

"""What the files beside a run's reports say: those that its sidecars name, else those that have the reports' name and fit them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from nsyspipe.model.side_files import Sidecar
from nsyspipe.reader.beside import (
    Candidates,
    FilesBeside,
    RunProcess,
    read_logs_beside,
    read_topology_beside,
)
from nsyspipe.reader.sidecar import read_beside

if TYPE_CHECKING:
    from nsyspipe.run.digests import ReportDigest


def files_beside(
    found: Candidates,
    digests: Sequence[ReportDigest],
    sidecars: Sequence[Sidecar],
    *,
    wants_log: bool,
    wants_topology: bool,
) -> FilesBeside:
    """Read what was not given from the files beside the reports; what cannot be used is a problem, never an error."""
    log, topology, problems = read_beside(
        sidecars, wants_log=wants_log, wants_topology=wants_topology
    )
    answer = FilesBeside(log, topology, problems)
    if wants_log and log is None and found.logs:
        of_logs = read_logs_beside(found.logs, _processes(digests))
        answer.log = of_logs.log
        answer.problems += of_logs.problems
    if wants_topology and topology is None and found.topologies:
        of_topology = read_topology_beside(found.topologies, _gpus(digests))
        answer.topology = of_topology.topology
        answer.problems += of_topology.problems
    return answer


def _processes(digests: Sequence[ReportDigest]) -> set[RunProcess]:
    return {
        RunProcess(process.pid, digest.facts.host)
        for digest in digests
        for process in (*digest.processes, *digest.hosts)
    }


def _gpus(digests: Sequence[ReportDigest]) -> set[int]:
    """Return the GPUs that the reports' hosts have, by the index that a topology gives them too."""
    return {gpu for digest in digests for gpu in digest.facts.gpu_names}

"""The log, topology and files of NCCL Inspector in the directories of a run's reports.

Log and topology are those that the sidecars of the run name, else those that have the name of the
run and fit its reports. Files of NCCL Inspector are those of the processes of the run.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from nsyspipe.model.side_files import Sidecar
from nsyspipe.reader.beside import (
    Candidates,
    FilesBeside,
    RunProcess,
    read_inspected_beside,
    read_logs_beside,
    read_topology_beside,
)
from nsyspipe.reader.sidecar import read_beside

if TYPE_CHECKING:
    from nsyspipe.run.digests import ReportDigest


def files_beside(
    candidates: Candidates,
    digests: Sequence[ReportDigest],
    sidecars: Sequence[Sidecar],
    *,
    wants_log: bool,
    wants_topology: bool,
) -> FilesBeside:
    """Read the files of a run that lie beside its reports.

    The log and the topology are read only if the user did not pass them (`wants_log` and
    `wants_topology`). Files that the sidecars name have priority over the candidates. A file that
    cannot be used is a problem, never an error.
    """
    log, topology, problems = read_beside(
        sidecars, wants_log=wants_log, wants_topology=wants_topology
    )
    # First the files that sidecars name, to which candidates are added.
    files = FilesBeside(log, topology, problems)
    lacks_log = wants_log and log is None
    lacks_topology = wants_topology and topology is None
    if lacks_log and candidates.logs:
        processes = _processes(digests)
        files_with_log = read_logs_beside(candidates.logs, processes)
        files.log = files_with_log.log
        files.problems += files_with_log.problems
    if lacks_topology and candidates.topologies:
        gpus = _gpus(digests)
        files_with_topology = read_topology_beside(candidates.topologies, gpus)
        files.topology = files_with_topology.topology
        files.problems += files_with_topology.problems
    if candidates.inspected:
        files_of_inspector = read_inspected_beside(candidates.inspected, _processes(digests))
        files.inspected = files_of_inspector.inspected
        files.problems += files_of_inspector.problems
    return files


def _processes(digests: Sequence[ReportDigest]) -> set[RunProcess]:
    """Return the processes of all reports, with and without GPU activity."""
    processes: set[RunProcess] = set()
    for digest in digests:
        host = digest.facts.host
        for process in (*digest.processes, *digest.hosts):
            processes.add(RunProcess(process.pid, host))
    return processes


def _gpus(digests: Sequence[ReportDigest]) -> set[int]:
    """Return the indices of the GPUs of all hosts, as a topology has them too."""
    return {gpu for digest in digests for gpu in digest.facts.gpu_names}

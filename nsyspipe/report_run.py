"""A run that is read from its reports, and the evidence that its rules judge.

The reports are read once, when a table is first asked for. The run never changes.
"""

import hashlib
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import cached_property
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
from msgspec.structs import replace

from nsyspipe.analysis.counters import Series
from nsyspipe.analysis.links import LinkVerdict, links
from nsyspipe.analysis.steps import REPETITION
from nsyspipe.analysis.summary import phase_summary, rank_summary, summary
from nsyspipe.findings.judge import judge
from nsyspipe.findings.model import Evidence, Recording
from nsyspipe.findings.slow_link import judge_link
from nsyspipe.model import schema
from nsyspipe.model.names import few
from nsyspipe.model.options import Reading
from nsyspipe.model.problems import IN_GRAPHS, Problem, SkippedCheck, problem
from nsyspipe.model.side_files import NcclFacts, NcclLog
from nsyspipe.model.user_paths import ReportFile, UserPath
from nsyspipe.model.work import NOTHING_ASKED, AskedWork
from nsyspipe.nsys.command_words import joined_environments
from nsyspipe.nsys.find_reports import display_names, label_of
from nsyspipe.reader.beside import Candidates, FilesBeside, find_beside
from nsyspipe.reader.fabric import read_nccl_logs, read_topology
from nsyspipe.reader.facts import ReportFacts
from nsyspipe.reader.report import FileState
from nsyspipe.reader.sidecar import FoundSidecars, read_sidecars
from nsyspipe.reader.tables import release_memory
from nsyspipe.run.assemble import RunTables, merge
from nsyspipe.run.beside import files_beside
from nsyspipe.run.collectives import collectives_table
from nsyspipe.run.digests import ReportDigest
from nsyspipe.run.gather import Gathered, gather
from nsyspipe.run.nccl_peers import PeerTraffic, peer_traffic
from nsyspipe.run.nccl_tunings import problem_of_tunings
from nsyspipe.run.ranks import ChosenRanks, n_unrecorded_ranks, run_sizes
from nsyspipe.run.run import AskedRanks, AskedSteps, Run, RunHeader, steps_source
from nsyspipe.run.run_problems import problems_table
from nsyspipe.run.timeline_lanes import counter_bars_table, line_bars_table
from nsyspipe.run.traffic import traffic_table

# A problem names this many reports.
_MAX_REPORTS_SHOWN = 4
_FINDING_TEXTS = ("title", "action", "advice")
# Fields of `RunHeader` of which each report has several values.
_LISTED_FACTS = (
    "driver_versions",
    "cuda_driver_versions",
    "traced_events",
    "cuda_graph_traces",
    "cuda_traces",
    "python_samplings",
    "commands",
)
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class _RunLinks(NamedTuple):
    """What connects the ranks, and problems with the log and topology."""

    # `schema.LINKS`, or None if no log and no topology is of this run.
    table: pa.Table | None
    problems: list[Problem]


@dataclass(frozen=True, repr=False, eq=False)
class ReportRun(Run):
    """A run that is read from its reports: one report per rank, or several ranks in a report."""

    paths: tuple[ReportFile, ...]
    reading: Reading
    skip_first: int | None = None
    rank_map: Mapping[str, int] | None = None
    # The ranks whose reports the paths are, None if all reports are read.
    chosen: ChosenRanks | None = None
    jobs: int | None = None
    given_label: str | None = None
    given_run_id: str | None = None
    nccl_logs: tuple[UserPath, ...] = ()
    topology: UserPath | None = None
    # What the user says that a step works on.
    work: AskedWork = NOTHING_ASKED
    # Whether to look in the directories of the reports for a log or topology that was not passed.
    looks_beside: bool = True
    executor: Executor | None = None
    on_progress: Callable[[int, int], None] | None = None

    @property
    def inputs(self) -> tuple[Path, ...]:
        # No output may overwrite any of these files. A report may have been read from its export
        # in the cache. Then the export counts too.
        exports = (report.path for report in self.paths)
        logs = (log.path for log in self.nccl_logs)
        found_files = (*self._sidecars.paths, *self._candidates.paths)
        paths = (*self._report_paths, *exports, *logs, *found_files)
        if self.topology is None:
            return paths
        return (*paths, self.topology.path)

    def __getstate__(self) -> dict[str, Any]:
        """Return the state of a copy, without the executor and callback of this process."""
        return vars(self) | {"executor": None, "on_progress": None}

    @cached_property
    def _report_paths(self) -> list[Path]:
        """The reports themselves, also if their exports are in a cache."""
        return [report.source for report in self.paths]

    @cached_property
    def _sidecars(self) -> FoundSidecars:
        return read_sidecars(self._report_paths)

    @cached_property
    def _passed_files(self) -> FilesBeside:
        """The NCCL log and the topology that the user passed, each None if the user did not."""
        log = read_nccl_logs(self.nccl_logs) if self.nccl_logs else None
        topology = read_topology(self.topology) if self.topology else None
        return FilesBeside(log, topology)

    @cached_property
    def _gathered(self) -> Gathered:
        """What was read from the reports. `_tables` replaces it by a smaller object."""
        # Reading the reports takes long, so an unusable log or topology raises its error first.
        _ = self._passed_files
        return gather(
            self.paths,
            self.reading,
            self._sidecars,
            jobs=self.jobs,
            executor=self.executor,
            on_progress=self.on_progress,
        )

    @cached_property
    def _candidates(self) -> Candidates:
        return find_beside(self._report_paths) if self.looks_beside else Candidates()

    @cached_property
    def _side_files(self) -> FilesBeside:
        """The log and the topology of the run, and the problems with the files that were found.

        A file that the user passed wins over a file that was found beside the reports.
        """
        passed = self._passed_files
        if not self.looks_beside:
            return passed
        gathered = self._gathered
        wants_log = passed.log is None
        wants_topology = passed.topology is None
        files = files_beside(
            self._candidates,
            gathered.digests,
            gathered.sidecars.sidecars,
            wants_log=wants_log,
            wants_topology=wants_topology,
        )
        log = passed.log or files.log
        topology = passed.topology or files.topology
        return FilesBeside(log, topology, files.problems, files.inspected)

    @cached_property
    def _log(self) -> NcclLog | None:
        """What the NCCL log says of this run; None without a log, or if it is of another run."""
        log = self._side_files.log
        if log is None:
            return None
        gathered = self._gathered
        processes = chain.from_iterable(digest.processes for digest in gathered.digests)
        pids = {process.pid for process in processes}
        return log.of_run(pids, run_sizes(gathered))

    @cached_property
    def _tables(self) -> RunTables:
        """The tables of the whole run, merged from what was read of each report."""
        # If the user chose ranks, reports of other ranks exist that are not read.
        ranks_of_run = self.chosen.ranks_of_all_reports if self.chosen else frozenset()
        tables = merge(
            self._gathered, self.rank_map, self.skip_first, self._log, ranks_of_run, work=self.work
        )
        # Thousands of digests take more memory than the tables. `merge` returns smaller digests,
        # without the rows that are now in the tables. They replace the cached ones.
        vars(self)["_gathered"] = tables.gathered
        ranks = tables.ranks
        # Only now it is known whether the reports are of the ranks that their names say.
        if self.chosen and ranks.num_rows:
            process_ranks = ranks["process_rank"].to_pylist()
            rank_source = ranks["rank_source"][0].as_py()
            self.chosen.check(process_ranks, rank_source)
        return tables

    @cached_property
    def _run_links(self) -> _RunLinks:
        """The links between ranks by log and topology, and the problems with these two files."""
        log = self._log
        topology = self._side_files.topology
        problems = [*self._problems_of_log(), *self._side_files.problems]
        if log is None and topology is None:
            return _RunLinks(None, problems)
        ranks = self.ranks
        gpu_name_of_rank = _by_rank(ranks, ranks["gpu_name"])
        local_rank_of_rank = _by_rank(ranks, self._local_ranks())
        host_of_rank = _by_rank(ranks, ranks["host"])
        table, absent_gpus = links(
            log,
            topology,
            gpu_name_of_rank,
            n_ranks=self._tables.n_job_ranks or ranks.num_rows,
            local_ranks=local_rank_of_rank,
            hosts=host_of_rank,
            pids=ranks["pid"].to_pylist(),
        )
        if absent_gpus:
            gpus = ", ".join(map(str, absent_gpus))
            of_another_machine = problem("topology-of-another-machine", gpus=gpus)
            problems = [of_another_machine, *problems]
        return _RunLinks(table, problems)

    def _problems_of_log(self) -> list[Problem]:
        """Return the problem of the NCCL log: it does not cover this run, or not all of it.

        The list is empty without a log, or if all processes of the run are in the log.
        """
        log = self._log
        n_ranks = self.ranks.num_rows
        if log is None:
            # `_log` has left out a log of another run.
            is_log_left_out = self._side_files.log is not None
            if not is_log_left_out or n_ranks == 0:
                return []
            sizes = " or ".join(map(str, run_sizes(self._gathered)))
            return [problem("log-of-another-run", sizes=sizes)]
        if not log.communicators:
            # One rank needs no communicator.
            return [problem("log-without-communicators")] if n_ranks > 1 else []
        members = chain.from_iterable(comm.members for comm in log.communicators)
        pids = {*self.ranks["pid"].to_pylist()}
        logged_pids = pids.intersection(member.pid for member in members)
        if logged_pids == pids:
            return []
        code = "log-of-some-processes" if logged_pids else "log-of-other-processes"
        return [problem(code, n=len(logged_pids), total=len(pids))]

    def _local_ranks(self) -> pa.ChunkedArray:
        """Return the number of each rank's GPU on its host, in order of the ranks."""
        ranks = self.ranks
        # Each GPU of a process is a rank. If a process has several, its local rank is the number of
        # the process on its host, and not of a GPU.
        has_process_with_several_gpus = self._tables.n_processes < ranks.num_rows
        if has_process_with_several_gpus:
            return ranks["device_id"]
        return pc.coalesce(ranks["local_rank"], ranks["device_id"])

    @cached_property
    def _evidence(self) -> Evidence:
        """What the rules of findings judge."""
        tables = self._tables
        reports = [digest.facts for digest in self._gathered.digests]
        has_graphs = any(problem.code == IN_GRAPHS for problem in tables.problems)
        are_groups_known = tables.cross_rank.doubt is None
        nccl_settings = None if self._log is None else self._log.settings
        return Evidence(
            **self._evidence_of_tables(),
            **self._evidence_of_ranks(),
            is_capture=tables.is_capture,
            is_graph_replayed=has_graphs,
            are_groups_known=are_groups_known,
            blocked_ns_by_call=_blocked_without_copies(tables.idle_calls),
            skipped_steps=tuple(self.skipped_steps),
            environment=self.header.training_variables,
            recording=_recording(reports),
            nccl_settings=nccl_settings,
        )

    def _evidence_of_tables(self) -> dict[str, Any]:
        """Return the tables of the run, by field of `Evidence`."""
        tables = self._tables
        (summary_row,) = self.summary().to_pylist()
        evidence = {"summary": summary_row, "steps": self.breakdown(), "traffic": self.traffic()}
        evidence["all_steps"] = tables.steps
        evidence["phases"] = self._phases_of_summary_steps
        evidence["all_collectives"] = tables.collectives
        evidence["stragglers"] = tables.stragglers
        evidence["kernels"] = tables.kernels
        evidence["counters"] = tables.counters
        evidence["host_lines"] = tables.host_lines
        evidence["python_samples_per_s"] = self.header.python_samples_per_s
        evidence["lock_waits"] = tables.lock_waits
        evidence["are_lines_left_out"] = not self.reading.with_lines
        evidence["links"] = self._run_links.table
        return evidence

    def _evidence_of_ranks(self) -> dict[str, Any]:
        """Return the fields of `Evidence` about ranks: their number, hosts, GPUs and clocks."""
        tables = self._tables
        ranks = tables.ranks
        n_known_hosts = pc.count_distinct(ranks["host"]).as_py()
        host_of_rank = _by_rank(ranks, ranks["host"])
        known_hosts = {rank: host for rank, host in host_of_rank.items() if host is not None}
        # Null if the error of any clock is not known.
        max_clock_error_ns = pc.max(ranks["clock_error_ns"], skip_nulls=False)
        n_retries_of_rank = _by_rank(ranks, ranks["n_alloc_retries"])
        known_retries = {rank: n for rank, n in n_retries_of_rank.items() if n is not None}
        return {
            "n_ranks": ranks.num_rows,
            # The number of ranks, not of the processes that the launcher counts.
            "world_size": tables.n_job_ranks,
            # There is at least one host, even if no report has its name.
            "n_hosts": max(n_known_hosts, 1),
            "hosts": known_hosts,
            "alloc_retries": known_retries,
            "clock_error_ns": max_clock_error_ns.as_py(),
            "gpu_names": tuple(self.header.gpu_names),
        }

    @cached_property
    def _judgement(self) -> tuple[pa.Table, list[Problem]]:
        """The findings, with the names of ranks in their texts, and why rules could not judge."""
        findings, problems = judge(self._evidence)
        rank_names = self.rank_names
        if not rank_names.names:
            return findings, problems
        rows = findings.to_pylist()
        for row in rows:
            row |= {name: rank_names.in_text(row[name]) for name in _FINDING_TEXTS}
        return schema.FINDINGS.from_rows(rows), problems

    @property
    def skipped_checks(self) -> tuple[SkippedCheck, ...]:
        _, problems_of_rules = self._judgement
        rank_names = self.rank_names
        checks = []
        for problem_of_rule in problems_of_rules:
            check = problem_of_rule.skipped_check
            if check is not None:
                reason = rank_names.in_text(check.reason)
                checks.append(replace(check, reason=reason))
        return tuple(checks)

    @property
    def _phases_of_summary_steps(self) -> pa.Table:
        phases = self._tables.phases
        summary_steps = pa.array(self._tables.selection.steps, pa.int64())
        return phases.filter(pc.is_in(phases["step"], value_set=summary_steps))

    def _make(self, name: str) -> pa.Table:
        """Return the table with a name of `schema.RUN_TABLES`."""
        tables = self._tables
        # A table takes much memory while it is made. Python keeps the memory that earlier work has
        # freed, so it is given back first.
        release_memory()
        is_capture = tables.is_capture
        match name:
            case "collectives":
                ranks = tables.ranks["rank"].to_pylist()
                table = collectives_table(
                    tables.cross_rank,
                    ranks,
                    tables.selection.steps,
                    tables.counted,
                    inspected=self._side_files.inspected,
                )
            case "summary":
                table = summary(tables.steps, tables.collectives, is_capture=is_capture)
            case "rank_summary":
                table = rank_summary(
                    tables.steps, tables.collectives, tables.ranks, is_capture=is_capture
                )
            case "phase_summary":
                table = phase_summary(self._phases_of_summary_steps)
            case "traffic":
                table = traffic_table(tables.cross_rank, tables.steps, is_capture=is_capture)
            case "links" | "peers":
                table = self._of_side_files(name)
            case "findings":
                table = self.judged_findings()
            case "problems":
                table = problems_table(map(self._with_rank_names, self._problems()))
            case "timeline" | "counter_bars" | "line_bars":
                table = self._drawn(name)
            case _:
                # `merge` has made the other tables.
                table = getattr(tables, name)
        return table

    def _of_side_files(self, name: str) -> pa.Table:
        if name == "peers":
            return self._peer_traffic.table
        links_table = self._run_links.table
        return schema.LINKS.empty() if links_table is None else links_table

    def _drawn(self, name: str) -> pa.Table:
        """Return what is drawn of the representative step: its timeline, or what was sampled."""
        if name == "timeline":
            return self._timeline()
        drawn_step = self._drawn_step()
        if drawn_step is None:
            return schema.RUN_TABLES[name].empty()
        return self._lanes_of(name, drawn_step)

    def _lanes_of(self, name: str, drawn: schema.DrawnStep) -> pa.Table:
        """Return table ``counter_bars`` or ``line_bars`` of the step that is drawn."""
        tables = self._tables
        if name == "counter_bars":
            return counter_bars_table(tables.counted, tables.steps, drawn)
        return line_bars_table(tables.sampled, tables.steps, drawn, tables.host_lines)

    def counter_samples(self, rank: int) -> Mapping[str, Series]:
        counters = self._tables.counted.by_rank.get(rank)
        return counters.series if counters else {}

    def _problems(self) -> list[Problem]:
        _, problems_of_rules = self._judgement
        problems = [*self._tables.problems, *self._run_links.problems]
        problems += self._problems_of_inspector()
        return [*problems, *problems_of_rules, *self._stale()]

    def _problems_of_inspector(self) -> list[Problem]:
        """Return the problems of records of NCCL Inspector that fit no operations or no ranks."""
        rows = self._tables.cross_rank.rows
        of_tunings = problem_of_tunings(rows, self._side_files.inspected)
        of_peers = self._peer_traffic.problem
        return [row for row in (of_tunings, of_peers) if row is not None]

    @cached_property
    def _peer_traffic(self) -> PeerTraffic:
        return peer_traffic(self.ranks, self._side_files.inspected, self._log)

    @property
    def has_peer_records(self) -> bool:
        inspected = self._side_files.inspected
        return inspected is not None and bool(inspected.processes)

    def _with_rank_names(self, problem: Problem) -> Problem:
        if not self.rank_names.names:
            return problem
        return replace(problem, message=self.rank_names.in_text(problem.message))

    def _stale(self) -> list[Problem]:
        """Return the problem that reports have changed since they were read; empty if none has."""
        names_of_changed = [
            digest.file.source.name
            for digest in self._gathered.digests
            if not _is_as_read(digest.file, digest.facts.file_state)
        ]
        if not names_of_changed:
            return []
        reports = few(names_of_changed, _MAX_REPORTS_SHOWN)
        return [problem("reports-changed", reports=reports)]

    @cached_property
    def header(self) -> RunHeader:
        digests = self._gathered.digests
        names = display_names(self.paths)
        reports = [digest.facts for digest in digests]
        start = _earliest_start(reports)
        run_id = self.given_run_id or _run_id(digests, start)
        label = self.given_label or self._capture_name() or label_of(names)
        return RunHeader(
            run_id=run_id,
            label=label,
            captured_at_utc=_in_iso_8601(start),
            reports=[*names],
            capture=self._gathered.sidecars.facts,
            **self._facts_of_ranks(),
            **_facts_of_reports(reports),
        )

    def _facts_of_ranks(self) -> dict[str, Any]:
        """Return the fields of `RunHeader` that the tables of the run have."""
        gathered = self._gathered
        tables = self._tables
        ranks = tables.ranks
        n_ranks = ranks.num_rows
        n_host_steps = tables.host_steps.num_rows
        n_unrecorded = n_unrecorded_ranks(gathered.digests) if n_ranks else None
        facts: dict[str, Any] = {"n_ranks": n_ranks}
        facts["n_processes"] = tables.n_processes
        facts["n_processes_without_kernels"] = n_unrecorded
        facts["world_size"] = tables.world_size
        facts["gpu_names"] = _distinct(ranks["gpu_name"].to_pylist())
        facts["hosts"] = _distinct(ranks["host"].to_pylist())
        facts["steps_from"] = steps_source(n_ranks, n_host_steps, gathered.family)
        return facts

    def _capture_name(self) -> str | None:
        """Return the name of the capture in the sidecars; None if any report has no sidecar."""
        sidecars = self._gathered.sidecars
        has_each_report_a_sidecar = len(sidecars.by_argument) == len(self.paths)
        return sidecars.facts.name if sidecars.facts and has_each_report_a_sidecar else None

    @property
    def run_id(self) -> str:
        """What distinguishes the run from others, as in its header."""
        return self.header.run_id

    @property
    def nccl(self) -> NcclFacts | None:
        return None if self._log is None else self._log.facts

    @cached_property
    def link(self) -> LinkVerdict | None:
        has_links = self.ranks.num_rows and self.links().num_rows
        return judge_link(self._evidence) if has_links else None

    @property
    def step_family(self) -> str | None:
        family = self._gathered.family
        # No NVTX range marks these steps.
        if family == REPETITION:
            return None
        # If the user passed an expression for step ranges, it says more than what it matched.
        return self.reading.step.pattern if family and self.reading.step else family

    @property
    def skipped_steps(self) -> list[int]:
        return [int(step) for step in self._tables.selection.skipped]

    def judged_findings(self) -> pa.Table:
        findings, _ = self._judgement
        return findings

    def operations(
        self, steps: AskedSteps = None, ranks: AskedRanks = None
    ) -> Iterator[schema.OfRank]:
        from nsyspipe.run.operations import run_operations  # noqa: PLC0415 - few ask for it

        chosen_ranks = self.chosen_ranks(ranks)
        return run_operations(
            self._tables,
            self.reading,
            chosen_ranks,
            steps=steps,
            jobs=self.jobs,
            executor=self.executor,
        )

    def __repr__(self) -> str:
        # Only a run that was read already shows more, because reading takes long.
        if "_tables" in self.__dict__:
            return super().__repr__()
        n_reports = len(self.paths)
        noun = "report" if n_reports == 1 else "reports"
        return f"<Run of {n_reports} {noun}, not read yet>"


def _by_rank(ranks: pa.Table, column: pa.ChunkedArray) -> dict[int, Any]:
    """Return the values of a column of `schema.RANKS` by rank number."""
    numbers = ranks["rank"].to_pylist()
    return dict(zip(numbers, column.to_pylist(), strict=True))


def _blocked_without_copies(calls: pa.Table) -> dict[str, float]:
    """Return the idle time per step in ns that each blocking call causes, the largest first.

    Idle time of blocking copies from the host is left out, and so are calls without other idle
    time. Calls of equal times are in alphabetical order.
    """
    without_copies_ns = pc.subtract(calls["blocked_ns_per_step"], calls["of_copies_ns_per_step"])
    names = calls["call"].to_pylist()
    idle_ns_of_call = dict(zip(names, without_copies_ns.to_pylist(), strict=True))
    alphabetical = sorted(call for call, idle_ns in idle_ns_of_call.items() if idle_ns > 0)
    # The sort is stable, so calls of equal times stay in alphabetical order.
    longest_first = sorted(alphabetical, key=idle_ns_of_call.__getitem__, reverse=True)
    return {call: idle_ns_of_call[call] for call in longest_first}


def _is_as_read(file: ReportFile, state: FileState | None) -> bool:
    """Tell whether a file still has the size and the time of change that it had when it was read.

    `state` is None if they were not recorded. Then the file counts as unchanged if it exists.
    """
    try:
        # Not by pathlib: runs may have thousands of reports on network file systems.
        status = os.stat(file)  # noqa: PTH116 - faster
    except OSError:
        return False
    if state is None:
        return True
    _inode, n_bytes, written_ns, _changed_ns = state
    return status.st_size == n_bytes and status.st_mtime_ns == written_ns


def _distinct(values: Iterable[str | None]) -> list[str]:
    """Return each text once, in alphabetical order, without None and ``""``."""
    return sorted({value for value in values if value})


def _facts_of_reports(reports: Sequence[ReportFacts]) -> dict[str, Any]:
    """Return the fields of `RunHeader` that have the values of all reports, each value once."""
    environments = [report.environment for report in reports]
    facts: dict[str, Any] = {"environment": joined_environments(environments)}
    facts["nsys_versions"] = _distinct(report.nsys_version for report in reports)
    facts["export_schema_versions"] = _distinct(report.schema_version for report in reports)
    for name in _LISTED_FACTS:
        values_of_reports = [getattr(report, name) for report in reports]
        facts[name] = _distinct(chain.from_iterable(values_of_reports))
    return facts


def _earliest_start(reports: Sequence[ReportFacts]) -> datetime | None:
    """Return when the first session of nsys started; None if no report says when."""
    starts_ns = [report.session_start_utc_ns for report in reports]
    known_ns = [start_ns for start_ns in starts_ns if start_ns is not None]
    if not known_ns:
        return None
    start_us = min(known_ns) // 1000
    return _EPOCH + timedelta(microseconds=start_us)


def _in_iso_8601(time: datetime | None) -> str | None:
    return time.isoformat().replace("+00:00", "Z") if time else None


def _run_id(digests: Sequence[ReportDigest], start: datetime | None) -> str:
    """Return the ID of a run: the start of the capture, and a checksum of what the reports have.

    The checksum is over the processes with device activity. Without any, it is over the processes
    with steps on the CPU. The ID does not depend on the order of the reports, nor on the version of
    nsys that exported them.
    """
    device_identities: list[tuple[int | None, ...]] = []
    host_identities: list[tuple[int | None, ...]] = []
    for digest in digests:
        session_ns = digest.facts.session_start_utc_ns or 0
        for process in digest.processes:
            identity = (session_ns, process.process_id, *process.span, process.n_kernels)
            device_identities.append(identity)
        for host in digest.hosts_with_steps:
            identity_of_host = (session_ns, host.process_id, *host.span)
            host_identities.append(identity_of_host)
    identities = repr(sorted(device_identities or host_identities))
    checksum = hashlib.sha256(identities.encode()).hexdigest()
    fingerprint = checksum[:8]
    return f"{start:%Y%m%dT%H%M%S}-{fingerprint}" if start else f"run-{fingerprint}"


def _recording(reports: Sequence[ReportFacts]) -> Recording:
    """Return what nsys recorded in any of some reports.

    The traced events are known only if every report names those of its own. Otherwise they are
    empty.
    """
    events_of_reports = [report.traced_events for report in reports]
    events: set[str] = set()
    if all(events_of_reports):
        events.update(*events_of_reports)
    is_cpu_sampled = _is_any([report.is_cpu_sampled for report in reports])
    has_backtraces = _is_any([report.has_cuda_backtraces for report in reports])
    return Recording(tuple(sorted(events)), is_cpu_sampled, has_backtraces)


def _is_any(answers: Sequence[bool | None]) -> bool | None:
    """Return True if any answer is True, else None if any is not known, else False."""
    if any(answers):
        return True
    return None if None in answers else False

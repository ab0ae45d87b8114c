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
        # An export in the cache stands for a report that must not be overwritten either.
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
        """The log and topology that were passed."""
        log = read_nccl_logs(self.nccl_logs) if self.nccl_logs else None
        topology = read_topology(self.topology) if self.topology else None
        return FilesBeside(log, topology)

    @cached_property
    def _gathered(self) -> Gathered:
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
        """The files that were passed or found, and the problems with found files."""
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
        """What the log says of this run. None without a log, or if it is of another run."""
        log = self._side_files.log
        if log is None:
            return None
        gathered = self._gathered
        processes = chain.from_iterable(digest.processes for digest in gathered.digests)
        pids = {process.pid for process in processes}
        return log.of_run(pids, run_sizes(gathered))

    @cached_property
    def _tables(self) -> RunTables:
        chosen_from = self.chosen.ranks_of_all_reports if self.chosen else frozenset()
        tables = merge(
            self._gathered, self.rank_map, self.skip_first, self._log, chosen_from, work=self.work
        )
        # Thousands of digests take more memory than the tables, so only their remains are kept.
        vars(self)["_gathered"] = tables.gathered
        ranks = tables.ranks
        if self.chosen and ranks.num_rows:
            process_ranks = ranks["process_rank"].to_pylist()
            rank_source = ranks["rank_source"][0].as_py()
            self.chosen.check(process_ranks, rank_source)
        return tables

    @cached_property
    def _run_links(self) -> _RunLinks:
        log = self._log
        topology = self._side_files.topology
        problems = [*self._problems_of_log(), *self._side_files.problems]
        if log is None and topology is None:
            return _RunLinks(None, problems)
        ranks = self.ranks
        gpu_names = _by_rank(ranks, ranks["gpu_name"])
        local_ranks = _by_rank(ranks, self._local_ranks())
        hosts = _by_rank(ranks, ranks["host"])
        table, absent_gpus = links(
            log,
            topology,
            gpu_names,
            n_ranks=self._tables.n_job_ranks or ranks.num_rows,
            local_ranks=local_ranks,
            hosts=hosts,
            pids=ranks["pid"].to_pylist(),
        )
        if absent_gpus:
            gpus = ", ".join(map(str, absent_gpus))
            problems.insert(0, problem("topology-of-another-machine", gpus=gpus))
        return _RunLinks(table, problems)

    def _problems_of_log(self) -> list[Problem]:
        """Return the problem that the log is of another run, or not of all processes, if so."""
        log = self._log
        n_ranks = self.ranks.num_rows
        if log is None:
            if self._side_files.log is None or not n_ranks:
                return []
            sizes = " or ".join(map(str, run_sizes(self._gathered)))
            return [problem("log-of-another-run", sizes=sizes)]
        if not log.communicators:
            return [problem("log-without-communicators")] if n_ranks > 1 else []
        members = chain.from_iterable(comm.members for comm in log.communicators)
        pids = {*self.ranks["pid"].to_pylist()}
        logged_pids = pids.intersection(member.pid for member in members)
        if logged_pids == pids:
            return []
        code = "log-of-some-processes" if logged_pids else "log-of-other-processes"
        return [problem(code, n=len(logged_pids), total=len(pids))]

    def _local_ranks(self) -> pa.ChunkedArray:
        """Return which GPU of its host each rank has."""
        ranks = self.ranks
        # If processes have several devices, a local rank numbers processes, not GPUs.
        if self._tables.n_processes < ranks.num_rows:
            return ranks["device_id"]
        return pc.coalesce(ranks["local_rank"], ranks["device_id"])

    @cached_property
    def _evidence(self) -> Evidence:
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
        evidence["lock_waits"] = tables.lock_waits
        evidence["are_lines_left_out"] = not self.reading.with_lines
        evidence["links"] = self._run_links.table
        return evidence

    def _evidence_of_ranks(self) -> dict[str, Any]:
        """Return the number of ranks, what they run on, and how well clocks agree."""
        tables = self._tables
        ranks = tables.ranks
        n_known_hosts = pc.count_distinct(ranks["host"]).as_py()
        hosts = _by_rank(ranks, ranks["host"])
        known_hosts = {rank: host for rank, host in hosts.items() if host is not None}
        clock_error_ns = pc.max(ranks["clock_error_ns"], skip_nulls=False)
        retries = _by_rank(ranks, ranks["n_alloc_retries"])
        known_retries = {rank: n for rank, n in retries.items() if n is not None}
        return {
            "n_ranks": ranks.num_rows,
            "world_size": tables.n_job_ranks,
            "n_hosts": max(n_known_hosts, 1),
            "hosts": known_hosts,
            "alloc_retries": known_retries,
            "clock_error_ns": clock_error_ns.as_py(),
            "gpu_names": tuple(self.header.gpu_names),
        }

    @cached_property
    def _judgement(self) -> tuple[pa.Table, list[Problem]]:
        """The findings, and the problems of rules that could not judge."""
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
        _, problems = self._judgement
        in_text = self.rank_names.in_text
        checks = []
        for row in problems:
            check = row.skipped_check
            if check is not None:
                checks.append(replace(check, reason=in_text(check.reason)))
        return tuple(checks)

    @property
    def _phases_of_summary_steps(self) -> pa.Table:
        phases = self._tables.phases
        summary_steps = pa.array(self._tables.selection.steps, pa.int64())
        return phases.filter(pc.is_in(phases["step"], value_set=summary_steps))

    def _make(self, name: str) -> pa.Table:
        tables = self._tables
        # Making a table takes about twice as much memory as earlier work freed, but still holds.
        release_memory()
        is_capture = tables.is_capture
        figures = (tables.steps, tables.collectives)
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
                table = summary(*figures, is_capture=is_capture)
            case "rank_summary":
                table = rank_summary(*figures, tables.ranks, is_capture=is_capture)
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
                table = getattr(tables, name)
        return table

    def _of_side_files(self, name: str) -> pa.Table:
        if name == "peers":
            return self._peer_traffic.table
        links_table = self._run_links.table
        return schema.LINKS.empty() if links_table is None else links_table

    def _drawn(self, name: str) -> pa.Table:
        if name == "timeline":
            return self._timeline()
        drawn = self._drawn_step()
        return self._lanes_of(name, drawn) if drawn else schema.RUN_TABLES[name].empty()

    def _lanes_of(self, name: str, drawn: schema.DrawnStep) -> pa.Table:
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
        return [*problems, *self._unmatched(), *problems_of_rules, *self._stale()]

    def _unmatched(self) -> list[Problem]:
        """Return the problems that records of NCCL Inspector fit no operations or ranks, if so."""
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
        """Return the problem that reports have changed since they were read, if any has."""
        names = [
            digest.file.source.name
            for digest in self._gathered.digests
            if not _is_as_read(digest.file, digest.facts.file_state)
        ]
        if not names:
            return []
        reports = few(names, _MAX_REPORTS_SHOWN)
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
        """Return the name in the sidecars, None if not all reports are of that capture."""
        sidecars = self._gathered.sidecars
        is_one_capture = len(sidecars.by_argument) == len(self.paths)
        return sidecars.facts.name if sidecars.facts and is_one_capture else None

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
        if family == REPETITION:
            return None
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
    """Return the idle time per step of each call, largest first, in ns.

    Idle time of blocking copies from the host is left out.
    """
    without_copies_ns = pc.subtract(calls["blocked_ns_per_step"], calls["of_copies_ns_per_step"])
    names = calls["call"].to_pylist()
    idle_ns_of_call = dict(zip(names, without_copies_ns.to_pylist(), strict=True))
    blocking = [call for call, idle_ns in idle_ns_of_call.items() if idle_ns > 0]
    # Calls of equal times are in alphabetical order.
    blocking.sort(key=lambda call: (-idle_ns_of_call[call], call))
    return {call: idle_ns_of_call[call] for call in blocking}


def _is_as_read(file: ReportFile, state: FileState | None) -> bool:
    """Tell whether a file still has its size and time of change.

    A file whose state was not recorded counts as unchanged if it is there.
    """
    try:
        # Runs may have thousands of reports on network file systems.
        status = os.stat(file)  # noqa: PTH116 - faster
    except OSError:
        return False
    if state is None:
        return True
    _, n_bytes, written_ns, _ = state
    return status.st_size == n_bytes and status.st_mtime_ns == written_ns


def _distinct(values: Iterable[str | None]) -> list[str]:
    return sorted({value for value in values if value})


def _facts_of_reports(reports: Sequence[ReportFacts]) -> dict[str, Any]:
    """Return the fields of `RunHeader` that have what any report says."""
    environments = [report.environment for report in reports]
    facts: dict[str, Any] = {"environment": joined_environments(environments)}
    facts["nsys_versions"] = _distinct(report.nsys_version for report in reports)
    facts["export_schema_versions"] = _distinct(report.schema_version for report in reports)
    for name in _LISTED_FACTS:
        values_of_reports = [getattr(report, name) for report in reports]
        facts[name] = _distinct(chain.from_iterable(values_of_reports))
    return facts


def _earliest_start(reports: Sequence[ReportFacts]) -> datetime | None:
    """Return when the first session started, None if no report says."""
    starts_ns = [report.session_start_utc_ns for report in reports]
    known_ns = [start_ns for start_ns in starts_ns if start_ns is not None]
    if not known_ns:
        return None
    start_us = min(known_ns) // 1000
    return _EPOCH + timedelta(microseconds=start_us)


def _in_iso_8601(time: datetime | None) -> str | None:
    return time.isoformat().replace("+00:00", "Z") if time else None


def _run_id(digests: Sequence[ReportDigest], start: datetime | None) -> str:
    """Return an ID that is the same whichever nsys exported the reports.

    It is made of the session start and of what ran on the devices. Without device activity it is
    made of the steps of hosts.
    """
    captures: list[tuple[int | None, ...]] = []
    hosts: list[tuple[int | None, ...]] = []
    for digest in digests:
        session = digest.facts.session_start_utc_ns or 0
        for process in digest.processes:
            capture = (session, process.process_id, *process.span, process.n_kernels)
            captures.append(capture)
        for host in digest.hosts_with_steps:
            host_capture = (session, host.process_id, *host.span)
            hosts.append(host_capture)
    identities = repr(sorted(captures or hosts))
    checksum = hashlib.sha256(identities.encode()).hexdigest()
    fingerprint = checksum[:8]
    return f"{start:%Y%m%dT%H%M%S}-{fingerprint}" if start else f"run-{fingerprint}"


def _recording(reports: Sequence[ReportFacts]) -> Recording:
    """Return what nsys recorded in any of some reports."""
    events_of_reports = [report.traced_events for report in reports]
    events = set(chain.from_iterable(events_of_reports)) if all(events_of_reports) else set()
    is_cpu_sampled = _is_any([report.is_cpu_sampled for report in reports])
    has_backtraces = _is_any([report.has_cuda_backtraces for report in reports])
    return Recording(tuple(sorted(events)), is_cpu_sampled, has_backtraces)


def _is_any(answers: Sequence[bool | None]) -> bool | None:
    """Return whether any answer is yes, None if none is and some are not known."""
    if any(answers):
        return True
    return None if None in answers else False

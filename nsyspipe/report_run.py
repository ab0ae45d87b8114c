"""A run read from its reports: lazily, once, and never changed; and what its rules look at."""

import hashlib
import itertools
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import cached_property
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from msgspec.structs import replace

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
from nsyspipe.model.side_files import NcclFacts, NcclLog, Topology
from nsyspipe.nsys.command_words import joined_environments
from nsyspipe.nsys.find_reports import display_names, source_of
from nsyspipe.reader.beside import Candidates, find_beside
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
from nsyspipe.run.ranks import ChosenRanks, n_unrecorded_ranks, run_sizes
from nsyspipe.run.run import AskedRanks, AskedSteps, Run, RunHeader, steps_source
from nsyspipe.run.run_problems import problems_table
from nsyspipe.run.traffic import traffic_table

_SHOWN = 4
_FINDING_TEXTS = "title", "action", "advice"


@dataclass(frozen=True, repr=False, eq=False)
class ReportRun(Run):
    """A run captured by one report per rank, or by fewer reports with several ranks; each is read once."""

    paths: tuple[Path, ...]
    reading: Reading
    skip_first: int | None = None
    rank_map: Mapping[str, int] | None = None
    chosen: ChosenRanks | None = None  # whose reports the paths are, where not all are read
    jobs: int | None = None
    given_label: str | None = None
    given_run_id: str | None = None
    nccl_logs: tuple[Path, ...] = ()
    topology: Path | None = None
    looks_beside: bool = True  # for logs and topologies that are not given
    executor: Executor | None = None
    on_progress: Callable[[int, int], None] | None = None

    @property
    def inputs(self) -> tuple[Path, ...]:
        # An export in the cache stands for a report that must not be overwritten either.
        beside = (*self._sidecars.paths, *self._candidates.paths)
        given = (*map(source_of, self.paths), *self.paths, *self.nccl_logs, *beside)
        return given if self.topology is None else (*given, self.topology)

    def __getstate__(self) -> dict[str, Any]:
        """Return what a copy has: not who reads, nor who is told, which belong to this process."""
        return vars(self) | {"executor": None, "on_progress": None}

    @cached_property
    def _sidecars(self) -> FoundSidecars:
        return read_sidecars([source_of(path) for path in self.paths])

    @cached_property
    def _fabric(self) -> tuple[NcclLog | None, Topology | None]:
        """What the logs and the topology say; read first, since a wrong file is told before long work."""
        log = read_nccl_logs(self.nccl_logs) if self.nccl_logs else None
        return log, read_topology(self.topology) if self.topology else None

    @cached_property
    def _gathered(self) -> Gathered:
        _ = self._fabric
        running: dict[str, Any] = {
            "jobs": self.jobs,
            "executor": self.executor,
            "on_progress": self.on_progress,
        }
        return gather(self.paths, self.reading, self._sidecars, **running)

    @cached_property
    def _candidates(self) -> Candidates:
        return (
            find_beside([source_of(path) for path in self.paths])
            if self.looks_beside
            else Candidates()
        )

    @cached_property
    def _beside(self) -> tuple[NcclLog | None, Topology | None, list[Problem]]:
        log, topology = self._fabric
        if not self.looks_beside:
            return log, topology, []
        gathered = self._gathered
        found = files_beside(
            self._candidates,
            gathered.digests,
            gathered.sidecars.sidecars,
            wants_log=log is None,
            wants_topology=topology is None,
        )
        return log or found.log, topology or found.topology, found.problems

    @cached_property
    def _log(self) -> NcclLog | None:
        log = self._beside[0]
        gathered = self._gathered
        pids = {process.pid for digest in gathered.digests for process in digest.processes}
        return log and log.of_run(pids, run_sizes(gathered))

    @cached_property
    def _tables(self) -> RunTables:
        chosen_from = self.chosen.ranks_of_all_reports if self.chosen else frozenset()
        tables = merge(self._gathered, self.rank_map, self.skip_first, self._log, chosen_from)
        vars(self)["_gathered"] = (
            tables.gathered
        )  # thousands of digests take more memory than what is made of them
        if self.chosen and tables.ranks.num_rows:
            self.chosen.check(
                tables.ranks["process_rank"].to_pylist(), tables.ranks["rank_source"][0].as_py()
            )
        return tables

    @cached_property
    def _linked(self) -> tuple[pa.Table | None, list[Problem]]:
        """What connects the ranks, and which of the given files is not of this run; None without a file that is."""
        (given, topology, problems), log, ranks = self._beside, self._log, self.ranks
        if given is not None and log is None and ranks.num_rows:
            sizes = run_sizes(self._gathered)
            problems = [
                problem("log-of-another-run", sizes=" or ".join(map(str, sizes))),
                *problems,
            ]
        elif log is not None and not log.communicators and ranks.num_rows > 1:
            problems = [problem("log-without-communicators"), *problems]
        elif log is not None and log.communicators:
            pids = {*ranks["pid"].to_pylist()}
            logged = pids.intersection(
                member.pid for communicator in log.communicators for member in communicator.members
            )
            code = "log-of-some-processes" if logged else "log-of-other-processes"
            problems = [problem(code, n=len(logged), total=len(pids))][: logged != pids] + problems
        if log is None and topology is None:
            return None, problems
        # Where processes have several devices, a local rank is the process's, not the number of a
        # GPU.
        is_shared = self._tables.n_processes < ranks.num_rows
        local = (
            ranks["device_id"]
            if is_shared
            else pc.coalesce(ranks["local_rank"], ranks["device_id"])
        )
        of_ranks = (column.to_pylist() for column in (local, ranks["host"], ranks["gpu_name"]))
        local_ranks, hosts, gpu_names = (
            dict(zip(ranks["rank"].to_pylist(), own, strict=True)) for own in of_ranks
        )
        known: dict[str, Any] = {
            "n_ranks": self._tables.n_job_ranks or ranks.num_rows,
            "pids": ranks["pid"].to_pylist(),
        }
        known |= {"local_ranks": local_ranks, "hosts": hosts}
        table, absent = links(log, topology, gpu_names, **known)
        if absent:
            problems = [
                problem("topology-of-another-machine", gpus=", ".join(map(str, absent))),
                *problems,
            ]
        return table, problems

    @cached_property
    def _evidence(self) -> Evidence:
        merged = self._tables
        calls = self._tables.idle_calls
        return Evidence(
            n_ranks=merged.ranks.num_rows,
            world_size=merged.n_job_ranks,
            summary=self.summary().to_pylist()[0],
            steps=self.breakdown(),
            is_capture=merged.is_capture,
            is_graph_replayed=any(one.code == IN_GRAPHS for one in merged.problems),
            are_groups_known=merged.across.doubt is None,
            all_steps=merged.steps,
            phases=self._summary_phases,
            all_collectives=merged.collectives,
            stragglers=merged.stragglers,
            kernels=merged.kernels,
            traffic=self.traffic(),
            blocked_ns_by_call=_without_copies(calls),
            skipped_steps=tuple(self.skipped_steps),
            n_hosts=max(pc.count_distinct(merged.ranks["host"]).as_py(), 1),
            hosts={
                row["rank"]: row["host"]
                for row in merged.ranks.to_pylist()
                if row["host"] is not None
            },
            clock_error_ns=pc.max(merged.ranks["clock_error_ns"], skip_nulls=False).as_py(),
            gpu_names=tuple(self.header.gpu_names),
            links=self._linked[0],
            environment=self.header.training_variables,
            recording=_recording([digest.facts for digest in self._gathered.digests]),
            nccl_settings=None if self._log is None else self._log.settings,
        )

    @cached_property
    def _judged(self) -> tuple[pa.Table, list[Problem]]:
        findings, problems = judge(self._evidence)
        names = self.rank_names
        if not names.names:
            return findings, problems
        rows = findings.to_pylist()
        for row in rows:
            row |= {name: names.in_text(row[name]) for name in _FINDING_TEXTS}
        return schema.FINDINGS.from_rows(rows), problems

    @property
    def skipped_checks(self) -> tuple[SkippedCheck, ...]:
        checks = (one.skipped_check for one in self._judged[1])
        names = self.rank_names
        return tuple(
            replace(check, reason=names.in_text(check.reason))
            for check in checks
            if check is not None
        )

    @property
    def _summary_phases(self) -> pa.Table:
        phases = self._tables.phases
        steps = self._tables.selection.steps
        return phases.filter(pc.is_in(phases["step"], value_set=pa.array(steps, pa.int64())))

    def _make(self, name: str) -> pa.Table:
        merged = self._tables
        release_memory()  # what was made before leaves half as much free as it takes
        figures = (merged.steps, merged.collectives)
        is_capture = merged.is_capture
        of_collectives = merged.across, merged.ranks["rank"].to_pylist(), merged.selection.steps
        makers: dict[str, Callable[[], pa.Table]] = {
            "collectives": lambda: collectives_table(*of_collectives),
            "summary": lambda: summary(*figures, is_capture=is_capture),
            "rank_summary": lambda: rank_summary(*figures, merged.ranks, is_capture=is_capture),
            "phase_summary": lambda: phase_summary(self._summary_phases),
            "traffic": lambda: traffic_table(merged.across, merged.steps, is_capture=is_capture),
            "links": lambda: schema.LINKS.empty() if self._linked[0] is None else self._linked[0],
            "findings": self.judged_findings,
            "problems": lambda: problems_table(map(self._with_rank_names, self._problems())),
            "timeline": self._timeline,
        }
        return makers[name]() if name in makers else getattr(merged, name)

    def _problems(self) -> list[Problem]:
        return [*self._tables.problems, *self._linked[1], *self._judged[1], *self._stale()]

    def _with_rank_names(self, one: Problem) -> Problem:
        return (
            replace(one, message=self.rank_names.in_text(one.message))
            if self.rank_names.names
            else one
        )

    def _stale(self) -> list[Problem]:
        """Return that reports are no longer as they were when they were read; nothing where all are."""
        digests = self._gathered.digests
        changed = [
            source_of(Path(digest.path)).name
            for digest in digests
            if not _is_as_read(digest.path, digest.facts.file_state)
        ]
        return [problem("reports-changed", reports=few(changed, _SHOWN))] if changed else []

    @cached_property
    def header(self) -> RunHeader:
        digests = self._gathered.digests
        sidecars = self._gathered.sidecars
        tables = self._tables
        names = display_names(self.paths)
        ranks = tables.ranks
        facts = [digest.facts for digest in digests]
        starts = [
            fact.session_start_utc_ns for fact in facts if fact.session_start_utc_ns is not None
        ]
        start = (
            datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=min(starts) // 1000)
            if starts
            else None
        )
        # The capture's name, if it is that of all reports.
        captured = sidecars.facts if len(sidecars.by_argument) == len(names) else None
        return RunHeader(
            run_id=self.given_run_id or _run_id(digests, start),
            label=self.given_label or (captured and captured.name) or _label(names),
            n_ranks=ranks.num_rows,
            n_processes=tables.n_processes,
            n_processes_without_kernels=n_unrecorded_ranks(digests) if ranks.num_rows else None,
            world_size=tables.world_size,
            gpu_names=_distinct(ranks["gpu_name"].to_pylist()),
            hosts=_distinct(ranks["host"].to_pylist()),
            nsys_versions=_distinct(fact.nsys_version for fact in facts),
            export_schema_versions=_distinct(fact.schema_version for fact in facts),
            captured_at_utc=start.isoformat().replace("+00:00", "Z") if start else None,
            reports=[*names],
            capture=sidecars.facts,
            environment=joined_environments(fact.environment for fact in facts),
            driver_versions=_distinct(
                itertools.chain.from_iterable(fact.driver_versions for fact in facts)
            ),
            cuda_driver_versions=_distinct(
                itertools.chain.from_iterable(fact.cuda_driver_versions for fact in facts)
            ),
            traced_events=_distinct(
                itertools.chain.from_iterable(fact.traced_events for fact in facts)
            ),
            cuda_graph_traces=_distinct(
                itertools.chain.from_iterable(fact.cuda_graph_traces for fact in facts)
            ),
            commands=_distinct(itertools.chain.from_iterable(fact.commands for fact in facts)),
            steps_from=steps_source(
                ranks.num_rows, tables.host_steps.num_rows, self._gathered.family
            ),
        )

    @property
    def run_id(self) -> str:
        """What tells the run from others, as its header has it."""
        return self.header.run_id

    @property
    def nccl(self) -> NcclFacts | None:
        return None if self._log is None else self._log.facts

    @cached_property
    def link(self) -> LinkVerdict | None:
        return judge_link(self._evidence) if self.ranks.num_rows and self.links().num_rows else None

    @property
    def step_family(self) -> str | None:
        family = None if self._gathered.family == REPETITION else self._gathered.family
        return self.reading.step.pattern if family and self.reading.step else family

    @property
    def skipped_steps(self) -> list[int]:
        return [int(step) for step in self._tables.selection.skipped]

    def judged_findings(self) -> pa.Table:
        return self._judged[0]

    def operations(
        self, steps: AskedSteps = None, ranks: AskedRanks = None
    ) -> Iterator[schema.OfRank]:
        from nsyspipe.run.operations import run_operations  # noqa: PLC0415 - few ask for it

        running: dict[str, Any] = {"jobs": self.jobs, "executor": self.executor}
        return run_operations(
            self._tables, self.reading, self.chosen_ranks(ranks), steps=steps, **running
        )

    def __repr__(self) -> str:
        if "_tables" not in self.__dict__:
            return f"<Run of {len(self.paths)} report{'s'[: len(self.paths) != 1]}, not read yet>"
        return super().__repr__()


def _without_copies(calls: pa.Table) -> dict[str, float]:
    """Return the idle time per step of each call, less that of blocking copies from the host, largest first."""
    own = {
        row["call"]: row["blocked_ns_per_step"] - row["of_copies_ns_per_step"]
        for row in calls.to_pylist()
    }
    return dict(
        sorted(
            ((call, ns) for call, ns in own.items() if ns > 0), key=lambda pair: (-pair[1], pair[0])
        )
    )


def _is_as_read(path: str, state: FileState | None) -> bool:
    """Tell whether a file has the size and time that it had; of what nobody looked at then nothing is said."""
    try:
        now = os.stat(path)  # noqa: PTH116 - of thousands, on network file systems
    except OSError:
        return False
    return state is None or (now.st_size, now.st_mtime_ns) == state[1:3]


def _distinct(values: Iterable[str | None]) -> list[str]:
    return sorted({value for value in values if value})


def _run_id(digests: Sequence[ReportDigest], start: datetime | None) -> str:
    """Tell captures apart by what ran on the devices, those without device activity by their hosts' steps."""
    captures: list[tuple[int | None, ...]] = []
    hosts: list[tuple[int | None, ...]] = []
    for digest in digests:
        session = digest.facts.session_start_utc_ns or 0
        captures += [
            (session, process.process_id, *process.span, process.n_kernels)
            for process in digest.processes
        ]
        hosts += [(session, one.process_id, *one.span) for one in digest.hosts_with_steps]
    captures = sorted(captures or hosts)
    fingerprint = hashlib.sha256(repr(captures).encode()).hexdigest()[:8]
    return f"{start:%Y%m%dT%H%M%S}-{fingerprint}" if start else f"run-{fingerprint}"


def _label(names: Sequence[str]) -> str:
    stems = [Path(name).stem for name in names]
    if len(stems) > 1:
        stems = [re.sub(r"(?i)[._-]*(?:rank)?[._-]*\d+$", "", stem) for stem in stems]
    same = itertools.takewhile(lambda letters: len(set(letters)) == 1, zip(*stems, strict=False))
    shared = "".join(letters[0] for letters in same)
    if any(stem[len(shared) :][:1].isdigit() for stem in stems):
        shared = shared.rstrip("0123456789")  # half a number: process IDs or hosts that differ
    return shared.rstrip(" ._-") or "run"


def _recording(facts: Sequence[ReportFacts]) -> Recording:
    """Return what nsys recorded in any of some reports."""
    events = {event for fact in facts for event in fact.traced_events}
    is_known = all(fact.traced_events for fact in facts)
    return Recording(
        events=tuple(sorted(events)) if is_known else (),
        is_cpu_sampled=_is_any([fact.is_cpu_sampled for fact in facts]),
        has_backtraces=_is_any([fact.has_cuda_backtraces for fact in facts]),
    )


def _is_any(answers: Sequence[bool | None]) -> bool | None:
    """Return whether any answer is yes; None where none is, and one is not known."""
    if any(answers):
        return True
    return None if None in answers else False

"""A run read from its reports: lazily, once, and never changed; and what its rules look at."""

from __future__ import annotations

import itertools
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc

from nsyspipe.analysis.links import absent_gpus, links
from nsyspipe.analysis.summary import phase_summary, rank_summary, summary
from nsyspipe.findings.judge import judge
from nsyspipe.findings.link_evidence import LinkVerdict, judge_link
from nsyspipe.findings.model import Evidence
from nsyspipe.model import schema
from nsyspipe.model.problems import problem
from nsyspipe.model.table import conform
from nsyspipe.nsys.find_reports import display_names, source_of
from nsyspipe.reader.nccl_log import read_nccl_logs
from nsyspipe.reader.sidecar import FoundSidecars, read_beside, read_sidecars
from nsyspipe.reader.topology import read_topology
from nsyspipe.run.assemble import RunTables, merge
from nsyspipe.run.gather import Gathered, gather
from nsyspipe.run.placing import own_log, run_sizes
from nsyspipe.run.problems import problems_table
from nsyspipe.run.run import Run, RunHeader, header_of, steps_source
from nsyspipe.run.sidecars import Captured, believe_of_run, with_captured_facts

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from concurrent.futures import Executor
    from pathlib import Path

    from nsyspipe.model.fabric import NcclFacts, NcclLog, Topology
    from nsyspipe.model.options import Reading
    from nsyspipe.model.problems import Problem
    from nsyspipe.run.gather import ReportDigest


# From a run's tables to what its rules look at.


def evidence_of(
    tables: RunTables,
    summary: pa.Table,
    phases: pa.Table,
    *,
    gpu_names: Sequence[str],
    links: pa.Table | None,
    log: NcclLog | None,
) -> Evidence:
    """Collect what rules may ask about a run.

    Parameters
    ----------
    summary
        `schema.SUMMARY`.
    phases
        `schema.PHASES` of the summary steps.
    links
        `schema.LINKS`; None when nothing says anything about them.
    log
        What NCCL logged of the run.
    """
    return Evidence(
        n_ranks=tables.ranks.num_rows,
        world_size=tables.world_size,
        summary=summary.to_pylist()[0],
        steps=tables.steps.filter(tables.steps["in_summary"]),
        is_capture=tables.is_capture,
        all_steps=tables.steps,
        phases=phases,
        all_collectives=tables.collectives,
        stragglers=tables.stragglers,
        kernels=tables.kernels,
        blocked_ns_by_call=tables.blocked_ns_by_call,
        skipped_steps=tuple(int(step) for step in tables.selection.skipped),
        n_hosts=max(pc.count_distinct(tables.ranks["host"]).as_py(), 1),
        gpu_names=tuple(gpu_names),
        links=links,
        nccl_settings=None if log is None else log.settings,
    )


def links_of(
    log: NcclLog | None, topology: Topology | None, ranks: pa.Table, world_size: int | None
) -> tuple[pa.Table | None, list[Problem]]:
    """Return `schema.LINKS` of a run, and what is wrong with the topology; None without it and a log.

    Parameters
    ----------
    log
        Of this run.
    ranks
        `schema.RANKS`.
    """
    if log is None and topology is None:
        return None, []
    rows = {row["rank"]: row for row in ranks.to_pylist()}
    n_ranks = world_size or len(rows)
    pids = [row["pid"] for row in rows.values()]
    hosts = {rank: row["host"] for rank, row in rows.items()}
    local_ranks = {
        rank: row["device_id"] if row["local_rank"] is None else row["local_rank"]
        for rank, row in rows.items()
    }
    lacking = absent_gpus(
        log, topology, n_ranks=n_ranks, local_ranks=local_ranks, hosts=hosts, pids=pids
    )
    named = ", ".join(map(str, lacking))
    found = links(
        log,
        topology,
        {rank: row["gpu_name"] for rank, row in rows.items()},
        n_ranks=n_ranks,
        local_ranks=local_ranks,
        hosts=hosts,
        pids=pids,
    )
    return found, [problem("topology-of-another-machine", gpus=named)] if lacking else []


@dataclass(frozen=True, repr=False)
class ReportRun(Run):
    """A run captured by one report per rank, or by fewer reports with several ranks; each is read once."""

    paths: tuple[Path, ...]
    reading: Reading
    skip_first: int | None = None
    rank_map: Mapping[str, int] | None = None
    jobs: int | None = None
    label: str | None = None
    run_id: str | None = None
    nccl_logs: tuple[Path, ...] = ()
    topology: Path | None = None
    executor: Executor | None = None
    on_progress: Callable[[int, int], None] | None = None

    @property
    def inputs(self) -> tuple[Path, ...]:
        # An export in the cache stands for a report that must not be overwritten either.
        given = (
            *self.paths,
            *map(source_of, self.paths),
            *self.nccl_logs,
            *filter(None, (self.topology,)),
        )
        return (*given, *self._sidecars.paths)

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
        found = gather(
            self.paths,
            self.reading,
            jobs=self.jobs,
            executor=self.executor,
            on_progress=self.on_progress,
            named_family=lambda digests: self._believed(digests).family,
        )
        return replace(
            found, digests=with_captured_facts(found.digests, self._believed(found.digests))
        )

    def _believed(self, digests: Sequence[ReportDigest]) -> Captured:
        return believe_of_run(
            self._sidecars,
            digests,
            asks_for_steps=self.reading.step is None and not self.reading.is_capture,
        )

    @cached_property
    def _captured(self) -> Captured:
        return self._believed(self._gathered.digests)

    @cached_property
    def _beside(self) -> tuple[NcclLog | None, Topology | None, list[Problem]]:
        """The log and the topology, given or named by a sidecar, and what is wrong with the latter."""
        log, topology = self._fabric
        found_log, found_topology, problems = read_beside(
            self._captured.sidecars, wants_log=log is None, wants_topology=topology is None
        )
        return log or found_log, topology or found_topology, problems

    @cached_property
    def _tables(self) -> RunTables:
        return merge(
            self._gathered.digests,
            display_names(self.paths),
            rank_map=self.rank_map,
            skip_first=self.skip_first,
            why_no_steps=self._gathered.why_no_steps,
            log=self._own_log,
            captured=self._captured,
        )

    @cached_property
    def _own_log(self) -> NcclLog | None:
        log = self._beside[0]
        if log is None:
            return None
        return own_log(self._gathered.digests, log, self._captured.world_size)

    @cached_property
    def nccl(self) -> NcclFacts | None:
        return None if self._own_log is None else self._own_log.facts

    @cached_property
    def _evidence(self) -> Evidence:
        return evidence_of(
            self._tables,
            self._summary,
            self._summary_phases,
            gpu_names=self.header.gpu_names,
            links=self._linked[0],
            log=self._own_log,
        )

    @cached_property
    def _judged(self) -> tuple[pa.Table, list[Problem]]:
        return judge(self._evidence)

    @cached_property
    def _linked(self) -> tuple[pa.Table | None, list[Problem]]:
        """What connects the ranks, and which of the given files is not of this run."""
        log, topology, beside = self._beside
        found, problems = links_of(self._own_log, topology, self.ranks, self._tables.world_size)
        if log is not None and self._own_log is None and self.ranks.num_rows:
            sizes = run_sizes(self._gathered.digests, self._captured.world_size)
            shown = " or ".join(map(str, sizes))
            problems = [problem("log-of-another-run", sizes=shown), *problems]
        return found, [*problems, *beside]

    @cached_property
    def header(self) -> RunHeader:
        return header_of(
            self._gathered.digests,
            self._tables.ranks,
            display_names(self.paths),
            world_size=self._tables.world_size,
            label=self.label,
            run_id=self.run_id,
            captured=self._captured,
            steps_from=steps_source(
                self._tables.ranks.num_rows,
                self._tables.host_steps.num_rows,
                has_family=self._gathered.family is not None,
            ),
        )

    @property
    def ranks(self) -> pa.Table:
        return self._tables.ranks

    @property
    def problems(self) -> pa.Table:
        return self._problems

    @cached_property
    def _problems(self) -> pa.Table:
        return problems_table([*self._tables.problems, *self._linked[1], *self._judged[1]])

    @property
    def step_family(self) -> str | None:
        family = self._gathered.family
        return self.reading.step.pattern if family and self.reading.step else family

    @property
    def skipped_steps(self) -> list[int]:
        return [int(step) for step in self._tables.selection.skipped]

    def steps(self) -> pa.Table:
        return self._tables.steps

    def phases(self) -> pa.Table:
        return self._tables.phases

    def collectives(self) -> pa.Table:
        return self._collectives

    @cached_property
    def _collectives(self) -> pa.Table:
        return conform(self._tables.all_collectives(), schema.COLLECTIVES)

    def stragglers(self) -> pa.Table:
        return self._tables.stragglers

    def links(self) -> pa.Table:
        found = self._linked[0]
        return schema.LINKS.empty() if found is None else found

    @cached_property
    def link(self) -> LinkVerdict | None:
        is_known = self.ranks.num_rows and self.links().num_rows
        return judge_link(self._evidence) if is_known else None

    def findings(self) -> pa.Table:
        return self._judged[0]

    def judged_findings(self) -> pa.Table:
        return self._judged[0]

    def _all_kernels(self) -> pa.Table:
        return self._tables.kernels

    def summary(self) -> pa.Table:
        return self._summary

    def phase_summary(self) -> pa.Table:
        return phase_summary(self._summary_phases)

    def idle_calls(self) -> pa.Table:
        return self._tables.idle_calls

    def timeline(self) -> pa.Table:
        return self._timeline

    def host_steps(self) -> pa.Table:
        return self._tables.host_steps

    @cached_property
    def _timeline(self) -> pa.Table:
        from nsyspipe.analysis.timeline import representative_step, timeline  # noqa: PLC0415 - few ask for it

        step = representative_step(self.steps())
        if step is None:
            return schema.TIMELINE.empty()
        operations = self.operations((step, step))
        # With the first one asked for, workers go on reading while this process makes its collectives.
        first = list(itertools.islice(operations, 1))
        found = itertools.chain(first, operations)
        return timeline(self.steps(), self.collectives(), found, step)

    def operations(
        self, steps: tuple[int, int] | None = None
    ) -> Iterator[tuple[int, pa.Table, pa.Table]]:
        from nsyspipe.run.operations import run_operations  # noqa: PLC0415 - few ask for it

        return run_operations(
            self._tables, self.reading, steps=steps, jobs=self.jobs, executor=self.executor
        )

    @cached_property
    def _summary_phases(self) -> pa.Table:
        phases, steps = self._tables.phases, self._tables.selection.steps
        return phases.filter(pc.is_in(phases["step"], value_set=pa.array(steps, pa.int64())))

    def rank_summary(self) -> pa.Table:
        return self._rank_summary

    @cached_property
    def _summary(self) -> pa.Table:
        return summary(self.steps(), self._tables.collectives, is_capture=self._tables.is_capture)

    @cached_property
    def _rank_summary(self) -> pa.Table:
        return rank_summary(
            self.steps(), self._tables.collectives, self.ranks, is_capture=self._tables.is_capture
        )

    def __repr__(self) -> str:
        if "_tables" not in self.__dict__:
            return f"<Run of {len(self.paths)} reports, not read yet>"
        return super().__repr__()

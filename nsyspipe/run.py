"""The public noun: a run of several ranks, read lazily, once, and never changed."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc

from nsyspipe import schema
from nsyspipe.errors import OptionError
from nsyspipe.findings.judge import judge
from nsyspipe.findings.link_evidence import LinkVerdict, judge_link
from nsyspipe.gather import Gathered, gather
from nsyspipe.header import RunHeader, header_of
from nsyspipe.judging import evidence_of, links_of
from nsyspipe.merge import RunTables, merge
from nsyspipe.metrics.kernels import costliest
from nsyspipe.metrics.summary import phase_summary, rank_summary, summary
from nsyspipe.placing import own_log, run_sizes
from nsyspipe.problems import problem
from nsyspipe.read.discover import display_names
from nsyspipe.read.nccl_log import read_nccl_logs
from nsyspipe.read.topology import read_topology
from nsyspipe.run_problems import problems_table

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from concurrent.futures import Executor
    from pathlib import Path

    import pandas as pd

    from nsyspipe.fabric import NcclLog, Topology
    from nsyspipe.findings.model import Evidence
    from nsyspipe.problems import Problem
    from nsyspipe.settings import Reading

__all__ = ["Run"]


@dataclass(frozen=True, repr=False)
class Run:
    """One training run, captured by one report per rank (or by fewer reports with several ranks).

    Nothing is read until a table is asked for; then every report is read once. Tables are Arrow
    tables with the schemas of `nsyspipe.schema`; times are int64 ns and null means "not recorded".
    Build one with `nsyspipe.load`.

    Examples
    --------
    >>> run = nsyspipe.load("ddp-8gpu_*.sqlite")  # doctest: +SKIP
    >>> run.summary().to_pylist()[0]["exposed_comm_share"]  # doctest: +SKIP
    0.12
    """

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

    @cached_property
    def _fabric(self) -> tuple[NcclLog | None, Topology | None]:
        """What the logs and the topology say; read first, since a wrong file is told before long work."""
        log = read_nccl_logs(self.nccl_logs) if self.nccl_logs else None
        return log, read_topology(self.topology) if self.topology else None

    @cached_property
    def _gathered(self) -> Gathered:
        _ = self._fabric
        return gather(
            self.paths,
            self.reading,
            jobs=self.jobs,
            executor=self.executor,
            on_progress=self.on_progress,
        )

    @cached_property
    def _tables(self) -> RunTables:
        return merge(
            self._gathered.digests,
            display_names(self.paths),
            rank_map=self.rank_map,
            skip_first=self.skip_first,
            why_no_steps=self._gathered.why_no_steps,
            log=self.nccl,
        )

    @cached_property
    def nccl(self) -> NcclLog | None:
        """What NCCL logged of this run: version, settings, communicators; None without a log of it."""
        log = self._fabric[0]
        return None if log is None else own_log(self._gathered.digests, log)

    @cached_property
    def _evidence(self) -> Evidence:
        return evidence_of(
            self._tables,
            self._summary,
            self._summary_phases,
            gpu_names=self.header.gpu_names,
            links=self._linked[0],
            log=self.nccl,
        )

    @cached_property
    def _judged(self) -> tuple[pa.Table, list[Problem]]:
        return judge(self._evidence)

    @cached_property
    def _linked(self) -> tuple[pa.Table | None, list[Problem]]:
        """What connects the ranks, and which of the given files is not of this run."""
        log, topology = self._fabric
        found, problems = links_of(self.nccl, topology, self.ranks, self._tables.world_size)
        if log is not None and self.nccl is None and self.ranks.num_rows:
            sizes = " or ".join(map(str, run_sizes(self._gathered.digests)))
            problems = [problem("log-of-another-run", sizes=sizes), *problems]
        return found, problems

    @cached_property
    def header(self) -> RunHeader:
        """What identifies the run: id, label, sizes, versions, hosts, time of capture."""
        return header_of(
            self._gathered.digests,
            self._tables.ranks,
            display_names(self.paths),
            world_size=self._tables.world_size,
            label=self.label,
            run_id=self.run_id,
        )

    @property
    def ranks(self) -> pa.Table:
        """`schema.RANKS`: one row per rank, sorted by it."""
        return self._tables.ranks

    @property
    def problems(self) -> pa.Table:
        """`schema.PROBLEMS`: what could not be read or judged, which answers it costs; the gravest first."""
        return self._problems

    @cached_property
    def _problems(self) -> pa.Table:
        return problems_table([*self._tables.problems, *self._linked[1], *self._judged[1]])

    @property
    def step_family(self) -> str | None:
        """The NVTX texts that are the steps: digits as ``#``, or the given pattern; None without steps."""
        family = self._gathered.family
        return self.reading.step.pattern if family and self.reading.step else family

    @property
    def skipped_steps(self) -> list[int]:
        """Complete steps at the start that the figures leave out."""
        return [int(step) for step in self._tables.selection.skipped]

    def steps(self) -> pa.Table:
        """`schema.STEPS`: one row per (rank, step) with window, breakdown and ratios, sorted by (rank, start)."""
        return self._tables.steps

    def breakdown(self) -> pa.Table:
        """Return the rows of `steps` that the figures rest on: complete on every rank, less the skipped."""
        steps = self._tables.steps
        return steps.filter(steps["in_summary"])

    def phases(self) -> pa.Table:
        """`schema.PHASES`: one row per (rank, step, phase), sorted so."""
        return self._tables.phases

    def collectives(self) -> pa.Table:
        """`schema.COLLECTIVES`: one row per (step, collective, rank) with wait, transfer and skew, sorted so."""
        return self._collectives

    @cached_property
    def _collectives(self) -> pa.Table:
        return schema.conform(self._tables.all_collectives(), schema.COLLECTIVES)

    def stragglers(self) -> pa.Table:
        """`schema.STRAGGLERS`: how the others waited for each rank, sorted by rank."""
        return self._tables.stragglers

    def links(self) -> pa.Table:
        """`schema.LINKS`: what the ranks' communication crosses; no rows without NCCL's log and the topology."""
        found = self._linked[0]
        return schema.LINKS.empty() if found is None else found

    @cached_property
    def link(self) -> LinkVerdict | None:
        """The slowest of the links and the bandwidth that was reached; None where no rank or no link is known."""
        is_known = self.ranks.num_rows and self.links().num_rows
        return judge_link(self._evidence) if is_known else None

    def findings(self) -> pa.Table:
        """`schema.FINDINGS`: what to change first, by what it could bring."""
        return self._judged[0]

    def kernels(self, top: int | None = None) -> pa.Table:
        """`schema.KERNEL_COSTS`: one row per (rank, phase, name), sorted so.

        Parameters
        ----------
        top
            Keep the kernels with most time of each rank and phase, this many; None keeps all.

        Raises
        ------
        OptionError
            If it is less than 1.
        """
        if top is not None and top < 1:
            raise OptionError(f"top={top}", "not a number from 1", fix="top=20")
        found = self._tables.kernels
        return found if top is None else costliest(found, top)

    def summary(self) -> pa.Table:
        """`schema.SUMMARY`: the run's figures, one row."""
        return self._summary

    def phase_summary(self) -> pa.Table:
        """`schema.PHASE_SUMMARY`: the mean times of each phase, sorted by phase."""
        return phase_summary(self._summary_phases)

    def idle_calls(self) -> pa.Table:
        """`schema.IDLE_CALLS`: the API calls that hosts were blocked in while devices idled, largest first."""
        return self._tables.idle_calls

    @cached_property
    def _summary_phases(self) -> pa.Table:
        phases, steps = self._tables.phases, self._tables.selection.steps
        return phases.filter(pc.is_in(phases["step"], value_set=pa.array(steps, pa.int64())))

    def rank_summary(self) -> pa.Table:
        """`schema.RANK_SUMMARY`: the same figures per rank, sorted by rank."""
        return self._rank_summary

    @cached_property
    def _summary(self) -> pa.Table:
        return summary(self.steps(), self._tables.collectives)

    @cached_property
    def _rank_summary(self) -> pa.Table:
        return rank_summary(self.steps(), self._tables.collectives, self.ranks)

    def to_pandas(self, table: str) -> pd.DataFrame:
        """Return one of the tables as a DataFrame with Arrow types, so that no integer becomes a float.

        Parameters
        ----------
        table
            ``ranks``, ``steps``, ``breakdown``, ``phases``, ``collectives``, ``stragglers``, ``kernels``, ``links``,
            ``summary``, ``rank_summary``, ``phase_summary``, ``idle_calls``, ``findings`` or ``problems``.

        Raises
        ------
        OptionError
            If there is no such table.
        """
        import pandas as pd  # heavy, and only this edge needs it

        if table not in _TABLES:
            raise OptionError(
                f"table {table!r}", "there is no such table", found=", ".join(_TABLES)
            )
        found = getattr(self, table)
        found = found if isinstance(found, pa.Table) else found()
        frame: pd.DataFrame = found.to_pandas(types_mapper=pd.ArrowDtype)
        return frame

    def __repr__(self) -> str:
        if "_tables" not in self.__dict__:
            return f"<Run of {len(self.paths)} reports, not read yet>"
        summary_row = self.summary().to_pylist()[0]
        return (
            f"<Run {self.header.label!r}: {self.header.n_ranks} ranks, {summary_row['n_steps']} steps, "
            f"{summary_row['n_summary_steps']} in the figures>"
        )


_TABLES = (
    "ranks",
    "steps",
    "breakdown",
    "phases",
    "collectives",
    "stragglers",
    "kernels",
    "links",
    "summary",
    "rank_summary",
    "phase_summary",
    "idle_calls",
    "findings",
    "problems",
)

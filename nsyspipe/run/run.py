"""A run of several ranks, wherever its tables come from, and the header that identifies it."""

from __future__ import annotations

import itertools
import json
from abc import ABC, abstractmethod
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from numbers import Integral
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from nsyspipe.analysis.counters import Series
from nsyspipe.analysis.kernels import costliest, costs
from nsyspipe.analysis.links import LinkVerdict
from nsyspipe.analysis.steps import REPETITION as BY_REPETITION, check_steps
from nsyspipe.analysis.summary import Evenness, evenness, step_times, telling_ranks
from nsyspipe.errors import (
    NsyspipeError,
    OptionError,
    in_python,
    rows_in_python,
    short_repr,
    shortened,
)
from nsyspipe.model import schema
from nsyspipe.model.captured import RunCapture
from nsyspipe.model.definitions import DEFINITIONS_VERSION
from nsyspipe.model.names import counted, few, ranges
from nsyspipe.model.options import asked_ranks, check_kind, check_whole
from nsyspipe.model.problems import SkippedCheck
from nsyspipe.model.side_files import NcclFacts
from nsyspipe.model.typed_tables import (
    CollectivesTable,
    CostsTable,
    CounterBarsTable,
    CountersTable,
    FindingsTable,
    HostLinesTable,
    HostStepsTable,
    IdleCallsTable,
    KernelsTable,
    LineBarsTable,
    LinksTable,
    PeersTable,
    PhasesTable,
    PhaseSummaryTable,
    ProblemsTable,
    RanksTable,
    RankSummaryTable,
    StepsTable,
    StragglersTable,
    SummaryTable,
    TimelineTable,
    TrafficTable,
)
from nsyspipe.nsys.command_words import MASK
from nsyspipe.run.rank_names import RankNames

if TYPE_CHECKING:
    import pandas as pd

# The first and the last step, or one step, by number. None for all.
AskedSteps: TypeAlias = tuple[int, int] | int | None
# Some ranks, or one. A text may be ``0-7,63``. None for all.
AskedRanks: TypeAlias = Iterable[int] | int | str | None
# A message shows this many ranges of ranks, and this many characters of those that a user typed.
_MAX_RANGES_SHOWN = 8
_MAX_TEXT_LENGTH = 100
# What the steps of a run come from: NVTX ranges, repeated launches, or the ranges of processes
# without device activity. `CAPTURE` means that there are no steps.
RANGES = "ranges"
REPETITION = "repetition"
HOST = "host"
CAPTURE = "capture"
# What only commands and pages use. Completion in Python does not offer it.
_PLUMBING = {
    "chosen",
    "chosen_ranks",
    "counter_samples",
    "executor",
    "files",
    "finding_rows",
    "given_label",
    "given_run_id",
    "jobs",
    "judged_findings",
    "judged_rows",
    "nccl_logs",
    "on_progress",
    "problem_rows",
    "rank_map",
    "rank_names",
    "reading",
    "settings",
    "telling_ranks",
}


# What a launcher can ask for, and the method.
_METHODS_OF_TRACE = {"cuda-hw": "hardware", "cuda-sw": "software"}


@dataclass(frozen=True)
class RunHeader:
    """The ``run`` object of the JSON document, field by field."""

    # Passed by the user. Otherwise it is made of the start of the capture and of what was captured,
    # whichever nsys exported it.
    run_id: str
    label: str
    n_ranks: int
    # As captured, None if nothing says.
    world_size: int | None
    gpu_names: list[str]
    hosts: list[str]
    nsys_versions: list[str]
    export_schema_versions: list[str]
    # Start of the earliest session, ISO 8601.
    captured_at_utc: str | None
    reports: list[str]
    # From the sidecar beside the reports, None without one.
    capture: RunCapture | None = None
    # Number of processes that have the ranks. There are fewer processes than ranks if some process
    # has several devices. None if the run was saved by an older nsyspipe.
    n_processes: int | None = None
    # Processes without kernels that did what ranks do, but do not count as ranks: `run.unrecorded`.
    n_processes_without_kernels: int | None = None
    # Training variables of the programs when they started, with masked secrets. Values of
    # different processes are joined. None if no report captured them.
    environment: dict[str, str] | None = None
    # `RANGES`, `REPETITION`, `HOST` or `CAPTURE`. None if nothing was recorded at all.
    steps_from: str | None = None
    # What reports say. Empty if they do not, or if the run was saved by an older nsyspipe.
    driver_versions: list[str] = field(default_factory=list)
    # Of CUDA, which the driver supports.
    cuda_driver_versions: list[str] = field(default_factory=list)
    # Kinds of events, as nsys calls them.
    traced_events: list[str] = field(default_factory=list)
    # ``graph`` or ``node``.
    cuda_graph_traces: list[str] = field(default_factory=list)
    # ``hardware`` or ``software``: how CUDA was traced.
    cuda_traces: list[str] = field(default_factory=list)
    # Samples of Python per second, or ``off``.
    python_samplings: list[str] = field(default_factory=list)
    # Of the programs that nsys started, with masked secrets.
    commands: list[str] = field(default_factory=list)

    @property
    def python_samples_per_s(self) -> float | None:
        """How often nsys should sample Python; None if not known, off, or not the same always."""
        if len(self.python_samplings) != 1:
            return None
        (rate,) = self.python_samplings
        return float(rate) if rate.isdecimal() else None

    @property
    def cuda_trace_methods(self) -> list[str]:
        """How CUDA was traced, by the reports or else by what the launcher asked for.

        Empty if neither tells.
        """
        if self.cuda_traces or self.capture is None:
            return self.cuda_traces
        asked = self.capture.trace or []
        return [method for word, method in _METHODS_OF_TRACE.items() if word in asked]

    @property
    def training_variables(self) -> dict[str, str] | None:
        """The variables of reports and of the launcher, None if neither recorded any.

        A value of the reports has priority. If it is masked, a value of the launcher has priority.
        """
        of_launcher = self.capture.environment if self.capture else {}
        if self.environment is None and not of_launcher:
            return None
        variables = {**of_launcher}
        for name, value in (self.environment or {}).items():
            is_masked = MASK in value
            if is_masked and name in of_launcher:
                # The launcher may have the value without the mask.
                continue
            variables[name] = value
        return variables

    @property
    def has_shared_processes(self) -> bool:
        """Whether some process has several ranks, each on its own device."""
        return self.n_processes is not None and self.n_processes < self.n_ranks

    @property
    def n_job_ranks(self) -> int | None:
        """How many ranks the job had, None if it is not known.

        If processes are missing, which may have several ranks, this is the least number.
        """
        if self.world_size is None and self.n_processes_without_kernels:
            return self.n_ranks + self.n_processes_without_kernels
        return job_ranks(self.n_ranks, self.n_processes, self.world_size)


def job_ranks(n_ranks: int, n_processes: int | None, world_size: int | None) -> int | None:
    """Return how many ranks a job had, None if it is not known.

    `world_size` is what the launcher counts, which is processes, whatever devices they have.
    """
    if n_processes is None or n_processes == n_ranks or world_size is None:
        return world_size
    return n_ranks + max(world_size - n_processes, 0)


def steps_source(n_ranks: int, n_host_steps: int, family: str | None) -> str | None:
    """Return `RunHeader.steps_from`, what the steps come from: ranges, a launch pattern, and so on.

    `family` is None if the ranks have no steps. A run without ranks may have steps of hosts.
    """
    if not n_ranks:
        return HOST if n_host_steps else None
    if family is None:
        return CAPTURE
    return REPETITION if family == BY_REPETITION else RANGES


class NamedTables:
    """Gives its tables by their names, for pandas too."""

    _TABLES: ClassVar[tuple[str, ...]] = ()

    def __dir__(self) -> list[str]:
        return sorted({*super().__dir__()} - _PLUMBING)

    def _named_table(self, name: str) -> pa.Table:
        if name not in self._TABLES:
            subject = f"table {short_repr(name)}"
            problem = "there is no such table"
            raise OptionError.no_such_name(subject, problem, str(name), self._TABLES)
        table = getattr(self, name)
        return table() if callable(table) else table

    def to_pandas(self, table: str) -> pd.DataFrame:
        """Return a table as a DataFrame with Arrow types, so that no integer becomes a float.

        Parameters
        ----------
        table
            Name of the attribute or method that returns the table, for example ``steps``,
            ``summary`` or ``breakdown``.

        Raises
        ------
        OptionError
            If there is no such table.
        """
        import pandas as pd  # heavy, and only this edge needs it

        frame: pd.DataFrame = self._named_table(table).to_pandas(types_mapper=pd.ArrowDtype)
        return frame


class Run(NamedTables, ABC):
    """One training run, from its reports or from a run store that `analyze --out` wrote.

    Open a run with `nsyspipe.load`. nsyspipe reads nothing until you ask for a table. Tables are
    Arrow tables with the schemas of `nsyspipe.model.schema`. Times are int64 ns, and null means
    "not recorded".

    Examples
    --------
    >>> run = nsyspipe.load("ddp-8gpu_*.sqlite")  # doctest: +SKIP
    >>> run.summary().to_pylist()[0]["exposed_comm_share"]  # doctest: +SKIP
    0.12
    """

    # The label that was passed to `load`. None if the label is made of what is known of the run.
    given_label: str | None

    def _table(self, name: str) -> pa.Table:
        if name not in self._made:
            self._made[name] = self._make(name)
        return self._made[name]

    @cached_property
    def _made(self) -> dict[str, pa.Table]:
        return {}

    @abstractmethod
    def _make(self, name: str) -> pa.Table:
        """Make or read the table with this name, one of `schema.RUN_TABLES`. It is called once."""

    @property
    @abstractmethod
    def inputs(self) -> Sequence[Path]:
        """The files or directories of the run."""

    @property
    @abstractmethod
    def header(self) -> RunHeader:
        """Facts about the run: ID, label, sizes, versions, hosts, time of capture."""

    @property
    def definitions_version(self) -> int:
        """Version of the definitions that the metrics follow. Older runs may have an older one."""
        return DEFINITIONS_VERSION

    @property
    @abstractmethod
    def step_family(self) -> str | None:
        """NVTX texts of the steps, with ``#`` for digits, or your pattern. None without steps."""

    @property
    def label(self) -> str:
        """The label of the run, as in its header."""
        return self.header.label

    @property
    def is_capture(self) -> bool:
        """Whether the run has no steps, so that the metrics describe the capture as a whole."""
        return self.header.steps_from == CAPTURE

    @property
    @abstractmethod
    def skipped_steps(self) -> list[int]:
        """Complete warm-up steps that the metrics skip."""

    @property
    @abstractmethod
    def skipped_checks(self) -> tuple[SkippedCheck, ...]:
        """Checks that nsyspipe could not make, grouped by the reason."""

    @property
    @abstractmethod
    def nccl(self) -> NcclFacts | None:
        """Version and settings of NCCL, from its log. None without a log."""

    @property
    @abstractmethod
    def has_peer_records(self) -> bool:
        """Whether the run has a file of NCCL Inspector, even if it has no sends or receives."""

    @property
    @abstractmethod
    def link(self) -> LinkVerdict | None:
        """The slowest connection and its bandwidth. None if no rank or connection is known."""

    @property
    def ranks(self) -> RanksTable:
        """`schema.RANKS`: one row per rank, sorted by rank."""
        return self._table("ranks")

    @cached_property
    def rank_names(self) -> RankNames:
        """The names of the ranks: numbers, or process and GPU if a process has several ranks."""
        return RankNames.of(self.ranks)

    @property
    def problems(self) -> ProblemsTable:
        """`schema.PROBLEMS`: errors, warnings and notes with their fixes, most severe first."""
        return schema.PROBLEMS.from_rows(rows_in_python(self.problem_rows))

    @property
    def problem_rows(self) -> list[dict[str, Any]]:
        """The rows of `problems` in the words of the command line."""
        rows: list[dict[str, Any]] = self._table("problems").to_pylist()
        return rows

    def steps(self) -> StepsTable:
        """`schema.STEPS`: times and ratios of each (rank, step), sorted by (rank, start)."""
        return self._table("steps")

    def breakdown(self) -> StepsTable:
        """Return the rows of `steps` that the metrics use: complete on all ranks, not skipped."""
        return self._summary_steps

    @cached_property
    def _summary_steps(self) -> StepsTable:
        steps = self.steps()
        return steps.filter(steps["in_summary"])

    def phases(self) -> PhasesTable:
        """`schema.PHASES`: one row per (rank, step, phase), in this order."""
        return self._table("phases")

    def collectives(self) -> CollectivesTable:
        """`schema.COLLECTIVES`: wait and transfer by (step, collective, rank), in this order."""
        return self._table("collectives")

    def stragglers(self) -> StragglersTable:
        """`schema.STRAGGLERS`: the time that other ranks waited for each rank, sorted by rank."""
        return self._table("stragglers")

    def traffic(self) -> TrafficTable:
        """`schema.TRAFFIC`: communication of each communicator, by parallelism, all ranks first."""
        return self._table("traffic")

    def links(self) -> LinksTable:
        """`schema.LINKS`: connections of ranks, by NCCL log or topology. No rows without either."""
        return self._table("links")

    def peers(self) -> PeersTable:
        """`schema.PEERS`: sends and receives of whole processes by peer (NCCL Inspector)."""
        return self._table("peers")

    def findings(self) -> FindingsTable:
        """`schema.FINDINGS`: causes of lost time and recommendations, the largest saving first."""
        rows = rows_in_python(self.finding_rows, "title", "action", "advice")
        for row in rows:
            evidence = json.loads(row["evidence"])
            for name, value in evidence.items():
                if isinstance(value, str):
                    evidence[name] = in_python(value)
            row["evidence"] = json.dumps(evidence)
        return schema.FINDINGS.from_rows(rows)

    @property
    def finding_rows(self) -> list[dict[str, Any]]:
        """The rows of `findings` in the words of the command line."""
        rows: list[dict[str, Any]] = self._table("findings").to_pylist()
        return rows

    def judged_findings(self) -> FindingsTable:
        """`schema.FINDINGS` without a simulation: fast, but estimated savings may be missing."""
        return self._table("findings")

    def kernels(self, top: int | None = None) -> KernelsTable:
        """`schema.KERNEL_COSTS`: one row per (rank, phase, name), in this order.

        Parameters
        ----------
        top
            Keep this many kernels of each rank and phase, those with the most time in the capture.
            None keeps all.

        Raises
        ------
        OptionError
            If `top` is less than 1.
        """
        check_whole("top", top, "top=20")
        kernels = self._table("kernels")
        return kernels if top is None else costliest(kernels, top)

    def costs(self) -> CostsTable:
        """`schema.COSTS`: the most expensive kernels, collectives and communicators."""
        tables = (self.kernels(), self.collectives(), self.traffic(), self.breakdown())
        are_groups_known = "groups-not-named" not in {row["code"] for row in self.problem_rows}
        return costs(*tables, is_capture=self.is_capture, are_groups_known=are_groups_known)

    def summary(self) -> SummaryTable:
        """`schema.SUMMARY`: the metrics of the run, in one row."""
        return self._table("summary")

    def evenness(self) -> Evenness | None:
        """Return how much the step times of the summary steps vary, in ns. None without steps."""
        if self.is_capture:
            return None
        step_times_ns = step_times(self.breakdown())
        return evenness(step_times_ns.astype(np.float64))

    def rank_summary(self) -> RankSummaryTable:
        """`schema.RANK_SUMMARY`: the metrics of each rank, sorted by rank."""
        return self._table("rank_summary")

    def phase_summary(self) -> PhaseSummaryTable:
        """`schema.PHASE_SUMMARY`: the mean times of each phase, sorted by phase."""
        return self._table("phase_summary")

    def host_lines(self) -> HostLinesTable:
        """`schema.HOST_LINES`: where main threads were in Python while GPUs idled."""
        return self._table("host_lines")

    def idle_calls(self) -> IdleCallsTable:
        """`schema.IDLE_CALLS`: calls that blocked CPUs while GPUs were idle, largest first."""
        return self._table("idle_calls")

    def counters(self) -> CountersTable:
        """`schema.COUNTERS`: hardware counters of each rank, by step and by phase."""
        return self._table("counters")

    def timeline(self, step: int | None = None, ranks: AskedRanks = None) -> TimelineTable:
        """`schema.TIMELINE`: the bars of the timeline of one step, sorted by (rank, lane, start).

        Parameters
        ----------
        step
            By default, this is the representative step. For another step, nsyspipe reads the
            operations again (see `operations` for the errors).
        ranks
            By default, these are all ranks, or the 64 most informative ranks if there are more. For
            other ranks, nsyspipe reads the operations again.
        """
        if step is None and ranks is None:
            return self._table("timeline")
        if step is not None:
            check_kind("step", step, Integral, "the number of one step", "step=14")
            step, _ = check_steps(self.steps(), step)
        return self._timeline(step, ranks)

    def _timeline(self, step: int | None = None, ranks: AskedRanks = None) -> TimelineTable:
        from nsyspipe.analysis import timeline as drawing  # noqa: PLC0415 - few ask for it

        drawn = self._drawn_step(step, ranks)
        if drawn is None:
            return schema.TIMELINE.empty()
        operations = self.operations((drawn.step, drawn.step), drawn.ranks)
        # Workers read all operations as soon as the first are asked for. Meanwhile, this process
        # makes the table of collectives.
        first_operations = list(itertools.islice(operations, 1))
        all_operations = itertools.chain(first_operations, operations)
        return drawing.timeline(self.steps(), self.collectives(), all_operations, drawn.step)

    def _drawn_step(
        self, step: int | None = None, ranks: AskedRanks = None
    ) -> schema.DrawnStep | None:
        """Return which step and ranks a timeline shows, None if the run has no step."""
        from nsyspipe.analysis import timeline as drawing  # noqa: PLC0415 - few ask for it

        drawn_step = drawing.representative_step(self.steps()) if step is None else step
        if drawn_step is None:
            return None
        if ranks is not None:
            return schema.DrawnStep(drawn_step, self.chosen_ranks(ranks))
        # The most informative ranks come first, and so are drawn if not all can be.
        most_informative = self.telling_ranks(drawing.MAX_RANKS // 8)
        informative = self.telling_ranks(drawing.MAX_RANKS)
        ranks_to_draw = [*most_informative, *informative]
        drawn_ranks = drawing.drawn_ranks(self.steps(), drawn_step, ranks_to_draw)
        return schema.DrawnStep(drawn_step, drawn_ranks)

    def counter_bars(self, step: int | None = None, ranks: AskedRanks = None) -> CounterBarsTable:
        """`schema.COUNTER_BARS`: hardware counters in the timeline of one step.

        Parameters
        ----------
        step
            As in `timeline`. A saved run has the counters of the representative step only.
        ranks
            As in `timeline`.
        """
        return self._lanes("counter_bars", step, ranks)

    def line_bars(self, step: int | None = None, ranks: AskedRanks = None) -> LineBarsTable:
        """`schema.LINE_BARS`: lines of Python of main threads in the timeline of one step.

        Parameters
        ----------
        step
            As in `timeline`. A saved run has the lines of the representative step only.
        ranks
            As in `timeline`.
        """
        return self._lanes("line_bars", step, ranks)

    def _lanes(self, name: str, step: int | None, ranks: AskedRanks) -> pa.Table:
        if step is None and ranks is None:
            return self._table(name)
        if step is not None:
            check_kind("step", step, Integral, "the number of one step", "step=14")
            step, _ = check_steps(self.steps(), step)
        drawn = self._drawn_step(step, ranks)
        if drawn is None:
            return schema.RUN_TABLES[name].empty()
        return self._lanes_of(name, drawn)

    def _lanes_of(self, name: str, drawn: schema.DrawnStep) -> pa.Table:
        """Return the rows of a table that are of the drawn step and ranks.

        A saved run has only the rows of the step that was drawn when it was saved.
        """
        table = self._table(name)
        is_of_step = pc.equal(table["step"], drawn.step)
        ranks = pa.array(drawn.ranks, pa.int64())
        is_of_ranks = pc.is_in(table["rank"], ranks)
        is_drawn = pc.and_(is_of_step, is_of_ranks)
        return table.filter(is_drawn)

    def counter_samples(self, rank: int) -> Mapping[str, Series]:  # noqa: ARG002 - see `ReportRun`
        """Return the samples of the hardware counters of a rank, in aligned time, by name.

        They have the lag of their report. A saved run has no samples.
        """
        return {}

    def host_steps(self) -> HostStepsTable:
        """`schema.HOST_STEPS`: CPU times of steps. Runs with GPU activity have no rows."""
        return self._table("host_steps")

    @abstractmethod
    def operations(
        self, steps: AskedSteps = None, ranks: AskedRanks = None
    ) -> Iterator[schema.OfRank]:
        """Yield each rank with its `schema.EVENTS` and `schema.PHASE_RANGES`, in order of rank.

        Parameters
        ----------
        steps
            The first and the last step, by number, or one step. By default, this is the whole
            capture.
        ranks
            These ranks only: numbers, or a text such as ``"0-7,63"``. By default, these are all
            ranks. nsyspipe reads no other reports.

        Raises
        ------
        OptionError
            If there is no such step or rank.
        DatasetError
            If the run was saved without its operations.
        """

    def telling_ranks(self, most: int) -> list[int]:
        """Return the most informative ranks of the run.

        These are the rank that the others waited for most, the slowest, the one with the most
        exposed communication, the fastest, and some between.

        Parameters
        ----------
        most
            Largest number of ranks.
        """
        check_whole("most", most, "most=8", 0)
        captures = self.breakdown() if self.is_capture else None
        return telling_ranks(self.rank_summary(), self.stragglers(), captures, most)

    def chosen_ranks(self, ranks: object) -> list[int]:
        """Return the ranks that you ask for, in ascending order.

        Raises
        ------
        OptionError
            If the run does not have one of the ranks.
        """
        present: list[int] = self.ranks["rank"].to_pylist()
        if ranks is None:
            return present
        wanted = asked_ranks(ranks)
        unknown = sorted(wanted - {*present})
        if unknown:
            raise _unknown_ranks(unknown, wanted, present)
        return sorted(wanted)

    def __repr__(self) -> str:
        try:
            figures = self.summary().to_pylist()[0]
        except NsyspipeError as error:
            first_line = str(error).splitlines()[0]
            return f"<Run that cannot be read: {first_line}>"
        if self.is_capture:
            steps = "a capture without steps"
        else:
            steps = f"{counted(figures['n_steps'], 'step')}, {figures['n_summary_steps']} used"
        ranks = counted(self.header.n_ranks, "rank")
        return f"<Run {self.header.label!r}: {ranks}, {steps}>"

    def table(self, name: str) -> pa.Table:
        """Return the table with this name.

        Raises
        ------
        OptionError
            If there is no such table.
        """
        return self._named_table(name)

    _TABLES = (*schema.RUN_TABLES, "breakdown", "costs")

    def _named_table(self, name: str) -> pa.Table:
        if name in [*schema.EVENT_TABLES]:
            fix = "for rank, events, phase_ranges in run.operations()"
            raise OptionError(f"table {name!r}", "is given rank by rank", fix=fix)
        if name in self._TABLES and not hasattr(self, name):
            return self._table(name)
        return super()._named_table(name)


def _unknown_ranks(
    unknown: Sequence[int], wanted: Collection[int], present: Sequence[int]
) -> OptionError:
    """Return the error for ranks that a run does not have.

    The fix suggests the wanted ranks that the run has, or all ranks of the run if it has none of
    them.
    """
    wanted_and_present = {*wanted}.intersection(present)
    usable = ",".join(ranges(wanted_and_present or present))
    shown = shortened(few(ranges(unknown), _MAX_RANGES_SHOWN), _MAX_TEXT_LENGTH)
    return OptionError(
        f"ranks {shown}",
        "are not in this run",
        found=f"ranks {few(ranges(present), _MAX_RANGES_SHOWN)}",
        fix=f"--perfetto-ranks {usable}" if present else None,
    )

"""The public noun: a run of several ranks, wherever its tables come from, and the header that identifies it."""

from __future__ import annotations

import itertools
import json
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from numbers import Integral
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, TypeAlias

import numpy as np
import pyarrow as pa

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
from nsyspipe.model.names import few, ranges
from nsyspipe.model.options import asked_ranks, check_kind, check_whole
from nsyspipe.model.problems import SkippedCheck
from nsyspipe.model.side_files import NcclFacts
from nsyspipe.nsys.command_words import MASK
from nsyspipe.run.rank_names import RankNames

if TYPE_CHECKING:
    import pandas as pd

AskedSteps: TypeAlias = (
    tuple[int, int] | int | None
)  # the first and the last, or one, by number; None for all
AskedRanks: TypeAlias = Iterable[int] | int | str | None  # likewise, or as text: 0-7,63
# ranges of ranks in a message, and its letters
_SHOWN = 8
_LONG = 100
# What the steps of a run come from: ranges, what launches repeat, without device activity its
# hosts; or there are none.
RANGES = "ranges"
REPETITION = "repetition"
HOST = "host"
CAPTURE = "capture"
# What commands and pages ask of runs and answers, which completion in Python does not offer.
_PLUMBING = {
    "chosen",
    "chosen_ranks",
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


@dataclass(frozen=True)
class RunHeader:
    """The ``run`` object of the JSON document, field by field."""

    # the user's, else the capture's start and a digest of what was captured, whichever nsys
    # exported it
    run_id: str
    label: str
    n_ranks: int
    world_size: int | None  # as captured; None when nothing says
    gpu_names: list[str]
    hosts: list[str]
    nsys_versions: list[str]
    export_schema_versions: list[str]
    captured_at_utc: str | None  # start of the earliest session, ISO 8601
    reports: list[str]
    capture: RunCapture | None = None  # from the sidecar beside the reports; None without one
    # Processes that the ranks are of: fewer than ranks where some have several devices; None of a
    # run saved before this was told
    n_processes: int | None = None
    n_processes_without_kernels: int | None = (
        None  # that did what ranks do, and are none: `run.unrecorded`
    )
    # Training variables of the programs when they started, by the reports, as they may be written
    # down; values of different processes side by side; None where no report captured them.
    environment: dict[str, str] | None = None
    steps_from: str | None = (
        None  # `RANGES`, `REPETITION`, `HOST` or `CAPTURE`; None where nothing was recorded at all
    )
    # What reports say; nothing where they do not, and in runs saved before this was read.
    driver_versions: list[str] = field(default_factory=list)
    cuda_driver_versions: list[str] = field(
        default_factory=list
    )  # of CUDA that the driver supports
    traced_events: list[str] = field(default_factory=list)  # kinds of events, as nsys calls them
    cuda_graph_traces: list[str] = field(default_factory=list)  # ``graph`` or ``node``
    commands: list[str] = field(
        default_factory=list
    )  # of the programs that nsys started, as they may be written down

    @property
    def training_variables(self) -> dict[str, str] | None:
        """What reports captured, before what a launcher saw unless it is hidden; None where neither recorded any."""
        seen = self.capture.environment if self.capture else {}
        captured = self.environment or {}
        shown = {
            name: value for name, value in captured.items() if name not in seen or MASK not in value
        }
        return None if self.environment is None and not seen else {**seen, **shown}

    @property
    def has_shared_processes(self) -> bool:
        """Whether some process has several ranks, each on a device of its own."""
        return self.n_processes is not None and self.n_processes < self.n_ranks

    @property
    def n_job_ranks(self) -> int | None:
        """How many ranks the job had, at least so many where processes that are missing may have several; None: not known."""
        if self.world_size is None and self.n_processes_without_kernels:
            return self.n_ranks + self.n_processes_without_kernels
        return job_ranks(self.n_ranks, self.n_processes, self.world_size)


def job_ranks(n_ranks: int, n_processes: int | None, world_size: int | None) -> int | None:
    """Return how many ranks a job had of which some are there: a launcher counts processes, whatever devices they have."""
    if n_processes is None or n_processes == n_ranks or world_size is None:
        return world_size
    return n_ranks + max(world_size - n_processes, 0)


def steps_source(n_ranks: int, n_host_steps: int, family: str | None) -> str | None:
    """Return what a run's steps, which are a family or none, come from, as `RunHeader.steps_from` says it."""
    if n_ranks:
        return CAPTURE if family is None else REPETITION if family == BY_REPETITION else RANGES
    return HOST if n_host_steps else None


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
        found = getattr(self, name)
        return found() if callable(found) else found

    def to_pandas(self, table: str) -> pd.DataFrame:
        """Return one of the tables as a DataFrame with Arrow types, so that no integer becomes a float.

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

    given_label: (
        str | None
    )  # what whoever opened it calls it; None: it is called by what is known of it

    def _table(self, name: str) -> pa.Table:
        if name not in self._made:
            self._made[name] = self._make(name)
        return self._made[name]

    @cached_property
    def _made(self) -> dict[str, pa.Table]:
        return {}

    @abstractmethod
    def _make(self, name: str) -> pa.Table:
        """Make, or read, one of the tables, by its name among `schema.RUN_TABLES`; asked once."""

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
        """Version of the definitions that the metrics follow. A run that an older nsyspipe saved has an older version."""
        return DEFINITIONS_VERSION

    @property
    @abstractmethod
    def step_family(self) -> str | None:
        """The NVTX texts of the steps, with ``#`` for digits, or the pattern that you passed. None without steps."""

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
    def link(self) -> LinkVerdict | None:
        """The slowest connection and the bandwidth that was reached. None if no rank or no connection is known."""

    @property
    def ranks(self) -> pa.Table:
        """`schema.RANKS`: one row per rank, sorted by rank."""
        return self._table("ranks")

    @cached_property
    def rank_names(self) -> RankNames:
        """The names of the ranks: numbers, or process and GPU if a process has several ranks."""
        return RankNames.of(self.ranks)

    @property
    def problems(self) -> pa.Table:
        """`schema.PROBLEMS`: errors, warnings and notes about the reports, most severe first, each with its fix."""
        return schema.PROBLEMS.from_rows(rows_in_python(self.problem_rows))

    @property
    def problem_rows(self) -> list[dict[str, Any]]:
        """The rows of `problems` in the words of the command line."""
        rows: list[dict[str, Any]] = self._table("problems").to_pylist()
        return rows

    def steps(self) -> pa.Table:
        """`schema.STEPS`: one row per (rank, step) with window, time breakdown and ratios, sorted by (rank, start)."""
        return self._table("steps")

    def breakdown(self) -> pa.Table:
        """Return the rows of `steps` that the metrics use: complete on every rank, and not skipped."""
        steps = self.steps()
        return steps.filter(steps["in_summary"])

    def phases(self) -> pa.Table:
        """`schema.PHASES`: one row per (rank, step, phase), in this order."""
        return self._table("phases")

    def collectives(self) -> pa.Table:
        """`schema.COLLECTIVES`: one row per (step, collective, rank) with wait, transfer and skew, in this order."""
        return self._table("collectives")

    def stragglers(self) -> pa.Table:
        """`schema.STRAGGLERS`: the time that other ranks waited for each rank, sorted by rank."""
        return self._table("stragglers")

    def traffic(self) -> pa.Table:
        """`schema.TRAFFIC`: size and time of the communication of each communicator, by parallelism, all ranks first."""
        return self._table("traffic")

    def links(self) -> pa.Table:
        """`schema.LINKS`: the connections between ranks, from the NCCL log or topology. No rows if there is neither."""
        return self._table("links")

    def findings(self) -> pa.Table:
        """`schema.FINDINGS`: causes of lost time and recommendations, the largest saving first."""
        rows = rows_in_python(self.finding_rows, "title", "action", "advice")
        for row in rows:
            told = json.loads(row["evidence"]).items()
            row["evidence"] = json.dumps(
                {key: in_python(one) if isinstance(one, str) else one for key, one in told}
            )
        return schema.FINDINGS.from_rows(rows)

    @property
    def finding_rows(self) -> list[dict[str, Any]]:
        """The rows of `findings` in the words of the command line."""
        rows: list[dict[str, Any]] = self._table("findings").to_pylist()
        return rows

    def judged_findings(self) -> pa.Table:
        """`schema.FINDINGS` without a simulation: this takes no time, but estimated savings may be missing."""
        return self._table("findings")

    def kernels(self, top: int | None = None) -> pa.Table:
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
        found = self._table("kernels")
        return found if top is None else costliest(found, top)

    def costs(self) -> pa.Table:
        """`schema.COSTS`: the most expensive kernels, collectives and communicators, as ``--top`` and ``--csv`` show them."""
        tables = self.kernels(), self.collectives(), self.traffic(), self.breakdown()
        are_groups_known = "groups-not-named" not in {row["code"] for row in self.problem_rows}
        return costs(*tables, is_capture=self.is_capture, are_groups_known=are_groups_known)

    def summary(self) -> pa.Table:
        """`schema.SUMMARY`: the metrics of the run, in one row."""
        return self._table("summary")

    def evenness(self) -> Evenness | None:
        """Return how much the step times of the summary steps vary, in ns. None without steps."""
        return (
            None if self.is_capture else evenness(step_times(self.breakdown()).astype(np.float64))
        )

    def rank_summary(self) -> pa.Table:
        """`schema.RANK_SUMMARY`: the metrics of each rank, sorted by rank."""
        return self._table("rank_summary")

    def phase_summary(self) -> pa.Table:
        """`schema.PHASE_SUMMARY`: the mean times of each phase, sorted by phase."""
        return self._table("phase_summary")

    def idle_calls(self) -> pa.Table:
        """`schema.IDLE_CALLS`: the API calls that blocked CPUs while their GPUs were idle, largest first."""
        return self._table("idle_calls")

    def timeline(self, step: int | None = None, ranks: AskedRanks = None) -> pa.Table:
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

    def _timeline(self, step: int | None = None, ranks: AskedRanks = None) -> pa.Table:
        from nsyspipe.analysis import timeline as drawing  # noqa: PLC0415 - few ask for it

        if step is None and (step := drawing.representative_step(self.steps())) is None:
            return schema.TIMELINE.empty()
        if ranks is None:
            telling = [
                *self.telling_ranks(drawing.MAX_RANKS // 8),
                *self.telling_ranks(drawing.MAX_RANKS),
            ]
            ranks = drawing.drawn_ranks(self.steps(), step, telling)
        operations = self.operations((step, step), ranks)
        # With the first one asked for, workers go on reading while this process makes its
        # collectives.
        first = list(itertools.islice(operations, 1))
        return drawing.timeline(
            self.steps(), self.collectives(), itertools.chain(first, operations), step
        )

    def host_steps(self) -> pa.Table:
        """`schema.HOST_STEPS`: the CPU times of the steps of a run without GPU activity. Other runs have no rows."""
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
        whole = self.breakdown() if self.is_capture else None
        return telling_ranks(self.rank_summary(), self.stragglers(), whole, most)

    def chosen_ranks(self, ranks: object) -> list[int]:
        """Return the ranks that you ask for, in ascending order.

        Raises
        ------
        OptionError
            If the run does not have one of the ranks.
        """
        there: list[int] = self.ranks["rank"].to_pylist()
        if ranks is None:
            return there
        wanted = asked_ranks(ranks)
        unknown = sorted(wanted - {*there})
        if unknown:
            found = few(ranges(there), _SHOWN)
            left = ",".join(ranges(wanted & {*there} or there))
            found = f"ranks {found}"
            fix = f"--perfetto-ranks {left}" if there else None
            given = f"ranks {shortened(few(ranges(unknown), _SHOWN), _LONG)}"
            raise OptionError(given, "are not in this run", found=found, fix=fix)
        return sorted(wanted)

    def __repr__(self) -> str:
        try:
            figures = self.summary().to_pylist()[0]
        except NsyspipeError as error:
            return f"<Run that cannot be read: {str(error).splitlines()[0]}>"
        steps = f"{figures['n_steps']} steps, {figures['n_summary_steps']} used"
        steps = "a capture without steps" if self.is_capture else steps
        return f"<Run {self.header.label!r}: {self.header.n_ranks} ranks, {steps}>"

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
        return (
            self._table(name)
            if name in self._TABLES and not hasattr(self, name)
            else super()._named_table(name)
        )

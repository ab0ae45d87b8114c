"""The public noun: a run of several ranks, wherever its tables come from."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from nsyspipe.errors import OptionError
from nsyspipe.header import CAPTURE
from nsyspipe.metrics.kernels import costliest
from nsyspipe.metrics.summary import step_times
from nsyspipe.statistics import evenness

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    import pandas as pd

    from nsyspipe.fabric import NcclFacts
    from nsyspipe.findings.link_evidence import LinkVerdict
    from nsyspipe.header import RunHeader
    from nsyspipe.statistics import Evenness

__all__ = ["RUN_TABLES", "Run"]

RUN_TABLES = (
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
    "timeline",
    "host_steps",
    "findings",
    "problems",
)


class Run(ABC):
    """One training run, read from its reports or from a dataset that `analyze --out` wrote.

    Nothing is read until a table is asked for. Tables are Arrow tables with the schemas of
    `nsyspipe.schema`; times are int64 ns and null means "not recorded". Build one with `nsyspipe.load`.

    Examples
    --------
    >>> run = nsyspipe.load("ddp-8gpu_*.sqlite")  # doctest: +SKIP
    >>> run.summary().to_pylist()[0]["exposed_comm_share"]  # doctest: +SKIP
    0.12
    """

    @property
    @abstractmethod
    def inputs(self) -> Sequence[Path]:
        """The files or directories it is read from: never an output."""

    @property
    @abstractmethod
    def header(self) -> RunHeader:
        """What identifies the run: id, label, sizes, versions, hosts, time of capture."""

    @property
    @abstractmethod
    def step_family(self) -> str | None:
        """The NVTX texts that are the steps: digits as ``#``, or the given pattern; None without steps."""

    @property
    def is_capture(self) -> bool:
        """Whether there are no steps, so that the figures are of the capture as a whole."""
        return self.header.steps_from == CAPTURE

    @property
    @abstractmethod
    def skipped_steps(self) -> list[int]:
        """Complete steps at the start that the figures leave out."""

    @property
    @abstractmethod
    def nccl(self) -> NcclFacts | None:
        """What NCCL logged of this run: version and settings; None without a log of it."""

    @property
    @abstractmethod
    def link(self) -> LinkVerdict | None:
        """The slowest of the links and the bandwidth that was reached; None where no rank or no link is known."""

    @property
    @abstractmethod
    def ranks(self) -> pa.Table:
        """`schema.RANKS`: one row per rank, sorted by it."""

    @property
    @abstractmethod
    def problems(self) -> pa.Table:
        """`schema.PROBLEMS`: what could not be read or judged, which answers it costs; the gravest first."""

    @abstractmethod
    def steps(self) -> pa.Table:
        """`schema.STEPS`: one row per (rank, step) with window, breakdown and ratios, sorted by (rank, start)."""

    def breakdown(self) -> pa.Table:
        """Return the rows of `steps` that the figures rest on: complete on every rank, less the skipped."""
        steps = self.steps()
        return steps.filter(steps["in_summary"])

    @abstractmethod
    def phases(self) -> pa.Table:
        """`schema.PHASES`: one row per (rank, step, phase), sorted so."""

    @abstractmethod
    def collectives(self) -> pa.Table:
        """`schema.COLLECTIVES`: one row per (step, collective, rank) with wait, transfer and skew, sorted so."""

    @abstractmethod
    def stragglers(self) -> pa.Table:
        """`schema.STRAGGLERS`: how the others waited for each rank, sorted by rank."""

    @abstractmethod
    def links(self) -> pa.Table:
        """`schema.LINKS`: what the ranks' communication crosses; no rows without NCCL's log and the topology."""

    @abstractmethod
    def findings(self) -> pa.Table:
        """`schema.FINDINGS`: what to change first, by what it could bring."""

    def judged_findings(self) -> pa.Table:
        """`schema.FINDINGS` as the rules gave them: what a replay expects may be missing, and takes no time."""
        return self.findings()

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
        found = self._all_kernels()
        return found if top is None else costliest(found, top)

    @abstractmethod
    def _all_kernels(self) -> pa.Table: ...

    @abstractmethod
    def summary(self) -> pa.Table:
        """`schema.SUMMARY`: the run's figures, one row."""

    def evenness(self) -> Evenness | None:
        """How alike the step times of the summary steps are, in ns; None without steps (a capture, host steps)."""
        return (
            None if self.is_capture else evenness(step_times(self.breakdown()).astype(np.float64))
        )

    @abstractmethod
    def rank_summary(self) -> pa.Table:
        """`schema.RANK_SUMMARY`: the same figures per rank, sorted by rank."""

    @abstractmethod
    def phase_summary(self) -> pa.Table:
        """`schema.PHASE_SUMMARY`: the mean times of each phase, sorted by phase."""

    @abstractmethod
    def idle_calls(self) -> pa.Table:
        """`schema.IDLE_CALLS`: the API calls that hosts were blocked in while devices idled, largest first."""

    @abstractmethod
    def timeline(self) -> pa.Table:
        """`schema.TIMELINE`: the representative step, reduced to what can be drawn; sorted by (rank, lane, start)."""

    @abstractmethod
    def host_steps(self) -> pa.Table:
        """`schema.HOST_STEPS`: the host times of the steps of a run without device activity; no rows in any other run."""

    @abstractmethod
    def operations(
        self, steps: tuple[int, int] | None = None
    ) -> Iterator[tuple[int, pa.Table, pa.Table]]:
        """Yield each rank with its `schema.EVENTS` and `schema.PHASE_RANGES`, in order of rank.

        Parameters
        ----------
        steps
            The first and the last step to take, by number; None takes everything captured.

        Raises
        ------
        OptionError
            If there is no such step.
        DatasetError
            If the run was saved without its operations.
        """

    def __repr__(self) -> str:
        figures = self.summary().to_pylist()[0]
        if self.is_capture:
            return (
                f"<Run {self.header.label!r}: {self.header.n_ranks} ranks, a capture without steps>"
            )
        return (
            f"<Run {self.header.label!r}: {self.header.n_ranks} ranks, {figures['n_steps']} steps, "
            f"{figures['n_summary_steps']} in the figures>"
        )

    def to_pandas(self, table: str) -> pd.DataFrame:
        """Return one of the tables as a DataFrame with Arrow types, so that no integer becomes a float.

        Parameters
        ----------
        table
            ``ranks``, ``steps``, ``breakdown``, ``phases``, ``collectives``, ``stragglers``, ``kernels``, ``links``,
            ``summary``, ``rank_summary``, ``phase_summary``, ``idle_calls``, ``timeline``, ``host_steps``,
            ``findings`` or ``problems``.

        Raises
        ------
        OptionError
            If there is no such table.
        """
        import pandas as pd  # heavy, and only this edge needs it

        if table not in RUN_TABLES:
            raise OptionError.no_such_name(
                f"table {table!r}", "there is no such table", table, RUN_TABLES
            )
        found = getattr(self, table)
        found = found if isinstance(found, pa.Table) else found()
        frame: pd.DataFrame = found.to_pandas(types_mapper=pd.ArrowDtype)
        return frame

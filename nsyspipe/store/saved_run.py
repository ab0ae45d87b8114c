"""A run read back from a store: the same tables, without its reports."""

from __future__ import annotations

import json
from dataclasses import dataclass, fields, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, TypeVar

from nsyspipe import schema
from nsyspipe.errors import DatasetError
from nsyspipe.fabric import NcclFacts
from nsyspipe.findings.link_evidence import LinkVerdict
from nsyspipe.header import RunHeader, steps_source
from nsyspipe.run import Run
from nsyspipe.sidecar_model import RunCapture
from nsyspipe.slowest_link import SlowestLink
from nsyspipe.store.layout import file_of
from nsyspipe.store.read import AGAIN, read_table
from nsyspipe.store.saved_operations import saved_operations

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    import pyarrow as pa

__all__ = ["SavedRun"]

_Kind = TypeVar("_Kind", RunHeader, RunCapture, NcclFacts, LinkVerdict, SlowestLink)


@dataclass(frozen=True, repr=False)
class SavedRun(Run):
    """A run that `store.save` wrote; each table is read when it is asked for.

    Attributes
    ----------
    store
        What the user named.
    tables
        The directory of the tables, one snapshot of the store.
    label
        Another name for it; None keeps its own.
    """

    store: Path
    tables: Path
    run_id: str
    label: str | None = None

    def _table(self, name: str) -> pa.Table:
        if name not in self._read:
            self._read[name] = read_table(self.tables, name, self.run_id)
        return self._read[name]

    @cached_property
    def _read(self) -> dict[str, pa.Table]:
        return {}

    @cached_property
    def _row(self) -> dict[str, Any]:
        rows = self._table("runs").to_pylist()
        if len(rows) != 1:
            raise DatasetError(
                str(self.tables), f"holds {len(rows)} rows of the run, not 1", fix=AGAIN
            )
        found: dict[str, Any] = rows[0]
        return found

    @cached_property
    def _details(self) -> dict[str, Any]:
        """What no column holds, as objects again."""
        try:
            found = json.loads(self._row["details"])
            link = found["link"]
            if link is not None:
                slowest = link["slowest"] and _rebuilt(SlowestLink, link["slowest"])
                link |= {"slowest": slowest, "lacking": tuple(link["lacking"])}
            header = found["header"]
            capture = header.get("capture")
            header |= {"capture": capture and _rebuilt(RunCapture, capture)}
            return {
                "header": _rebuilt(RunHeader, header),
                "skipped_steps": list(found["skipped_steps"]),
                "nccl": found["nccl"] and _rebuilt(NcclFacts, found["nccl"]),
                "link": link and _rebuilt(LinkVerdict, link),
                "n_host_steps": found.get("n_host_steps"),
            }
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            path = file_of(self.tables, "runs", self.run_id)
            raise DatasetError(str(path), f"has no usable details ({error})", fix=AGAIN) from error

    @property
    def inputs(self) -> tuple[Path, ...]:
        return (self.store,)

    @cached_property
    def header(self) -> RunHeader:
        header: RunHeader = self._details["header"]
        found = header.steps_from or steps_source(
            header.n_ranks,
            self._details["n_host_steps"] or 0,
            has_family=self.step_family is not None,
        )
        return replace(
            header, run_id=self.run_id, label=self.label or header.label, steps_from=found
        )

    @property
    def step_family(self) -> str | None:
        family: str | None = self._row["step_family"]
        return family

    @property
    def skipped_steps(self) -> list[int]:
        return list(self._details["skipped_steps"])

    @property
    def nccl(self) -> NcclFacts | None:
        found: NcclFacts | None = self._details["nccl"]
        return found

    @property
    def link(self) -> LinkVerdict | None:
        found: LinkVerdict | None = self._details["link"]
        return found

    @property
    def ranks(self) -> pa.Table:
        return self._table("ranks")

    @property
    def problems(self) -> pa.Table:
        return self._table("problems")

    def steps(self) -> pa.Table:
        return self._table("steps")

    def phases(self) -> pa.Table:
        return self._table("phases")

    def collectives(self) -> pa.Table:
        return self._table("collectives")

    def stragglers(self) -> pa.Table:
        return self._table("stragglers")

    def links(self) -> pa.Table:
        return self._table("links")

    def findings(self) -> pa.Table:
        return self._table("findings")

    def _all_kernels(self) -> pa.Table:
        return self._table("kernels")

    def summary(self) -> pa.Table:
        return schema.conform(self._table("runs"), schema.SUMMARY)

    def rank_summary(self) -> pa.Table:
        return self._table("rank_summary")

    def phase_summary(self) -> pa.Table:
        return self._table("phase_summary")

    def idle_calls(self) -> pa.Table:
        return self._table("idle_calls")

    def timeline(self) -> pa.Table:
        return self._table("timeline")

    def host_steps(self) -> pa.Table:
        if self._details["n_host_steps"] is None:  # saved before there was this table
            return schema.HOST_STEPS.empty()
        return self._table("host_steps")

    def operations(
        self, steps: tuple[int, int] | None = None
    ) -> Iterator[tuple[int, pa.Table, pa.Table]]:
        ranks = self.ranks["rank"].to_pylist()
        return saved_operations(self.tables, self.run_id, self.steps(), ranks, steps)


def _rebuilt(kind: type[_Kind], found: dict[str, Any]) -> _Kind:
    """Make an object of its fields; those that only a later nsyspipe has are left out."""
    known = {field.name for field in fields(kind)}
    return kind(**{name: value for name, value in found.items() if name in known})

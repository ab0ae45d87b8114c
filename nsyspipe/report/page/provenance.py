"""Where a page's numbers come from: reports, versions, clocks; and how each number is defined."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from nsyspipe.report.capture_words import capture_rows
from nsyspipe.report.page.tables import Column, Table
from nsyspipe.schema import DESCRIBED, TIMELINE
from nsyspipe.units import absent, count_text
from nsyspipe.version import __version__

if TYPE_CHECKING:
    from nsyspipe.run import Run
    from nsyspipe.schema import TableSchema

__all__ = ["Definition", "definitions", "provenance", "rank_table"]

_DEFINED = ("summary", "steps", "phases", "collectives", "stragglers", "kernels", "idle_calls", "links", "findings")  # fmt: skip
_NS_PER_US = 1000


@dataclass(frozen=True)
class Definition:
    """One table of `nsyspipe.schema`: its name, its grain, and its columns."""

    name: str
    doc: str
    table: Table


def definitions() -> list[Definition]:
    """Return the tables that the page shows, with every column's unit and formula."""
    known = [DESCRIBED[name] for name in _DEFINED if name in DESCRIBED]
    return [_definition(schema) for schema in [*known, TIMELINE]]


def _definition(schema: TableSchema) -> Definition:
    columns = [Column("column", "name"), Column("unit", "text"), Column("meaning", "text"), Column("source", "text")]  # fmt: skip
    rows = [[one.name, one.unit, one.doc, one.source or absent] for one in schema.columns]
    return Definition(schema.name, schema.doc, Table(f"Columns of {schema.name}", columns, rows))


def provenance(run: Run) -> list[tuple[str, str]]:
    """Return what identifies the run and its capture, as pairs."""
    header = run.header
    world = header.world_size
    return [
        ("run id", header.run_id),
        ("label", header.label),
        ("captured", header.captured_at_utc or absent),
        ("ranks", f"{header.n_ranks}" + (f" of {world}" if world is not None else "")),
        ("GPU", ", ".join(header.gpu_names) or absent),
        ("hosts", ", ".join(header.hosts) or absent),
        ("Nsight Systems", ", ".join(header.nsys_versions) or absent),
        ("export schema", ", ".join(header.export_schema_versions) or absent),
        ("steps", run.step_family or ("none: a capture" if run.is_capture else "none marked")),
        *capture_rows(header.capture),
        ("nsyspipe", __version__),
    ]


def rank_table(run: Run) -> Table:
    """Return which report and process each rank is, and how well its clock fits the others'."""
    columns = [
        Column("rank"),
        Column("report", "name"),
        Column("pid"),
        Column("device", hint="CUDA ordinal inside the process"),
        Column("GPU", "text"),
        Column("host", "text"),
        Column("rank known by", "text"),
        Column("kernels"),
        Column("of them communication"),
        Column("clock offset"),
        Column("clock error"),
    ]
    rows = [
        [
            str(row["rank"]),
            row["report"],
            str(row["pid"]),
            row["device_ids"] or absent,
            row["gpu_name"] or absent,
            row["host"] or absent,
            row["rank_source"],
            count_text(row["n_kernels"]),
            count_text(row["n_comm"]),
            _us(row["clock_offset_ns"]),
            _us(row["clock_error_ns"]),
        ]
        for row in run.ranks.to_pylist()
    ]
    return Table("Ranks and their reports", columns, rows)


def _us(ns: int | None) -> str:
    return absent if ns is None else f"{ns / _NS_PER_US:.1f} \N{MICRO SIGN}s"

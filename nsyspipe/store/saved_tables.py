"""From a run to the tables of the dataset."""

from __future__ import annotations

import json
from dataclasses import asdict
from datetime import datetime
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from nsyspipe import schema
from nsyspipe.schema import DATASET, METRICS, SCHEMA_VERSION
from nsyspipe.schema.model import FLOAT, INT
from nsyspipe.version import __version__

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from nsyspipe.run import Run
    from nsyspipe.schema import Column

__all__ = ["runs_table", "saved", "saved_tables"]

# Of a step, these say where it lies; they are no figures.
_PLACES = ("rank", "step", "start_ns", "end_ns")


def saved_tables(run: Run) -> dict[str, pa.Table]:
    """Return every table of the dataset but `runs` and those of single operations.

    Returns
    -------
    dict
        By name; each with the schema of `schema.DATASET`, sorted by its key.
    """
    run_id = run.header.run_id
    timeline = run.timeline()  # first: workers read for it while the rest is made here
    found = {
        "ranks": run.ranks,
        "steps": run.steps(),
        "phases": run.phases(),
        "collectives": run.collectives(),
        "stragglers": run.stragglers(),
        "kernels": run.kernels(),
        "links": run.links(),
        "rank_summary": run.rank_summary(),
        "phase_summary": run.phase_summary(),
        "idle_calls": run.idle_calls(),
        "timeline": timeline,
        "host_steps": run.host_steps(),
        "findings": run.findings(),
        "problems": run.problems,
        "metrics": _metrics(run),
    }
    return {name: saved(name, table, run_id) for name, table in found.items()}


def saved(name: str, table: pa.Table, run_id: str) -> pa.Table:
    """Put the run's id before the columns of one of its tables."""
    codes = pa.array(np.zeros(table.num_rows, np.int32))
    ids = pa.DictionaryArray.from_arrays(codes, pa.array([run_id]))
    return DATASET[name].table({"run_id": ids, **{one: table[one] for one in table.column_names}})


def runs_table(run: Run, files: Mapping[str, str]) -> pa.Table:
    """Return the table `runs`: the run's row.

    Parameters
    ----------
    files
        Digests of all other files that are saved with it, by name.
    """
    return DATASET["runs"].from_rows([_run_row(run, files)])


def _run_row(run: Run, files: Mapping[str, str]) -> dict[str, Any]:
    header = asdict(run.header)
    lists = {name: ", ".join(value) for name, value in header.items() if isinstance(value, list)}
    captured = header["captured_at_utc"]
    details = {
        "header": header,
        "skipped_steps": run.skipped_steps,
        "nccl": None if run.nccl is None else asdict(run.nccl),
        "link": None if run.link is None else asdict(run.link),
        "n_host_steps": run.host_steps().num_rows,
        "files": dict(sorted(files.items())),
    }
    known = run.link.slowest if run.link else None
    return {
        **header,
        **lists,
        "captured_at_utc": datetime.fromisoformat(captured) if captured else None,
        "step_family": run.step_family,
        **run.summary().to_pylist()[0],
        "link_kind": known.kind if known else None,
        "nccl_version": run.nccl.version if run.nccl else None,
        "tool_version": __version__,
        "schema_version": SCHEMA_VERSION,
        "details": json.dumps(details),
    }


def _metrics(run: Run) -> pa.Table:
    """Return `schema.METRICS`: the run's figures, then each rank's, each followed by its steps'."""
    parts = [
        _long(run.summary(), schema.SUMMARY.columns),
        _long(run.rank_summary(), schema.RANK_SUMMARY.columns),
        _long(run.steps(), schema.STEPS.columns),
    ]
    table = pa.concat_tables(parts)
    # Nulls first; how to ask Arrow for that depends on its version.
    keys = [key for name in METRICS.key for key in (pc.is_valid(table[name]), table[name])]
    names = [str(number) for number in range(len(keys))]
    order = pc.sort_indices(pa.table(keys, names=names), [(name, "ascending") for name in names])
    return table.take(order)


def _long(table: pa.Table, columns: Sequence[Column]) -> pa.Table:
    """Return one row per row and figure of a table."""
    figures = [c for c in columns if c.type in (INT, FLOAT) and c.name not in _PLACES]
    n_rows, n_figures = table.num_rows, len(figures)

    def by_row(name: str, kind: pa.DataType) -> pa.Array:
        if name not in table.column_names:
            return pa.nulls(n_rows * n_figures, kind)
        repeated = np.tile(np.arange(n_rows), n_figures)
        return table[name].combine_chunks().take(pa.array(repeated))

    def by_figure(texts: list[str]) -> pa.Array:
        codes = np.repeat(np.arange(n_figures, dtype=np.int32), n_rows)
        return pa.DictionaryArray.from_arrays(pa.array(codes), pa.array(texts, pa.string()))

    values = [pc.cast(table[figure.name], FLOAT, safe=False) for figure in figures]
    return METRICS.table(
        {
            "rank": by_row("rank", INT),
            "step": by_row("step", INT),
            "metric": by_figure([figure.name for figure in figures]),
            "unit": by_figure([figure.unit for figure in figures]),
            "value": pa.chunked_array([c for v in values for c in v.chunks], FLOAT),
            "in_summary": by_row("in_summary", pa.bool_()),
        }
    )

"""Kernels by normalised name and phase, as a table."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from nsyspipe.attribution import UNKNOWN
from nsyspipe.classify import kernel_label
from nsyspipe.labels import PHASES
from nsyspipe.metrics.kernels import kernel_costs
from nsyspipe.schema import GRAPH_NAME_ID

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray

    from nsyspipe.attribution import ProcessOperations
    from nsyspipe.intervals import IntervalSet
    from nsyspipe.metrics.window_sums import WindowSums
    from nsyspipe.steps import Windows

    Int64 = NDArray[np.int64]

__all__ = ["kernel_labels", "kernels_table"]

_GRAPH, _NAMELESS = "CUDA graph", "(no name)"
# Ids are looked up in a table up to this size, above it by bisection.
_LARGEST_TABLE = 2**22


def kernels_table(
    operations: ProcessOperations,
    names: Mapping[int, str],
    phase: NDArray[np.int8],
    comm: IntervalSet,
    windows: Windows,
) -> tuple[pa.Table, WindowSums]:
    """Return `metrics.kernels.kernel_costs` with words: ``phase`` (null for none) and ``name``."""
    labels, label = kernel_labels(operations.kernel_column("name_id"), names)
    costs, by_window = kernel_costs(
        operations, label, phase, comm, n_phases=len(PHASES), windows=windows
    )
    words = pa.array([*PHASES, None], pa.string())
    table = pa.table(
        {
            "phase": words.take(pa.array(costs.pop("phase"))),
            "name": pa.array(labels, pa.string()).take(pa.array(costs.pop("label"))),
            **{name: pa.array(values) for name, values in costs.items()},
        }
    )
    return table, by_window


def kernel_labels(name_ids: Int64, names: Mapping[int, str]) -> tuple[list[str], Int64]:
    """Return the labels in order of the alphabet, and which one each kernel has."""
    by_id = {number: kernel_label(text) for number, text in names.items()}
    by_id[GRAPH_NAME_ID] = _GRAPH
    labels = sorted({*by_id.values(), _NAMELESS})
    codes = {text: code for code, text in enumerate(labels)}
    ids = np.array([UNKNOWN, *sorted(by_id)], np.int64)
    code = np.array([codes[_NAMELESS], *(codes[by_id[number]] for number in sorted(by_id))])
    if 0 <= ids[-1] < _LARGEST_TABLE and ids[1] == GRAPH_NAME_ID:
        table = np.full(int(ids[-1]) + 3, codes[_NAMELESS])
        table[ids[1:]] = code[1:]  # a graph's -1 is the last place; the one before is nobody's
        nobody = ids[-1] + 1
        inside = (name_ids >= GRAPH_NAME_ID) & (name_ids <= ids[-1])
        return labels, table[name_ids if inside.all() else np.where(inside, name_ids, nobody)]
    at = np.searchsorted(ids, name_ids, side="right") - 1
    return labels, np.where(ids[at] == name_ids, code[at], codes[_NAMELESS])

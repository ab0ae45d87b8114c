"""The steps of a run without device activity: one table of what its hosts saw."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from nsyspipe import schema
from nsyspipe.labels import PHASES
from nsyspipe.steps import step_numbers

if TYPE_CHECKING:
    from collections.abc import Sequence

    from nsyspipe.placing import PlacedHost

__all__ = ["host_steps_table"]


def host_steps_table(
    placed: Sequence[PlacedHost], ranks: Sequence[int] | None, names: Sequence[str]
) -> pa.Table:
    """Return `schema.HOST_STEPS`.

    Parameters
    ----------
    placed
        The processes with steps, of a run without device activity.
    ranks
        The rank of each; None when they are not known.
    names
        What to call each report.
    """
    numbers = step_numbers([one.process.members["number"] for one in placed])
    tables = [schema.HOST_STEPS.empty()]
    for at, (one, steps) in enumerate(zip(placed, numbers, strict=True)):
        members = one.process.members
        n_steps = members.num_rows
        tables.append(
            schema.HOST_STEPS.table(
                {
                    "rank": pa.array([None if ranks is None else ranks[at]] * n_steps, pa.int64()),
                    "report": pa.array([names[one.argument]] * n_steps, pa.string()),
                    "pid": pa.array(np.full(n_steps, one.process.pid)),
                    "step": pa.array(steps),
                    "host_start_ns": pc.add(members["start_ns"], one.shift_ns),
                    "host_end_ns": pc.add(members["end_ns"], one.shift_ns),
                    "host_ns": pc.subtract(members["end_ns"], members["start_ns"]),
                    "is_complete": members["is_complete"],
                    **{f"{phase}_ns": members[f"{phase}_ns"] for phase in PHASES},
                }
            )
        )
    merged = pa.concat_tables(tables)
    # Nulls come last.
    ordered = merged.sort_by([(name, "ascending") for name in schema.HOST_STEPS.key])
    return schema.conform(ordered, schema.HOST_STEPS)

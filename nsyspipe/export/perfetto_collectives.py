"""What a trace tells of communication beside its kernels: the collective, its waiting, and who is linked with whom."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from nsyspipe.export.perfetto_slices import Values, values_of

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Int64 = NDArray[np.int64]
    Flags = NDArray[np.bool_]

__all__ = ["CollectiveDetails", "flow_ids", "with_last_rank"]

_NOTES = (
    "comm_id",
    "datatype",
    "algorithm",
    "message_bytes",
    "n_ranks",
    "arrival_skew_ns",
    "wait_ns",
    "transfer_ns",
    "last_rank",
)
# Collectives of a step are fewer than this.
_SEQ_BITS = 24
_NOBODY = -1


def with_last_rank(collectives: pa.Table) -> pa.Table:
    """Add which rank the others waited for: null where nobody came last alone, or nothing is matched.

    Parameters
    ----------
    collectives
        `schema.COLLECTIVES`.
    """
    key = flow_ids(collectives["step"].to_numpy(), collectives["seq"].to_numpy())
    late = pc.greater(pc.fill_null(collectives["late_by_ns"], 0), 0)
    is_late = late.to_numpy() if len(late) else np.zeros(0, np.bool_)
    distinct, place = np.unique(key, return_inverse=True)
    last = np.full(distinct.size, _NOBODY)
    last[place[is_late]] = collectives["rank"].to_numpy()[is_late]
    found = last[place]
    is_matched = collectives["is_matched"].to_numpy() if found.size else np.zeros(0, np.bool_)
    unknown = (found == _NOBODY) | ~is_matched
    return collectives.append_column("last_rank", pa.array(found, pa.int64(), mask=unknown))


def flow_ids(step: Int64, seq: Int64) -> Int64:
    """Return the number of the arrows that link the ranks of a collective, as its 64 bits.

    Of one run they differ, as long as steps differ by less than 2**40.
    """
    found: Int64 = (step << _SEQ_BITS) + seq + 1
    return found


class CollectiveDetails:
    """The collectives of one rank, to be looked up by step and place in it.

    Parameters
    ----------
    collectives
        Rows of one rank, as `with_last_rank` gives them.
    """

    def __init__(self, collectives: pa.Table) -> None:
        key = flow_ids(collectives["step"].to_numpy(), collectives["seq"].to_numpy())
        self._order = np.argsort(key, kind="stable")
        self._keys = key[self._order]
        self._notes = {name: values_of(collectives[name]) for name in _NOTES}
        is_matched = collectives["is_matched"].to_numpy()
        self._flows = Values(key, is_matched)

    def rows_of(self, step: Values, seq: Values) -> Int64:
        """Return the row of each operation; -1 where it has none."""
        found = np.full(step.numbers.size, -1)
        asked = np.flatnonzero(step.is_known & seq.is_known)
        if not asked.size or not self._keys.size:
            return found
        key = flow_ids(step.numbers[asked], seq.numbers[asked])
        at = np.minimum(np.searchsorted(self._keys, key), self._keys.size - 1)
        hit = self._keys[at] == key
        found[asked[hit]] = self._order[at[hit]]
        return found

    def notes(self, rows: Int64) -> dict[str, Values]:
        """Return what is told of each operation."""
        return {name: values.take(rows) for name, values in self._notes.items()}

    def flows(self, rows: Int64) -> Values:
        """Return the flow of each operation; unknown where it is not matched."""
        return self._flows.take(rows)

"""StringIds as columns: look names up by id without a Python object per event."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from nsyspipe.read import versions
from nsyspipe.read.report import as_int

if TYPE_CHECKING:
    import re

    from numpy.typing import NDArray

    from nsyspipe.read.report import Report

__all__ = ["Strings", "read_strings"]


class Strings:
    """The report's string table."""

    def __init__(self, ids: NDArray[np.int64], values: pa.StringArray) -> None:
        order = np.argsort(ids, kind="stable")
        self._ids = ids[order]
        self._values = values.take(pa.array(order)) if (order[1:] < order[:-1]).any() else values

    def lookup(self, ids: NDArray[np.int64]) -> pa.StringArray:
        """Return the text of each id; an unknown id is null."""
        if not self._ids.size:
            return pa.nulls(ids.size, pa.string())
        rows = np.minimum(np.searchsorted(self._ids, ids), self._ids.size - 1)
        return self._values.take(pa.array(rows, mask=self._ids[rows] != ids))

    def ids_beginning(self, *prefixes: str, ignore_case: bool = False) -> NDArray[np.int64]:
        """Return the ids of all texts that begin with one of some prefixes."""
        hits = np.zeros(self._ids.size, np.bool_)
        for prefix in prefixes:
            found = pc.starts_with(self._values, prefix, ignore_case=ignore_case)
            hits |= found.to_numpy(zero_copy_only=False)
        return self._ids[hits]

    def ids_matching(self, pattern: re.Pattern[str], among: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return those of some ids whose text a regular expression matches anywhere."""
        texts = self.lookup(among).to_pylist()
        hits = [text is not None and pattern.search(text) is not None for text in texts]
        return among[np.asarray(hits, np.bool_)]


def read_strings(report: Report) -> Strings:
    """Read the report's string table; a report without one has no names."""
    if not report.has(versions.STRINGS, "id", "value"):
        return Strings(np.empty(0, np.int64), pa.array([], pa.string()))
    found = report.select(versions.STRINGS, {"id": "int", "value": "text"})
    return Strings(as_int(found["id"], 0), found["value"].combine_chunks())

"""Tables as they are written down: name, key, grain, and a column per line."""

from __future__ import annotations

import pyarrow as pa
import pytest

from nsyspipe.model.figures import MEANS, RATIOS
from nsyspipe.model.table import Column, table

TEXT = r"""steps by rank, start_ns: One row per (rank, step): where the time
        of a step goes.
    wall_ns   ns            |C \ M|: without
        the other <- KERNEL, MEMCPY
    share     ratio?        comm / wall <- derived
    value     float:the_metric's?  its value
"""


def test_a_table_is_read_as_it_is_written_maybe_without_a_key_and_never_with_an_unknown_unit():
    found = table(TEXT)
    assert (found.name, found.key) == ("steps", ("rank", "start_ns"))
    assert found.doc == "One row per (rank, step): where the time of a step goes."
    assert found.columns == (
        Column("wall_ns", pa.int64(), "ns", "|C \\ M|: without the other", "KERNEL, MEMCPY"),
        Column("share", pa.float64(), "ratio", "comm / wall", "derived", nullable=True),
        Column("value", pa.float64(), "the metric's", "its value", nullable=True),
    )
    assert table("calls: One row per call.\n    call text its name").key == ()
    with pytest.raises(KeyError, match="parsec"):
        table("way: One row.\n    length parsec how far")


def test_figures_are_computed_as_their_formulas_say():
    assert RATIOS["backward_overlap_ratio"] == ("overlap_backward_ns", "comm_ns")
    assert MEANS["collectives_per_step"] == "n_collectives"
    assert MEANS["idle_input_ns_per_step"] == "idle_input_ns"

"""What hardware counters show of the summary steps as a whole."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from nsyspipe.model.typed_tables import CollectivesTable, CountersColumn, CountersTable, StepsTable

# In the order in which they count: PCIe only if NVLink carries nothing.
LINK_NAMES = ("nvlink", "pcie")
# Steps with a smaller sampled share do not count: their bytes would be too few.
MIN_SAMPLED_RATIO = 0.99
# Columns of which a mean is shown.
COUNTED_MEANS: tuple[CountersColumn, ...] = (
    "sm_active_percent",
    "tensor_active_percent",
    "dram_read_bytes_per_s",
    "dram_write_bytes_per_s",
    "nvlink_rx_percent",
    "nvlink_rx_bytes_per_s",
    "nvlink_tx_percent",
    "nvlink_tx_bytes_per_s",
    "pcie_rx_percent",
    "pcie_rx_bytes_per_s",
    "pcie_tx_percent",
    "pcie_tx_bytes_per_s",
    "gpc_clock_hz",
)
_BUS_FIGURES = ("counted_link", "counted_bytes_per_s", "counted_ratio")
_RANK_STEP: tuple[Literal["rank"], Literal["step"]] = ("rank", "step")


class CountedMeans(NamedTuple):
    """Means over the sampled time of summary steps."""

    # By column of `COUNTED_MEANS`. None if it was not counted.
    means: Mapping[CountersColumn, float | None]
    # The sampled share of the steps.
    sampled_ratio: float


class CountedBus(NamedTuple):
    """The bandwidth of communication that counters saw, on the link that carried it."""

    # ``nvlink`` or ``pcie``
    link: str
    bytes_per_step: float
    # Per time of transfer, as the bus bandwidth.
    bytes_per_s: float
    # Counted bytes / bus bytes of the collectives. None if their sizes are not known.
    ratio: float | None

    @property
    def figures(self) -> dict[str, Any]:
        """The figures by the names that findings and documents give them."""
        values = (self.link, self.bytes_per_s, self.ratio)
        return dict(zip(_BUS_FIGURES, values, strict=True))


def of_summary_steps(counters: CountersTable, steps: StepsTable) -> pa.Table:
    """Return the rows of whole summary steps."""
    whole_steps = counters.filter(pc.is_null(counters["phase"]))
    in_summary = steps.filter(steps["in_summary"]).select(_RANK_STEP)
    rows: pa.Table = whole_steps.join(in_summary, _RANK_STEP, join_type="left semi")
    return rows.sort_by([("rank", "ascending"), ("step", "ascending")])


def counted_means(counters: CountersTable, steps: StepsTable) -> CountedMeans | None:
    """Return the means of counters over summary steps, None if nothing was counted in them."""
    rows = of_summary_steps(counters, steps)
    sampled_ns = pc.sum(rows["sampled_ns"]).as_py()
    if not sampled_ns:
        return None
    window_ns = pc.sum(rows["window_ns"]).as_py()
    means = {name: _weighted_mean(rows, name) for name in COUNTED_MEANS}
    return CountedMeans(means, sampled_ns / window_ns)


def clocks_by_rank(counters: CountersTable, steps: StepsTable) -> dict[int, float]:
    """Return the mean clock of each rank over summary steps, in Hz."""
    rows = of_summary_steps(counters, steps)
    clocks: dict[int, float] = {}
    for rank in rows["rank"].unique().to_pylist():
        clock_hz = _weighted_mean(rows.filter(pc.equal(rows["rank"], rank)), "gpc_clock_hz")
        if clock_hz is not None:
            clocks[rank] = clock_hz
    return clocks


def _weighted_mean(rows: pa.Table, name: str) -> float | None:
    """Return the mean of a column, weighted by the sampled time of its rows."""
    known = rows.filter(pc.is_valid(rows[name]))
    weight_ns = pc.sum(known["sampled_ns"]).as_py()
    if not weight_ns:
        return None
    weighted = pc.multiply(known[name], pc.cast(known["sampled_ns"], pa.float64()))
    total = float(pc.sum(weighted).as_py())
    return total / float(weight_ns)


def counted_bus(
    counters: CountersTable, steps: StepsTable, collectives: CollectivesTable
) -> CountedBus | None:
    """Return the bandwidth of communication by counters, over completely sampled summary steps.

    The bandwidth is that of NVLink, or that of PCIe if NVLink carried nothing. None if neither
    carried anything, or if no time of transfer is known.
    """
    rows = of_summary_steps(counters, steps)
    rows = rows.filter(pc.greater_equal(rows["sampled_ratio"], MIN_SAMPLED_RATIO))
    bytes_of_links = {link: _bytes_of_link(rows, link) for link in LINK_NAMES}
    used = [link for link in LINK_NAMES if bytes_of_links[link]]
    if not used:
        return None
    link = used[0]
    # Only ranks and steps that were counted are compared.
    sizes = collectives.select(("rank", "step", "transfer_ns", "bus_bytes"))
    operations = sizes.join(rows.select(_RANK_STEP), _RANK_STEP, join_type="left semi")
    transfer_ns = pc.sum(operations["transfer_ns"]).as_py()
    if not transfer_ns:
        return None
    has_all_sizes = not operations["bus_bytes"].null_count
    bus_bytes = pc.sum(operations["bus_bytes"]).as_py() if has_all_sizes else None
    n_bytes = bytes_of_links[link]
    return CountedBus(
        link=link,
        bytes_per_step=n_bytes / rows.num_rows,
        bytes_per_s=n_bytes * 1e9 / transfer_ns,
        ratio=n_bytes / bus_bytes if bus_bytes else None,
    )


def counted_figures(
    counters: CountersTable, steps: StepsTable, collectives: CollectivesTable
) -> dict[str, Any] | None:
    """Return what counters show of the summary steps, by name. None if nothing was counted."""
    counted = counted_means(counters, steps) if counters.num_rows else None
    if counted is None:
        return None
    bus = counted_bus(counters, steps, collectives)
    figures: dict[str, Any] = {"sampled_ratio": counted.sampled_ratio}
    figures.update(counted.means.items())
    figures["counted_bytes_per_step"] = bus.bytes_per_step if bus else None
    figures |= bus.figures if bus else dict.fromkeys(_BUS_FIGURES)
    return figures


def _bytes_of_link(rows: pa.Table, link: str) -> int:
    """Return the bytes of a link: the sum over rows of the larger of received and sent."""
    received = pc.fill_null(rows[f"{link}_rx_bytes"], 0)
    sent = pc.fill_null(rows[f"{link}_tx_bytes"], 0)
    total: int | None = pc.sum(pc.max_element_wise(received, sent)).as_py()
    return total or 0

"""What a step gains at most if no rank comes late."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from nsyspipe.analysis.intervals import places_in_runs, run_starts
from nsyspipe.analysis.traffic import held_up_by_step
from nsyspipe.findings.late_node import collective_keys
from nsyspipe.findings.model import Evidence
from nsyspipe.model.table import Flags, Float64, Int64
from nsyspipe.model.typed_tables import (
    CollectivesTable,
)


def saving_of_all(evidence: Evidence, collectives: CollectivesTable) -> dict[str, float]:
    """Return what all late ranks together can save at most, by part.

    `collectives` are as `own_lateness` returns them.
    """
    delay_parts = _delay_parts(evidence, collectives)
    # In a pipeline, windows differ by design, so the shortest one shows no delay.
    return limited_saving(evidence, delay_parts, only_delays=evidence.is_pipeline)


def limited_saving(
    evidence: Evidence, delay_parts: Mapping[str, float], *, only_delays: bool
) -> dict[str, float]:
    """Return what a step gains at most if no rank is late, as parts that sum to it.

    Two sums show what late ranks cost, and the larger one counts: `delay_parts`, and by how much
    step time exceeds the shortest window without its exposed waiting. With `only_delays`,
    `delay_parts` alone count.

    No step gets shorter than the least compute of a rank, or than the launch time of the fastest
    host. If one of these limits leaves less to gain, the result has the parts of that limit.
    """
    above_shortest_window = {} if only_delays else _above_shortest_window(evidence)
    larger_parts = max(dict(delay_parts), above_shortest_window, key=_sum_parts)
    above_compute = _above_compute(evidence)
    above_launching_ns = float(evidence.above_launching_ns.mean())
    above_launching = {"above_launching": above_launching_ns}
    return min(larger_parts, above_compute, above_launching, key=_sum_parts)


def _sum_parts(parts: Mapping[str, float]) -> float:
    return sum(parts.values())


def _above_shortest_window(evidence: Evidence) -> dict[str, float]:
    """Return how much longer steps are than their shortest windows without exposed waiting.

    The result has parts that sum to this time, which are means over steps.
    """
    wall_ns, exposed_wait_ns = evidence.columns("wall_ns", "exposed_wait_ns")
    without_waiting_ns = wall_ns - exposed_wait_ns
    # The largest of the negative values is the shortest window.
    shortest_rows = evidence.rows_of_largest(-without_waiting_ns)
    return evidence.mean_parts(shortest_rows, exposed_wait=exposed_wait_ns)


def _above_compute(evidence: Evidence) -> dict[str, float]:
    """Return how much longer steps are than the least compute of a rank in them.

    That compute counts without the time by which hidden waiting slows it. The result has parts that
    sum to this difference, which are means over steps.
    """
    wall_ns, compute_ns, idle_ns = evidence.columns("wall_ns", "compute_ns", "idle_ns")
    exposed_ns, exposed_wait_ns = evidence.columns("exposed_comm_ns", "exposed_wait_ns")
    # A window has compute, exposed communication, idle time, and copies during none of these.
    copies_ns = wall_ns - compute_ns - exposed_ns - idle_ns
    transfer_ns = exposed_ns - exposed_wait_ns
    slowed_ns = _slowed_by_hidden_waits(evidence)
    # The largest of the negative values is the least compute.
    rows_of_least_compute = evidence.rows_of_largest(-compute_ns)
    return evidence.mean_parts(
        rows_of_least_compute,
        exposed_wait=exposed_wait_ns,
        slowed_by_waiting=slowed_ns,
        idle=idle_ns,
        exposed_transfer=transfer_ns,
        exposed_copies=copies_ns,
    )


def _above_compute_ns(evidence: Evidence) -> Float64:
    """Return for each step the sum of the parts of `_above_compute`, ns."""
    wall_ns, compute_ns = evidence.columns("wall_ns", "compute_ns")
    # The largest of the negative values is the least compute.
    rows_of_least_compute = evidence.rows_of_largest(-compute_ns)
    slowed_ns = _slowed_by_hidden_waits(evidence)
    step_ns = evidence.largest(wall_ns)
    above_slowed_compute_ns = step_ns - compute_ns[rows_of_least_compute]
    # Compute would take less without the time by which waiting slows it.
    return above_slowed_compute_ns + slowed_ns[rows_of_least_compute]


def _slowed_by_hidden_waits(evidence: Evidence) -> Float64:
    """Return how much hidden waiting slows compute on each row of `steps` at most."""
    wait_ns, exposed_wait_ns = evidence.columns("wait_ns", "exposed_wait_ns")
    (hidden_comm_ns,) = evidence.columns("overlap_compute_ns")
    hidden_wait_ns = np.minimum(wait_ns - exposed_wait_ns, hidden_comm_ns)
    return evidence.slowed_ns(hidden_wait_ns, is_upper_bound=True)


def _delay_parts(evidence: Evidence, collectives: CollectivesTable) -> dict[str, float]:
    """Return how much longer a step is because ranks come late, by part, means over steps.

    ``delays`` are those of the rank that is delayed most. A step still lasts as long as ranks
    compute and hosts launch, so a part of the delays may stay. It is taken off by parts below 0,
    ``left_for_compute`` and ``left_for_launching``. Both are left out if they are 0.
    """
    delays_ns = _delays_ns(evidence, collectives)
    limited_by_compute_ns = np.minimum(delays_ns, _above_compute_ns(evidence))
    limited_by_both_ns = np.minimum(limited_by_compute_ns, evidence.above_launching_ns)
    parts = {"delays": float(delays_ns.mean())}
    left_for_compute_ns = float((limited_by_compute_ns - delays_ns).mean())
    if left_for_compute_ns:
        parts["left_for_compute"] = left_for_compute_ns
    left_for_launching_ns = float((limited_by_both_ns - limited_by_compute_ns).mean())
    if left_for_launching_ns:
        parts["left_for_launching"] = left_for_launching_ns
    return parts


def _delays_ns(evidence: Evidence, collectives: CollectivesTable) -> Float64:
    """Return the largest delay of a rank in each step, ns.

    It is at most the time for which all ranks together are waited for. A step has 0 if waiting is
    not known in any of its collectives.
    """
    steps = np.unique(evidence.step_of_row)
    is_wait_known = pc.is_valid(collectives["wait_ns"])
    operations = _sort_operations(collectives.filter(is_wait_known))
    place_of_step = np.searchsorted(steps, operations.steps)
    delays_ns = np.zeros(steps.size)
    delays_ns[place_of_step] = _RankDelays(operations).largest_by_step()
    awaited_ns = _awaited_ns(evidence, steps)
    return np.minimum(delays_ns, awaited_ns)


def _awaited_ns(evidence: Evidence, steps: Int64) -> Float64:
    """Return how long all ranks together are waited for in each of some sorted steps."""
    held_up = held_up_by_step(evidence.collectives, evidence.steps)
    held_up_ns = held_up["held_up_ns"].to_numpy()
    step_of_row = held_up["step"].to_numpy()
    place_of_row = np.searchsorted(steps, step_of_row)
    awaited_ns = np.zeros(steps.size)
    np.add.at(awaited_ns, place_of_row, held_up_ns)
    return awaited_ns


class _Operations(NamedTuple):
    """Operations by step, and in a step by when the last rank of their collective starts.

    All arrays but `steps` have a value per operation.
    """

    # The number of the collective, from 0.
    collective: Int64
    # The steps with operations, in order.
    steps: Int64
    # The index of the operation's step in `steps`.
    step_index: Int64
    # How many collectives of the step come before the collective.
    order_in_step: Int64
    rank: Int64
    start_ns: Int64
    # When waiting ends.
    wait_end_ns: Int64
    # How long the collective is waited for.
    held_up_ns: Int64


class _RankDelays:
    """How long late ranks delay each rank in each step.

    Collectives are taken in the order in which their last ranks start. After a collective, all of
    its ranks have the same delay: the largest sum of the delay that one of them had before, and of
    its waiting in the collective. So groups that wait at the same time for different ranks count
    once, and so does a rank that several groups wait for.
    """

    def __init__(self, operations: _Operations) -> None:
        """Delay ranks by all collectives, in their order in each step."""
        ranks, self._column_of_operation = np.unique(operations.rank, return_inverse=True)
        # A row per step, and a column per rank.
        shape = (operations.steps.size, ranks.size)
        self._operations = operations
        self._delay_ns = np.zeros(shape, np.int64)
        self._waited_until_ns = np.zeros(shape, np.int64)
        # The first collectives of all steps come first, then the second ones, and so on.
        by_order = np.argsort(operations.order_in_step, kind="stable")
        starts = run_starts(operations.order_in_step[by_order])
        # `split` needs no start of the first array.
        for rows in np.split(by_order, starts[1:]):
            # Without operations, `split` gives one empty array.
            if rows.size:
                self._delay_by_collectives(rows)

    def largest_by_step(self) -> Int64:
        """Return the delay of the rank that is delayed most, of each step."""
        largest_ns: Int64 = self._delay_ns.max(axis=1, initial=0)
        return largest_ns

    def _delay_by_collectives(self, rows: Int64) -> None:
        """Delay ranks by collectives of different steps, one of each step.

        `rows` are the operations of these collectives, collective by collective. So a rank has at
        most one of these operations in a step.
        """
        operations = self._operations
        # Where both arrays have the step and the rank of each operation.
        cells = (operations.step_index[rows], self._column_of_operation[rows])
        waited_until_ns = self._waited_until_ns[cells]
        # A rank that already waits for an earlier collective does not wait twice.
        wait_start_ns = np.maximum(operations.start_ns[rows], waited_until_ns)
        wait_end_ns = operations.wait_end_ns[rows]
        held_up_ns = operations.held_up_ns[rows]
        wait_ns = np.maximum(wait_end_ns - wait_start_ns, 0)
        # Late ranks cause no more waiting than the time for which they are waited for.
        caused_wait_ns = np.minimum(wait_ns, held_up_ns)
        delay_ns = self._delay_ns[cells] + caused_wait_ns
        # After a collective, all of its ranks have the largest of their delays.
        first_of_collective = run_starts(operations.collective[rows])
        n_operations = np.diff(first_of_collective, append=rows.size)
        largest_delay_ns = np.maximum.reduceat(delay_ns, first_of_collective)
        self._delay_ns[cells] = np.repeat(largest_delay_ns, n_operations)
        self._waited_until_ns[cells] = np.maximum(waited_until_ns, wait_end_ns)


def _sort_operations(rows: pa.Table) -> _Operations:
    """Return operations of `schema.COLLECTIVES` in the order of `_Operations`."""
    keys = collective_keys(rows)
    order = _order_of_keys(keys)
    sorted_keys = keys[:, order]
    step, _, last_start_ns = sorted_keys
    is_first = _is_first_of_collective(sorted_keys)
    first_of_collective = np.flatnonzero(is_first)
    # The operations of the first collective have 0, those of the second have 1, and so on.
    collective = np.cumsum(is_first) - 1
    # A collective is held up by all of its ranks together.
    held_up_by_rank_ns = _sorted_column(rows, "held_up_ns", order)
    held_up_of_collective_ns = np.add.reduceat(held_up_by_rank_ns, first_of_collective)
    # The collectives of a step are next to each other, in the order of their last starts.
    order_of_collective = places_in_runs(step[first_of_collective])
    steps, step_index = np.unique(step, return_inverse=True)
    end_ns = _sorted_column(rows, "end_ns", order)
    return _Operations(
        collective=collective,
        steps=steps,
        step_index=step_index,
        order_in_step=order_of_collective[collective],
        rank=_sorted_column(rows, "rank", order),
        start_ns=_sorted_column(rows, "start_ns", order),
        # A rank waits until the last rank starts, but no longer than its operation lasts.
        wait_end_ns=np.minimum(last_start_ns, end_ns),
        held_up_ns=held_up_of_collective_ns[collective],
    )


def _order_of_keys(keys: Int64) -> Int64:
    """Return the order of operations by step, then by last start, then by communicator.

    `keys` are those of `collective_keys`.
    """
    step, comm, last_start_ns = keys
    # The most important key is the last one.
    return np.lexsort((comm, last_start_ns, step))


def _sorted_column(rows: pa.Table, name: str, order: Int64) -> Int64:
    """Return a column of operations in another order."""
    column: Int64 = rows[name].to_numpy()
    return column[order]


def _is_first_of_collective(keys: Int64) -> Flags:
    """Tell which sorted operations are the first of their collective.

    `keys` are those of `collective_keys`, in the same order as the operations.
    """
    n_operations = keys.shape[1]
    is_other_key = np.diff(keys, axis=1) != 0
    is_other_collective = is_other_key.any(axis=0)
    is_first = np.append(True, is_other_collective)
    # Without operations, there is no first one either.
    return is_first[:n_operations]

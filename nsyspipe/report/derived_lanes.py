"""Lanes that are derived from the operations of a rank: exposed communication and wait time.

Both are clipped to the steps in which they are known. Their length in a step is the metric of the
step.
"""

import pyarrow as pa
import pyarrow.compute as pc

from nsyspipe.analysis.breakdown import exposed_comm
from nsyspipe.analysis.collectives import waited_until
from nsyspipe.analysis.intervals import IntervalSet, union
from nsyspipe.model.table import Int64
from nsyspipe.model.typed_tables import CollectivesTable, EventsTable, StepsTable

EXPOSED = "exposed communication"
WAITING = "waiting in communication"


def exposed_comm_in_steps(steps: StepsTable, events: EventsTable) -> IntervalSet | None:
    """Return the communication during which no compute kernel runs. None if it is not known."""
    known_steps = steps_with(steps, "exposed_comm_ns")
    if not len(known_steps):
        return None
    comm_in_steps = busy_time(events, "comm").intersect(known_steps)
    return exposed_comm(comm_in_steps, busy_time(events, "compute"))


def waiting_in_steps(steps: StepsTable, collectives: CollectivesTable) -> IntervalSet | None:
    """Return the communication before the last rank was there. None if it is not known."""
    known_steps = steps_with(steps, "wait_ns")
    return _waiting_time(collectives, known_steps) if len(known_steps) else None


def names_of_steps(table: pa.Table) -> pa.ChunkedArray:
    """Return the name of the step of each row."""
    numbers = table["step"].cast(pa.string())
    return pc.binary_join_element_wise("step", numbers, " ")


def times_of(table: pa.Table, *names: str) -> tuple[Int64, ...]:
    """Return columns of times, ns."""
    columns = [table[name] for name in names]
    return tuple(column.to_numpy() for column in columns)


def rows_of_rank(table: pa.Table, rank: int) -> pa.Table:
    """Return the rows of one rank."""
    is_of_rank = pc.equal(table["rank"], rank)
    return table.filter(is_of_rank)


def busy_time(events: EventsTable, category: str) -> IntervalSet:
    """Return the time in which operations of a category run."""
    is_of_category = pc.equal(events["category"], category)
    operations = events.filter(is_of_category)
    return union(*times_of(operations, "start_ns", "end_ns"))


def steps_with(steps: StepsTable, metric: str) -> IntervalSet:
    """Return the time of the steps of one rank in which a metric is known.

    Steps that touch are one interval.
    """
    is_known = pc.is_valid(steps.column(metric))
    known = steps.filter(is_known)
    return union(*times_of(known, "start_ns", "end_ns"))


def _waiting_time(collectives: CollectivesTable, steps: IntervalSet) -> IntervalSet:
    """Return the wait time of one rank inside its steps.

    In a collective, a rank waits from its own start to the start of the last rank. If its own end
    is earlier, it waits to its own end. The length of the wait time in a step is ``wait_ns``.
    """
    is_known = pc.is_valid(collectives["wait_ns"])
    has_wait = pc.and_(collectives["is_matched"], is_known)
    waiting = collectives.filter(has_wait)
    starts, ends, wait_ns = times_of(waiting, "start_ns", "end_ns", "wait_ns")
    wait_ends = waited_until(starts, ends, wait_ns)
    return union(starts, wait_ends).intersect(steps)

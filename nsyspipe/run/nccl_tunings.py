"""Which algorithm and protocol NCCL ran for each collective, from the records of NCCL Inspector.

A record and an operation share no ID. So a match is only taken if no other one is possible.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa
from msgspec import Struct

from nsyspipe.analysis.intervals import least_of
from nsyspipe.model.inspected import InspectedCalls
from nsyspipe.model.names import COLLECTIVES
from nsyspipe.model.problems import Problem, problem
from nsyspipe.model.table import Flags, Int64
from nsyspipe.run.comm_rows import ABSENT, NONE, CommRows, joint_code

_NAMES = ("algorithm", "protocol")
# Why the tuning of operations is not known. Each reason holds if those before do not.
_REASONS = (
    "the files have no algorithms, which come with format v4.2",
    "the files or the reports do not have the hash of the communicator",
    "the size of the call is not known, or several calls ran as one kernel",
    "records may be missing, or calls of the same size ran with different algorithms",
)


def tuning_columns(rows: CommRows, calls: InspectedCalls | None) -> dict[str, pa.Array]:
    """Return algorithm and protocol of each operation, null if they are not certain.

    The columns are those of `schema.COLLECTIVES`.
    """
    if calls is None or not calls.tunings or not len(rows):
        return {f"nccl_{name}": pa.nulls(len(rows), pa.string()) for name in _NAMES}
    tuning_of_operation = _tunings_of(rows, calls)
    known_tuning = pa.array(tuning_of_operation, mask=tuning_of_operation == NONE)
    columns = {}
    for name in _NAMES:
        value_of_tuning = pa.array([getattr(tuning, name) for tuning in calls.tunings], pa.string())
        columns[f"nccl_{name}"] = value_of_tuning.take(known_tuning)
    return columns


def problem_of_tunings(rows: CommRows, calls: InspectedCalls | None) -> Problem | None:
    """Return the problem that operations in steps have no tuning, with the most common reason.

    None if all have a tuning, or if there are no files of NCCL Inspector.
    """
    if calls is None or not rows.in_step.any():
        return None
    is_known = tuning_columns(rows, calls)["nccl_algorithm"].is_valid()
    is_unknown = rows.in_step & ~is_known.to_numpy(zero_copy_only=False)
    n_unknown = np.count_nonzero(is_unknown)
    if not n_unknown:
        return None
    reason = _reasons(rows, calls)[is_unknown]
    most_common = int(np.bincount(reason).argmax())
    total = int(np.count_nonzero(rows.in_step))
    return problem(
        "nccl-inspector-unmatched", n=int(n_unknown), total=total, reason=_REASONS[most_common]
    )


def _reasons(rows: CommRows, calls: InspectedCalls) -> Int64:
    """Return why the tuning of each operation is not known, as an index into `_REASONS`.

    The first reason that holds counts. The last one is left if no other holds.
    """
    has_algorithm = any(tuning.algorithm for tuning in calls.tunings)
    is_communicator_recorded = np.array([name in calls.comm_ids for name in rows.communicators])
    is_one_known_call = (rows.n_calls == 1) & (rows.message_bytes != ABSENT)
    conditions = [
        np.full(len(rows), not has_algorithm),
        ~is_communicator_recorded[rows.communicator],
        ~is_one_known_call,
    ]
    indices = list(range(len(conditions)))
    last_reason = len(_REASONS) - 1
    reason: Int64 = np.select(conditions, indices, default=last_reason)
    return reason


def _tunings_of(rows: CommRows, calls: InspectedCalls) -> Int64:
    """Return the index of each operation's tuning in `calls.tunings`, `NONE` if it is not certain.

    The record with the number of the operation's call shows the tuning. Without such a record, all
    calls of the same size may show it.
    """
    tuning_of_operation = np.full(len(rows), NONE)
    # Several calls in one kernel may have different tunings.
    chosen = np.flatnonzero((rows.n_calls == 1) & (rows.message_bytes != ABSENT))
    records = _Records.of(rows, calls)
    if not chosen.size or not records.use.size:
        return tuning_of_operation
    operations = _Operations.of(rows, chosen)
    tuning_by_size = _by_size(operations, records)
    tuning_by_number = _by_number(operations, records)
    is_number_unknown = tuning_by_number == NONE
    tuning_of_operation[chosen] = np.where(is_number_unknown, tuning_by_size, tuning_by_number)
    return tuning_of_operation


class _Operations(Struct, frozen=True):
    """Operations that are one call of a known size."""

    # The use of a communicator for one collective.
    use: Int64
    number: Int64
    call_bytes: Int64

    @classmethod
    def of(cls, rows: CommRows, chosen: Int64) -> _Operations:
        """Return some operations of a run."""
        use = _use(rows.communicator[chosen], rows.collective[chosen])
        return cls(use, rows.seq_number[chosen], rows.message_bytes[chosen])


class _Records(Struct, frozen=True):
    """The recorded calls of the communicators of a run."""

    # As in `_Operations`.
    use: Int64
    number: Int64
    call_bytes: Int64
    tuning: Int64
    # Of each use of the run, whether all calls from the first to the last were recorded.
    is_whole: Flags

    @classmethod
    def of(cls, rows: CommRows, calls: InspectedCalls) -> _Records:
        """Return the recorded calls that are made in communicators of the run."""
        index_in_run = {name: index for index, name in enumerate(rows.communicators)}
        indices = [index_in_run.get(comm_id, NONE) for comm_id in calls.comm_ids]
        # Of each recorded communicator, its index in the run.
        run_index_of_comm = np.array(indices, np.int64)
        communicator_of_call = run_index_of_comm[calls.comm]
        chosen = np.flatnonzero(communicator_of_call != NONE)
        use = _use(communicator_of_call[chosen], calls.collective[chosen])
        number = calls.number[chosen]
        n_uses = len(rows.communicators) * len(COLLECTIVES)
        is_whole = np.zeros(n_uses, np.bool_)
        if chosen.size:
            is_whole = _are_without_gap(use, number, n_uses)
        for name in calls.incomplete & index_in_run.keys():
            # The uses of a communicator follow each other.
            first_use = index_in_run[name] * len(COLLECTIVES)
            is_whole[first_use : first_use + len(COLLECTIVES)] = False
        return cls(use, number, calls.call_bytes[chosen], calls.tuning[chosen], is_whole)


def _use(communicator: Any, collective: Any) -> Int64:  # noqa: ANN401 - arrays of any integers
    """Return a number for each pair of a communicator and a collective."""
    use: Int64 = communicator.astype(np.int64) * len(COLLECTIVES)
    use += collective
    return use


def _are_without_gap(use: Int64, number: Int64, n_uses: int) -> Flags:
    """Tell of each use whether all its calls from the first to the last are recorded.

    Calls of a use are numbered. A use without records is not whole.
    """
    # A call is recorded by each of its ranks, but counts once.
    use_and_number, _ = joint_code([use, number])
    _, record_of_number = np.unique(use_and_number, return_index=True)
    n_numbers = np.bincount(use[record_of_number], minlength=n_uses)
    first = least_of(use, number, n_uses)
    # The greatest number is the least of the negated numbers.
    last = -least_of(use, -number, n_uses)
    n_without_gap = last - first + 1
    has_records = n_numbers > 0
    is_whole: Flags = has_records & (n_numbers == n_without_gap)
    return is_whole


def _by_size(operations: _Operations, records: _Records) -> Int64:
    """Return for each operation the tuning that all recorded calls of its use and size have.

    `NONE` if they have several, or if calls of the use may not be recorded.
    """
    keys = _keys([records.use, records.call_bytes], [operations.use, operations.call_bytes])
    tuning = _agreed_values(keys, records.tuning)
    return np.where(records.is_whole[operations.use], tuning, NONE)


def _by_number(operations: _Operations, records: _Records) -> Int64:
    """Return for each operation the tuning of the recorded call with the same number.

    `NONE` if there is no such call. If an operation and the call with its number have different
    sizes, the numbers are not trusted for any operation of the same communicator and collective.
    """
    keys = _keys([records.use, records.number], [operations.use, operations.number])
    tuning = _agreed_values(keys, records.tuning)
    recorded_bytes = _agreed_values(keys, records.call_bytes)
    is_recorded = recorded_bytes != NONE
    has_other_size = is_recorded & (recorded_bytes != operations.call_bytes)
    contradicted_uses = np.unique(operations.use[has_other_size])
    is_trusted = ~np.isin(operations.use, contradicted_uses)
    return np.where(is_recorded & is_trusted, tuning, NONE)


class _Keys(Struct, frozen=True):
    """The keys of records and of operations, as numbers from 0."""

    of_records: Int64
    of_operations: Int64
    n_keys: int


def _keys(columns_of_records: Sequence[Int64], columns_of_operations: Sequence[Int64]) -> _Keys:
    """Return a key for each record and each operation.

    Both have the same columns. Records and operations that are equal in all columns have one key.
    """
    pairs = zip(columns_of_records, columns_of_operations, strict=True)
    columns = [np.concatenate(pair) for pair in pairs]
    key, n_keys = joint_code(columns)
    n_records = columns_of_records[0].size
    return _Keys(key[:n_records], key[n_records:], n_keys)


def _agreed_values(keys: _Keys, values: Int64) -> Int64:
    """Return for each operation the value that all records of its key have.

    `NONE` if the records differ, or if no record has the key. `values` are those of the records.
    """
    lowest_of_key = least_of(keys.of_records, values, keys.n_keys)
    # The greatest value is the least of the negated values.
    highest_of_key = -least_of(keys.of_records, -values, keys.n_keys)
    value_of_key = np.where(lowest_of_key == highest_of_key, lowest_of_key, NONE)
    return value_of_key[keys.of_operations]

"""The process groups that NCCL's log gives to sends and receives."""

import numpy as np
import pytest

from nsyspipe.analysis.collectives import CommKind
from nsyspipe.model.side_files import CommMember, Communicator, NcclLog
from nsyspipe.run.collectives import ABSENT, NONE, CommRows
from nsyspipe.run.process_groups import named_by_log

PIDS = [1000, 1001, 1002, 1003]


def sends_and_receives(n_before):
    """Return rows of four ranks: 0 and 1, and 2 and 3, end all calls together, which they start 100 us apart.

    Each rank launches so many kernels of a step before its first call.
    """
    n_calls = 3
    rank = np.repeat(np.arange(4, dtype=np.int32), n_calls)
    place = np.tile(np.arange(n_calls), 4)
    count = rank.size
    nothing = np.full(count, NONE, np.int32)
    return CommRows(
        rank=rank,
        step=np.zeros(count, np.int64),
        in_step=np.ones(count, np.bool_),
        start_ns=10**9 * place + 100_000 * rank,
        end_ns=10**9 * (place + rank // 2) + 10**6,
        kind=np.zeros(count, np.int32),
        kinds=(CommKind("send_recv", None, None),),
        communicator=np.zeros(count, np.int32),
        communicators=("send_recv/0",),
        seq_number=np.full(count, ABSENT),
        operation_id=np.full(count, ABSENT),
        n_calls=np.full(count, ABSENT),
        message_bytes=np.full(count, ABSENT),
        launched_in=nothing,
        micro_batch=nothing,
        n_before=np.array(n_before, np.int32)[rank],
        has_ids=False,
        is_named=np.zeros(1, np.bool_),
    )


def log_of_groups(*groups):
    return NcclLog(
        communicators=tuple(
            Communicator(
                f"comm {group}",
                len(group),
                tuple(CommMember(rank, "node0", pid=PIDS[rank]) for rank in group),
            )
            for group in groups
        )
    )


PAIRS = (0, 1), (2, 3)
FIRST, LAST = 40, 0  # kernels that a stage launches before it sends or receives


@pytest.mark.parametrize(
    ("n_before", "groups", "expected"),
    [
        ([FIRST, LAST, FIRST, LAST], PAIRS, PAIRS),
        ([FIRST, LAST, FIRST, LAST], [(0, 1, 2, 3), *PAIRS, (0, 2), (1, 3)], PAIRS),
        ([FIRST, FIRST, LAST, LAST], PAIRS, None),  # ranks of one stage do not send to each other
        (
            [FIRST, LAST, FIRST, LAST],
            [(0, 1, 2, 3), (0, 1)],
            None,
        ),  # the log names no group of ranks 2 and 3
        ([NONE, LAST, FIRST, LAST], PAIRS, None),  # which stage rank 0 is cannot be told
    ],
)
def test_sends_and_receives_are_of_pairs_of_stages_that_the_log_names(n_before, groups, expected):
    rows = named_by_log(sends_and_receives(n_before), PIDS, log_of_groups(*groups))
    names = [rows.communicators[one] for one in rows.communicator]
    group_of = {rank: pair for pair in expected or () for rank in pair}
    assert names == [
        f"comm {group_of[rank]}" if expected else "send_recv/0" for rank in rows.rank.tolist()
    ]
    assert rows.is_named.tolist() == ([True, True] if expected else [False])

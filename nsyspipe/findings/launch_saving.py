"""What a step gains at most if launching takes hosts no time."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from nsyspipe.findings.idle import only_rank, slowed_by_waiting
from nsyspipe.findings.model import Bound, Evidence
from nsyspipe.model.table import Float64


class _Waiting(NamedTuple):
    """How long each rank waits for others in each step, ns, or how long it waits at most."""

    all: Float64
    # The part during compute.
    hidden: Float64


def saving_without_launching(evidence: Evidence) -> Bound:
    """Return what a step gains at most if launching takes no time.

    Per step::

        max over ranks(wall) - max over ranks(max(wall - gone - caused - hideable - slowed,
        compute - slowed))

    - ``wall`` is the window of a rank, and ``compute`` its compute.
    - ``gone`` is the idle time for launches, and until the device has started what was launched
      late. Idle time for input and in blocking calls is gone as far as the host launches at the
      same time, because the host comes to these waits that much earlier.
    - ``caused`` is how much shorter the waiting for other ranks gets. That is at most the sum of
      ``gone`` of these ranks, because the rank may wait for each of them in turn.
    - ``hideable`` is transfer that late launches expose. It may then run during compute.
    - ``slowed`` is how much hidden waiting slows compute.

    If it is not known which ranks wait for which, all communication may be waiting.
    """
    wall_ns, compute_ns = evidence.columns("wall_ns", "compute_ns")
    waiting = _possible_waiting(evidence)
    gone_by_cause = _gone_by_cause(evidence)
    gone_ns = np.sum([*gone_by_cause.values()], axis=0)
    caused_ns = np.minimum(waiting.all, evidence.sum_of_other_ranks(gone_ns))
    slowed_ns = slowed_by_waiting(evidence, caused_ns, waiting.hidden)
    hideable_ns = _hideable_transfer(evidence, caused_ns)
    shortened_ns = wall_ns - gone_ns - caused_ns - hideable_ns - slowed_ns
    left_ns = np.maximum(shortened_ns, compute_ns - slowed_ns)
    waiting_name = "waiting" if evidence.are_groups_known else "possible_waiting"
    gone_by_part = {
        **gone_by_cause,
        waiting_name: caused_ns,
        f"slowed_by_{waiting_name}": slowed_ns,
        "exposed_by_late_launches": hideable_ns,
        # Not above 0: a window gets no shorter than its compute, so less is gone.
        "beside_compute": shortened_ns - left_ns,
    }
    limit_rows = evidence.rows_of_largest(left_ns)
    parts = evidence.mean_parts(limit_rows, **gone_by_part)
    limit_rank = only_rank(evidence, limit_rows)
    return Bound(evidence.saving_down_to(left_ns), parts, limit_rank)


def _possible_waiting(evidence: Evidence) -> _Waiting:
    """Return how long each rank waits for others in each step.

    If process groups are not known, it is how long it may wait: all communication.
    """
    if not evidence.are_groups_known:
        comm_ns, hidden_comm_ns = evidence.columns("comm_ns", "overlap_compute_ns")
        return _Waiting(comm_ns, hidden_comm_ns)
    wait_ns, exposed_wait_ns = evidence.columns("wait_ns", "exposed_wait_ns")
    return _Waiting(wait_ns, wait_ns - exposed_wait_ns)


def _hideable_transfer(evidence: Evidence, caused_ns: Float64) -> Float64:
    """Return on each row of `steps` how much transfer is exposed because it was launched late.

    Transfer is communication without waiting. If process groups are not known, the waiting is
    `caused_ns`, and it counts as hidden as far as communication is hidden.
    """
    late_ns, exposed_ns = evidence.columns("exposed_late_comm_ns", "exposed_comm_ns")
    if evidence.are_groups_known:
        (exposed_wait_ns,) = evidence.columns("exposed_wait_ns")
    else:
        (hidden_comm_ns,) = evidence.columns("overlap_compute_ns")
        exposed_wait_ns = np.maximum(caused_ns - hidden_comm_ns, 0)
    exposed_transfer_ns = exposed_ns - exposed_wait_ns
    return np.minimum(late_ns, exposed_transfer_ns)


def _gone_by_cause(evidence: Evidence) -> dict[str, Float64]:
    """Return the idle time that is gone if launching takes no time, by its cause.

    Each cause has a value per row of `steps`.
    """
    launch_idle_ns, pause_ns = evidence.columns("idle_launch_ns", "idle_pause_ns")
    (late_start_ns,) = evidence.columns("idle_late_start_ns")
    if evidence.is_pipeline:
        # All other idle time of a stage may lie in the bubble.
        without_pauses_ns = launch_idle_ns - pause_ns
        return {"idle_for_launches": without_pauses_ns, "idle_at_late_start": late_start_ns}
    input_idle_ns, blocked_ns = evidence.columns("idle_input_ns", "idle_blocked_ns")
    launch_and_input_ns, input_ns = evidence.columns("host_launch_ns", "host_input_ns")
    launch_ns = launch_and_input_ns - input_ns
    # While the device idles for launches, launching is counted already. The other launching delays
    # input and blocking calls, which the host would reach that much earlier.
    other_launching_ns = np.maximum(launch_ns - launch_idle_ns, 0)
    waited_ns = input_idle_ns + blocked_ns
    return {
        "idle_for_launches": launch_idle_ns,
        "idle_at_late_start": late_start_ns,
        "idle_for_input_and_calls": np.minimum(waited_ns, other_launching_ns),
    }

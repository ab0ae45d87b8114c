"""The preparation of a run for simulation: the purpose of its collectives, and its bandwidths."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import pyarrow.compute as pc
from numpy.typing import NDArray

from nsyspipe.analysis.kernels import compared_kernels, operations_per_ns
from nsyspipe.analysis.launching import fastest_launch_times, longest_work_times
from nsyspipe.analysis.links import nominal_speed
from nsyspipe.analysis.summary import divided, sums_by
from nsyspipe.analysis.traffic import DATA, OTHER, SHARDED, is_hybrid_sharded
from nsyspipe.errors import OptionError
from nsyspipe.model.names import grouped, is_nccl_communicator
from nsyspipe.model.problems import EXPORT_AGAIN, IN_GRAPHS, NO_SIZES, WITH_BLOBS
from nsyspipe.model.table import Flags, Int64
from nsyspipe.model.typed_tables import (
    CollectivesTable,
    TrafficTable,
)
from nsyspipe.replay import refusals, starving
from nsyspipe.replay.gradients import gradients_of
from nsyspipe.replay.program import captured_program
from nsyspipe.replay.scenarios import Replay
from nsyspipe.replay.timelines import (
    SHARD_COLLECTIVES,
    Collectives,
    CollectiveUses,
    RankTimeline,
    ReplayWindows,
    rank_timelines,
    summary_windows,
)
from nsyspipe.run.run import Run

# The size of gradients that a user gives may differ from the captured size by this share.
_MAX_BYTES_DIFFERENCE = 0.1
# Datatypes as NCCL's kernels name them.
_ELEMENT_BYTES = {"f64": 8, "f32": 4, "f16": 2, "bf16": 2}
# The columns that identify a use of a communicator.
_USE = ("comm_id", "collective")
# The parallelism of each use of a communicator.
_Roles: TypeAlias = Mapping[tuple[str, str], str]
_MAIN_STREAM = -1


def opened_replay(run: Run, gradient_bytes: float | None = None) -> Replay | str:
    """Return a run ready to simulate changes, or the reason why it cannot be simulated.

    Raise an `OptionError` if the capture contradicts the given size of the gradients.
    """
    reason_by_tables = next(refusals.why_not(run), None)
    if reason_by_tables:
        return reason_by_tables
    windows = summary_windows(run)
    if windows is None:
        return "the steps used do not follow each other on every rank"
    timelines = rank_timelines(run, windows)
    reasons = refusals.why_not_replayable(run, timelines, windows)
    reason_by_operations = next(reasons, None)
    if reason_by_operations:
        return reason_by_operations
    replay = _prepare_replay(run, windows, timelines, gradient_bytes)
    _check_bytes(replay, gradient_bytes)
    if replay.identity_error > refusals.MAX_IDENTITY_ERROR:
        return (
            f"the simulation error on the captured run is {100 * replay.identity_error:.1f}%, "
            "so the run waits for something that the simulation does not cover"
        )
    return refusals.contradiction(replay) or replay


def _prepare_replay(
    run: Run,
    windows: ReplayWindows,
    timelines: Sequence[RankTimeline],
    gradient_bytes: float | None,
) -> Replay:
    """Return the captured steps with all facts that a simulation asks for."""
    traffic = run.traffic()
    role_of = _roles_of_uses(traffic)
    messages = _read_messages(run, timelines[0])
    uses = _collective_uses(timelines, messages, role_of)
    captured = captured_program(timelines, windows, uses)
    datatypes = _gradient_datatypes(messages, uses.is_gradient)
    n_job_ranks = run.header.n_job_ranks or 0
    world_size = max(len(timelines), n_job_ranks)
    element_bytes = _element_bytes(datatypes)
    recorded_bytes_per_s = _recorded_bandwidths(run, role_of)
    return Replay(
        captured=captured,
        given_bytes=gradient_bytes,
        datatypes=datatypes,
        element_bytes=element_bytes,
        recorded_bytes_per_s=recorded_bytes_per_s,
        world_size=world_size,
        is_hybrid_sharded=is_hybrid_sharded(traffic),
        **_launch_facts(run),
        **_hardware_facts(run),
    )


def _roles_of_uses(traffic: TrafficTable) -> _Roles:
    """Return the parallelism of each use of a communicator.

    A use is a communicator and a kind of collective.
    """
    roles = {}
    uses = traffic.select(["communicator", "collective", "role"])
    for row in uses.to_pylist():
        use = (row["communicator"], row["collective"])
        roles[use] = row["role"]
    return roles


def _launch_facts(run: Run) -> dict[str, Any]:
    """Return the fields of a `Replay` about launches, about work, and about kernels."""
    breakdown = run.breakdown()
    kernels = run.kernels()
    longest_work_ns = longest_work_times(breakdown).mean()
    return {
        "starved_shares": starving.starved_shares(run),
        "starving": starving.starving(run),
        "starved_causes": starving.starved_causes(run),
        "longest_work_ns": float(longest_work_ns),
        "fastest_launch_ns": fastest_launch_times(breakdown),
        "compared": compared_kernels(kernels),
        "operations_per_ns": operations_per_ns(kernels),
        "rank_names": run.rank_names,
    }


def _hardware_facts(run: Run) -> dict[str, Any]:
    """Return the fields of a `Replay` about interconnects, and about what records message sizes."""
    gpu_names = run.ranks["gpu_name"].to_pylist()
    # The fastest interconnect is NVLink, or PCIe for GPUs without NVLink.
    nominal = nominal_speed(gpu_names, path="NV") or nominal_speed(gpu_names, path="PCIe")
    nominal_bytes_per_s = None if nominal is None else nominal.bytes_per_s
    kinds = run.links()["kind"].unique().to_pylist()
    # Other kinds of links have several generations, so their name stands for no bandwidth.
    known_link = "shm" if kinds == ["shm"] else None
    sizes_recorded_by = _what_records_sizes(run)
    return {
        "nominal_bytes_per_s": nominal_bytes_per_s,
        "known_link": known_link,
        "sizes_recorded_by": sizes_recorded_by,
    }


def _what_records_sizes(run: Run) -> str:
    """Return what records message sizes, in words that fit into a sentence.

    This is the fix of the problem that sizes are missing. If the run has no such problem, or if the
    fix is a complete command, it is the option for an export with messages.
    """
    fix_of = {row["code"]: row["fix"] for row in run.problem_rows}
    fix: str | None = fix_of.get(IN_GRAPHS) or fix_of.get(NO_SIZES)
    if fix is None or fix.startswith(EXPORT_AGAIN):
        return WITH_BLOBS
    return fix


def _check_bytes(replay: Replay, gradient_bytes: float | None) -> None:
    """Raise an `OptionError` if the capture contradicts the given size of the gradients.

    The size is wrong if it means a bandwidth that is impossible, or if the capture shows another
    size.
    """
    if gradient_bytes is None:
        return
    option = f"--gradient-bytes {gradient_bytes:,.0f}"
    reason = refusals.beyond_nominal(replay)
    if reason:
        names = sorted(datatype or "?" for datatype in replay.datatypes)
        datatypes = f"all-reduces of {', '.join(names)}"
        fix = "give the bytes sent: parameters x 4 for f32, x 2 for f16 or bf16"
        raise OptionError(option, reason, found=datatypes, fix=fix)
    captured = replay.captured
    shown = [gradients_of(captured, step, n_bytes=None) for step in captured.steps]
    known_bytes = [gradients.n_bytes.sum() for gradients in shown if gradients is not None]
    if not known_bytes:
        return
    captured_bytes = float(np.median(known_bytes))
    difference = abs(gradient_bytes - captured_bytes)
    if difference > _MAX_BYTES_DIFFERENCE * captured_bytes:
        what = f"differs from the {captured_bytes:,.0f} bytes of gradients per step in the capture"
        fix = "leave out --gradient-bytes (f32 gradients are parameters x 4 bytes)"
        raise OptionError(option, what, fix=fix)


class _Message(NamedTuple):
    """What was recorded about the message of a collective."""

    n_bytes: int | None
    datatype: str | None
    comm_id: str
    collective: str


_UNKNOWN_MESSAGE = _Message(None, None, comm_id="/", collective="")


def _read_messages(run: Run, first_rank: RankTimeline) -> list[_Message]:
    """Return the message of each collective of the lowest rank, in order of launch.

    `first_rank` is the timeline of that rank. A message that was not recorded is
    `_UNKNOWN_MESSAGE`.
    """
    first_rank_number = run.ranks["rank"][0]
    is_first_rank = pc.field("rank") == first_rank_number
    table = run.collectives().filter(is_first_rank)
    names = ("step", "seq", "message_bytes", "datatype", "comm_id", "collective")
    columns = [table.column(name).to_pylist() for name in names]
    # A collective of a rank has its step and its number in the step.
    message_at = {}
    for step, seq, *fields in zip(*columns, strict=True):
        message_at[step, seq] = _Message(*fields)
    comm = first_rank.collectives
    steps = comm.step.tolist()
    step_seqs = zip(steps, comm.seq.tolist(), strict=True)
    return [message_at.get(step_seq, _UNKNOWN_MESSAGE) for step_seq in step_seqs]


def _gradient_datatypes(messages: Sequence[_Message], is_gradient: Flags) -> frozenset[str | None]:
    """Return the datatypes of the gradient all-reduces. None is an unknown datatype."""
    gradients = np.flatnonzero(is_gradient)
    return frozenset(messages[place].datatype for place in gradients.tolist())


def _element_bytes(datatypes: frozenset[str | None]) -> int | None:
    """Return the size of an element in bytes. None if it is not known, or not the same for all."""
    sizes = {_ELEMENT_BYTES.get(datatype or "") for datatype in datatypes}
    return sizes.pop() if len(sizes) == 1 else None


def _collective_uses(
    timelines: Sequence[RankTimeline], messages: Sequence[_Message], role_of: _Roles
) -> CollectiveUses:
    """Return the purpose of each collective. `messages` are those of the lowest rank."""
    uses = [(message.comm_id, message.collective) for message in messages]
    roles = [role_of.get(use, OTHER) for use in uses]
    role = np.array(roles, object)
    # Only NCCL's IDs tell which collectives have a communicator in common.
    comm_ids = [message.comm_id for message in messages]
    communicator = None
    if all(map(is_nccl_communicator, comm_ids)):
        communicator = _number_values(np.array(comm_ids))
    # A size of None becomes NaN.
    sizes = [message.n_bytes for message in messages]
    n_bytes = np.array(sizes, np.float64)
    is_gradient = _gradient_collectives(timelines, role)
    chain = _chains(timelines, communicator)
    return CollectiveUses(n_bytes, is_gradient, role, chain)


def _number_values(values: NDArray[Any]) -> Int64:
    """Return the number of each value among the distinct values, in their order."""
    _, numbers = np.unique(values, return_inverse=True)
    return numbers.reshape(-1)


def _chains(timelines: Sequence[RankTimeline], communicator: Int64 | None) -> Int64:
    """Return the number of the chain of each collective.

    The collectives of one chain run one after the other. All collectives of the main stream are one
    chain. The other collectives of each communicator are one chain. If communicators are not known,
    the other collectives of each stream are one chain.
    """
    comm = timelines[0].collectives
    chain = comm.stream if communicator is None else communicator
    is_only_fsdp = {*comm.kind.tolist()} <= SHARD_COLLECTIVES
    if communicator is None and is_only_fsdp and all(map(_run_in_turn, timelines)):
        # FSDP uses two streams. They belong to one communicator if their collectives take turns.
        chain = np.zeros_like(chain)
    chain_or_main = np.where(comm.is_inline, _MAIN_STREAM, chain)
    return _number_values(chain_or_main)


def _run_in_turn(timeline: RankTimeline) -> bool:
    """Tell whether each collective of a rank starts after the previous one has ended."""
    comm = timeline.collectives
    next_starts = comm.start[1:]
    is_in_turn = next_starts >= comm.end[:-1]
    return bool(is_in_turn.all())


def _recorded_bandwidths(run: Run, role_of: _Roles) -> dict[str, float | None]:
    """Return the bus bandwidth of each kind of parallelism. None if it is not known of one use.

    The bus bandwidth is the sum of bytes x factor over the sum of transfer times.
    """
    rows = _transfers_of_uses(run.collectives())
    uses = [(row["comm_id"], row["collective"]) for row in rows]
    roles = [role_of.get(use, OTHER) for use in uses]
    rows_of_roles = grouped(zip(roles, rows, strict=True))
    bandwidths: dict[str, float | None] = {}
    for role, rows_of_role in rows_of_roles.items():
        bandwidths[role] = None
        if all(row["sent"] is not None for row in rows_of_role):
            sent = sum(row["sent"] for row in rows_of_role)
            transfer_ns = sum(row["transfer_ns"] for row in rows_of_role)
            bandwidths[role] = divided(sent, transfer_ns)
    return bandwidths


def _transfers_of_uses(collectives: CollectivesTable) -> list[dict[str, Any]]:
    """Return a row for each use of a communicator in the steps used.

    ``sent`` is the sum of bytes x factor, and ``transfer_ns`` the sum of transfer times. Operations
    with a transfer time of 0 do not count. If the transfer time of an operation is not known,
    neither are the sums.
    """
    is_not_zero = pc.not_equal(collectives["transfer_ns"], 0)
    has_transfer = pc.fill_null(is_not_zero, fill_value=True)
    # The bus bandwidth of an operation is bytes x factor / transfer time.
    sent = pc.multiply(collectives["busbw_bytes_per_s"], collectives["transfer_ns"])
    with_sent = collectives.append_column("sent", sent)
    is_counted = pc.and_(collectives["in_summary"], has_transfer)
    counted = with_sent.filter(is_counted)
    return sums_by(counted, [*_USE], ["sent", "transfer_ns"])


def _gradient_collectives(timelines: Sequence[RankTimeline], role: NDArray[np.object_]) -> Flags:
    """Tell which collectives are gradient all-reduces of DDP. None are if parameters are sharded.

    Candidates are the data-parallel all-reduces outside the main stream, or those of unknown
    purpose if no collective is data-parallel. In each step, the gradients are the candidates of the
    phase that has most of the time of candidates.
    """
    comm = timelines[0].collectives
    is_gradient = np.zeros(comm.step.size, np.bool_)
    is_shard_collective = np.isin(comm.kind, [*SHARD_COLLECTIVES])
    is_shard_outside = is_shard_collective & ~comm.is_inline
    if SHARDED in role or is_shard_outside.any():
        return is_gradient
    role_of_gradients = DATA if DATA in role else OTHER
    is_all_reduce = comm.kind == "all_reduce"
    has_role = role == role_of_gradients
    is_candidate = is_all_reduce & ~comm.is_inline & has_role
    candidates = np.flatnonzero(is_candidate)
    if candidates.size:
        is_gradient[candidates] = _are_in_longest_phase(comm, candidates)
    return is_gradient


def _are_in_longest_phase(comm: Collectives, rows: Int64) -> Flags:
    """Tell which of some collectives are in the phase that has most of their time in the step.

    Of phases with equal times, that is the last one.
    """
    phases, phase_number = np.unique(comm.phase[rows], return_inverse=True)
    steps, step_number = np.unique(comm.step[rows], return_inverse=True)
    durations_ns = comm.end[rows] - comm.start[rows]
    # A row per step, and a column per phase.
    phase_ns = np.zeros((steps.size, phases.size), np.int64)
    np.add.at(phase_ns, (step_number, phase_number), durations_ns)
    # Of equal values, `argmax` returns the first, so the phases are turned around.
    last_phase_first = phase_ns[:, ::-1]
    longest_phase = phases.size - 1 - last_phase_first.argmax(axis=1)
    is_in_longest: Flags = phase_number == longest_phase[step_number]
    return is_in_longest

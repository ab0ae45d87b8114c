"""What can be changed: the knobs, in which words; and where the replay does not hold, with a reason instead of a wrong figure."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import chain
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow.compute as pc
from msgspec import Struct
from msgspec.structs import asdict

from nsyspipe.analysis.launching import ranks_without_launches, slower_hosts
from nsyspipe.analysis.links import GB, NAMED_LINKS, NamedLink, named_link
from nsyspipe.analysis.traffic import OTHER, PIPELINE, ROLES
from nsyspipe.errors import OptionError
from nsyspipe.model.names import few, is_nccl_communicator
from nsyspipe.model.options import check_flags, check_kind, check_number
from nsyspipe.model.problems import MORE_STEPS, WITH_BLOBS
from nsyspipe.model.table import Float64
from nsyspipe.replay.gradients import bucket_ends
from nsyspipe.replay.timelines import (
    BEFORE_ALL_NS,
    SHARD_COLLECTIVES,
    Collectives,
    RankTimeline,
    ReplayWindows,
)
from nsyspipe.run.run import Run

if TYPE_CHECKING:
    from nsyspipe.replay.scenarios import Replay

    _Refused = Callable[["Replay", "Knobs"], Iterator[str]]

_LEAST_BYTES_PER_S = 1e6  # no link between GPUs is slower
_UNITS = {"": 1.0, "k": 1e3, "m": 1e6, "g": 1e9, "t": 1e12}
_NUMBER = r"\s*([0-9]*\.?[0-9]+(?:[eE][0-9]+)?)\s*([kKmMgGtT]?)"
_FORM = re.compile(_NUMBER + r"B/?[sS]\s*")
_FACTOR = re.compile(r"\s*([0-9]*\.?[0-9]+)\s*[xX]\s*")
_EXAMPLES = {"bucket_mb": "25", "gradient_bytes": "665_000_000", "bandwidth": "'300GB/s'"}
_BITS = re.compile(
    _NUMBER + r"(?:b/?[sS]|bps|[bB]its?/[sS])\s*"
)  # as networks are told: 200Gb/s, 200Gbit/s, 200Gbps

LINKS = {link.name: link for link in NAMED_LINKS}
DTYPES = ("bf16", "fp16")
MAX_IDENTITY_ERROR = 0.01
MAX_STARVED_SHARE = (
    0.02  # of the step: from here on a GPU that idles for work that was not launched yet decides it
)
# A queue that is full holds hosts back: where a faster link was captured too, they took up to 1.17
# times as long to launch a step before as the step took then.
MAX_LAUNCH_TO_STEP = 1.25
_NOT_LAUNCHED = {
    "idle_input_ns": "input-bound",
    "idle_launch_ns": "launch-bound",
    "idle_blocked_ns": "sync-bound",
}
_SHOWN_RANKS = 4
_LEAST_CAUSE = 0.25  # of the time that a GPU waits for launches, for a cause of it to be named
_LARGEST_UNLAUNCHED = 0.01
_SAME = 0.03
_WHOLE = 0.75  # of the gradients' bytes: less is sent under a hook that compresses them
# where the switch adds up (NVLink SHARP, from 3 ranks on) it is a little above the links'
_IN_SWITCH = 1.25
_PAIR = 2
_SLOWEST_NETWORK_BYTES_PER_S = 10e6  # a tenth of 1 Gb/s Ethernet
_MOST_BUCKETS = 128
_LARGEST_BUCKET_MB = 2**20  # 1 TiB
_MOST_REPLAYED = 2_500  # collectives of all steps together: a tenth of a second for each thousand
_OF_GRADIENTS = {"gradient_dtype", "bucket_mb", "no_grad_copy", "no_sync"}
_MOST_SLOWER = 1.5  # kernels may be slower beside communication, but hardly so much


class Knobs(Struct, frozen=True):
    """A combination of changes, as `answer.whatif` describes them; what is None or false stays as it is."""

    bandwidth_bytes_per_s: float | None = None
    bandwidth_factor: float | None = None
    role: str | None = None  # of the communicators whose bandwidth changes; None: of all
    link: str | None = None
    gradient_dtype: str | None = None
    bucket_mb: float | None = None
    no_wait: bool = False
    no_grad_copy: bool = False
    no_sync: bool = False
    prefetch: bool = False
    perfect_overlap: bool = False

    def __post_init__(self) -> None:
        if (
            self.link is not None
            and (self.bandwidth_bytes_per_s or self.bandwidth_factor) is not None
        ):
            raise OptionError(
                "--link and --bandwidth", "both set the bandwidth", fix="leave out one of them"
            )
        if self.link is not None and self.link not in LINKS:
            raise _no_such_link(self.link)
        if self.gradient_dtype not in (None, *DTYPES):
            option = f"--gradient-dtype {self.gradient_dtype!r}"
            raise OptionError.no_such_name(
                option, "is not supported", str(self.gradient_dtype), DTYPES
            )
        _check_positive("--bandwidth", self.bandwidth_bytes_per_s)
        _check_positive("--bucket-mb", self.bucket_mb)
        defaults = zip(self.__struct_fields__, self.__struct_defaults__, strict=True)
        flags = [name for name, default in defaults if default is False]
        check_flags(**{name: getattr(self, name) for name in flags})
        if (self.bucket_mb or 0) > _LARGEST_BUCKET_MB:
            fix = "give MiB, as for bucket_cap_mb, not bytes: --bucket-mb 25"
            raise OptionError(
                f"--bucket-mb {self.bucket_mb:.0f}", "is larger than the memory of a GPU", fix=fix
            )

    def __bool__(self) -> bool:
        return bool(self.given)

    @property
    def given(self) -> dict[str, float | str | bool]:
        """What is changed, by name."""
        return {name: value for name, value in asdict(self).items() if value not in (None, False)}

    @property
    def target_bytes_per_s(self) -> float | None:
        """The bandwidth asked for; None keeps the captured one."""
        return self.bandwidth_bytes_per_s if self.link is None else LINKS[self.link].bus_bytes_per_s

    @property
    def label(self) -> str:
        """The changes in the words of the options that make them."""
        return ", ".join(_KNOBS[name][0](value) for name, value in self.given.items())


def _no_such_link(name: str) -> OptionError:
    """Return the error for the name of a link that nsyspipe does not know.

    A name such as ``nvlink`` fits several links, so those are offered, each with its GPUs. Any
    other name is not corrected: a link with nearly the same name is another link.
    """
    option = f"--link {name!r}"
    meant = [link for link in LINKS.values() if name and link.name.startswith(name.lower())]
    if meant:
        return OptionError(
            option, "fits several interconnects", fix=f"did you mean {_listed_links(meant)}?"
        )
    fix = (
        "give the bus bandwidth that collectives reach over your interconnect: --bandwidth 300GB/s"
    )
    return OptionError(
        option,
        "is not an interconnect that nsyspipe knows",
        found=_listed_links(LINKS.values()),
        fix=fix,
    )


def _listed_links(links: Iterable[NamedLink]) -> str:
    """Return the names of links, each with the GPUs that have the link."""
    gpus = {link.name: ", ".join(link.gpus).upper() for link in links}
    return ", ".join(f"{name} ({models})" if models else name for name, models in gpus.items())


def _check_positive(option: str, value: Any) -> None:  # noqa: ANN401 - whatever was given
    name = option[2:].replace("-", "_")
    fix = (
        "run one whatif for each number"
        if isinstance(value, list | tuple)
        else f"{name}={_EXAMPLES[name]}"
    )
    if (
        isinstance(value, str) and (number := re.match(_NUMBER, value)) is not None
    ):  # with a unit maybe
        bytes_of_unit = _UNITS[number[2].lower()] if name == "gradient_bytes" else 1
        fix = f"{name}={float(number[1]) * bytes_of_unit:.15g}"
    check_number(name, value, fix)
    if value is not None and not 0 < value < float("inf"):
        raise OptionError(
            f"{option} {value:g}", "is not a positive number", fix="give a number above 0"
        )


def parse_bandwidth(text: str) -> float:
    """Return bytes per second of ``300GB/s``: k, M, G, T are powers of 1000, B is bytes; all else is an `OptionError`."""
    bits = _BITS.fullmatch(text)
    if bits:
        value = float(bits[1])
        unit = bits[2].upper().replace("K", "k")
        fix = (
            f"--bandwidth {value / 8:g}{unit}B/s, or --bandwidth {value:g}{unit}B/s if you meant "
            "bytes"
        )
        raise OptionError(f"--bandwidth {text!r}", "is in bits, but nsyspipe needs bytes", fix=fix)
    found = _FORM.fullmatch(text)
    value = float(found[1]) * _UNITS[found[2].lower()] if found else 0.0
    if not 0 < value < float("inf"):
        number = None if found else re.match(_NUMBER, text)
        times = (
            f", or {number[1]}x for a multiple of the captured bandwidth"
            if number and number.end() == len(text)
            else ""
        )
        fix = (
            f"--bandwidth {number[1]}{number[2] or 'G'}B/s{times}"
            if number
            else "--bandwidth 300GB/s"
        )
        raise OptionError(f"--bandwidth {text!r}", "is not a bandwidth", fix=fix)
    return value


def knobs_of(
    *,
    bandwidth: float | str | None = None,
    link: str | None = None,
    gradient_bytes: float | None = None,
    **others: Any,  # noqa: ANN401 - other fields of Knobs
) -> Knobs:
    """Return the changes that `answer.whatif` was asked for; an `OptionError` if a value cannot be used, or two contradict."""
    _check_positive("--gradient-bytes", gradient_bytes)
    check_kind("link", link, str, "the name of a link", "link='nvlink4'")
    if isinstance(bandwidth, str):  # [ROLE=]300GB/s, or [ROLE=]2x, twice what is captured
        role, is_named, rate = bandwidth.rpartition("=")
        if is_named and role not in ROLES:
            raise OptionError.no_such_name(
                f"--bandwidth {bandwidth!r}", f"{role!r} is not a kind of parallelism", role, ROLES
            )
        others |= {"role": role} if is_named else {}
        factor = _FACTOR.fullmatch(rate)
        if factor:
            _check_positive("--bandwidth", float(factor[1]))
            others["bandwidth_factor"] = float(factor[1])
        bandwidth = None if factor else parse_bandwidth(rate)
    else:
        check_number("bandwidth", bandwidth, "bandwidth='300GB/s'")
        if bandwidth is not None and 0 < bandwidth < _LEAST_BYTES_PER_S:  # meant in another unit
            fix = f'bandwidth="{bandwidth:g}GB/s"'
            raise OptionError(
                f"bandwidth={bandwidth:g}", "is too small for bytes per second", fix=fix
            )
    if bandwidth is not None:
        others["bandwidth_bytes_per_s"] = bandwidth
    named = None if link is None else named_link(link)
    return Knobs(link=link if named is None else named.name, **others)


def starved_shares(run: Run) -> Float64:
    """Return the share of each rank's median step that its GPU is idle because what comes next is not launched yet."""
    steps = run.steps().filter(run.steps()["in_summary"])
    rank = steps["rank"].to_numpy()
    late = [pc.fill_null(steps[name], 0).to_numpy() for name in _NOT_LAUNCHED]
    shares = np.sum(late, axis=0) / steps["wall_ns"].to_numpy()
    return np.array([np.median(shares[rank == one]) for one in np.unique(rank)])


def starved_causes(run: Run) -> list[tuple[str, ...]]:
    """Return for each rank, in words, why its GPU waits for launches: each cause of a quarter of that time, the largest first."""
    steps = run.steps().filter(run.steps()["in_summary"])
    sums = steps.group_by("rank", use_threads=False).aggregate(
        [(name, "sum") for name in _NOT_LAUNCHED]
    )
    causes = []
    for row in sums.sort_by("rank").to_pylist():
        times = {words: row[f"{name}_sum"] or 0 for name, words in _NOT_LAUNCHED.items()}
        least_ns = _LEAST_CAUSE * sum(times.values())
        named = [words for words, ns in times.items() if ns and ns >= least_ns]
        causes.append(tuple(sorted(named, key=lambda words: -times[words])))
    return causes


class Starving(Struct, frozen=True):
    """Whose devices lack launches in which of the steps, and whose hosts are slower to launch than the others."""

    n_late_steps: Mapping[
        int, int
    ]  # of each rank whose device does in a quarter of the steps at least
    n_steps: int
    slower: Sequence[int] | None  # None where a host's launch time is not known


def starving(run: Run) -> Starving:
    """Return which ranks of a run lack launches in which of the summary steps."""
    steps = run.breakdown()
    n_steps = len(steps["step"].unique())
    counts = ranks_without_launches(steps, tuple(_NOT_LAUNCHED))
    return Starving(counts, n_steps, slower_hosts(steps))


def _host_to_mend(replay: Replay, place: int) -> str:
    """Return which CPUs must launch earlier for the rank whose GPU waits most, and which other GPUs wait in some steps."""
    found = replay.starving
    names = replay.rank_names
    rank = replay.captured.windows.ranks[place]
    fix = "First make its CPU launch kernels earlier"
    is_for_launches = replay.starved_causes[place][:1] == (_NOT_LAUNCHED["idle_launch_ns"],)
    if is_for_launches and found.slower is not None and rank not in found.slower:
        fix = (
            "All CPUs launch equally fast on average, so first make all of them launch kernels "
            "earlier"
        )
    others = [
        f"rank {names.name(other)} in {n_late} of {found.n_steps} steps"
        for other, n_late in found.n_late_steps.items()
        if other != rank
    ]
    return f"{fix}. Other GPUs wait too: {few(others, _SHOWN_RANKS)}" if others else fix


def why_not(run: Run) -> Iterator[str]:
    """Yield why a run cannot be replayed at all, by its figures and kinds of traffic."""
    if run.is_capture:
        yield "the run is a capture as a whole, without steps (name the steps with --step REGEX)"
    n_ranks = run.header.n_ranks
    n_job_ranks = run.header.n_job_ranks
    problems = {row["code"]: f"{row['message']} ({row['fix']})" for row in run.problem_rows}
    has_comm = bool(run.collectives().num_rows)
    if n_ranks <= 1 and (n_job_ranks == 1 or (n_job_ranks is None and not has_comm)):
        yield "the run has 1 rank, so there is no communication to change"
    if not has_comm:
        yield problems.get("comm-in-graphs", "no communication was recorded in any step")
    if (
        run.summary()["idle_share"][0].as_py() or 0.0
    ) > MAX_STARVED_SHARE and "device-clock-unknown" in problems:
        yield problems["device-clock-unknown"]  # all of it may be for want of launches
    steps = run.steps()
    complete = np.unique(steps.filter(steps["is_complete"])["step"].to_numpy())
    counted = np.unique(steps.filter(steps["in_summary"])["step"].to_numpy())
    if not np.isin(counted, complete).all() or not counted.size:
        yield "no step is complete on every rank"
    if complete.size == 1 and not run.skipped_steps:
        yield (
            "there is no complete step after the first, and ranks start the first step at "
            "different times "
            f"({MORE_STEPS})"
        )
    traffic = run.traffic()
    if PIPELINE in traffic["role"].to_pylist():
        yield "the simulation does not cover pipeline schedules"
    elif "send_recv" in traffic["collective"].to_pylist():
        yield "the run has sends and receives, and their purpose is unknown"


def _has_several(comm: Collectives) -> bool:
    """Tell whether collectives beside the work are on several streams, but for FSDP's two kinds, each on its own."""
    beside = ~comm.is_inline
    kinds = {*comm.kind[beside].tolist()}
    alike = (
        [beside & (comm.kind == kind) for kind in kinds] if kinds <= SHARD_COLLECTIVES else [beside]
    )
    return any(np.unique(comm.stream[own]).size > 1 for own in alike)


def why_not_replayable(
    run: Run, timelines: Sequence[RankTimeline], windows: ReplayWindows
) -> Iterator[str]:
    """Yield why the operations of a run cannot be replayed."""
    first = timelines[0].collectives
    if any(timeline.n_comm_outside_steps for timeline in timelines):
        yield (
            "communication from outside the steps still runs inside the steps, so nsyspipe cannot "
            "separate the collectives"
        )
    table = run.collectives()
    inside = table.filter(pc.is_in(table["step"], value_set=pc.cast(windows.steps, "int64")))
    if not inside.num_rows or not all(timeline.collectives.start.size for timeline in timelines):
        yield "no communication was recorded in the steps used"
    others = [timeline.collectives for timeline in timelines]
    is_same = all(np.array_equal(one.step, first.step) for one in others)
    if not is_same or (len(timelines) > 1 and not pc.all(inside["is_matched"]).as_py()):
        yield "collectives could not be matched across ranks"
    # Ranks of other groups take part in other collectives, in the same places.
    by_rank = [np.stack((one.step, one.seq, np.arange(one.seq.size))) for one in others]
    placed = np.unique(np.concatenate(by_rank, axis=1), axis=1)
    if np.unique(placed[:2], axis=1).shape[1] != placed.shape[1]:
        yield (
            "ranks launch their collectives in different orders, so nsyspipe cannot match the "
            "collectives"
        )
    # A hook computes between a collective and what waits for it, for more than a replay may be off
    # by. What a cast of bf16 compression does on one of many streams in turn, once in a while on
    # NCCL's, is less.
    n_steps = windows.steps.size
    most = max(timelines, key=lambda one: one.comm_stream_kernels_ns)
    share = most.comm_stream_kernels_ns / (windows.edges[-1] - windows.edges[0]).mean()
    if share > MAX_IDENTITY_ERROR:
        shares = f"up to {most.n_comm_stream_kernels / n_steps:,.3g} kernels per step, {100 * share:.1f}% of the step"
        yield (
            f"compute kernels run on the communication stream ({shares}), as with PowerSGD, "
            "and the simulation does "
            "not cover such kernels"
        )
    # Without NCCL's ids a communicator is told by its stream.
    has_ids = all(map(is_nccl_communicator, inside["comm_id"].unique().to_pylist()))
    if any(map(_has_several, others)) and not has_ids:
        without = f"NCCL's communicator IDs were not recorded ({WITH_BLOBS})"
        yield (
            f"the run uses several communicators, and {without}, so the order of the collectives "
            "is unknown"
        )
    if any(
        np.isin(timeline.collectives.launch[~timeline.collectives.is_inline], timeline.launch).any()
        for timeline in timelines
    ):
        yield (
            "CUDA graphs launch communication and compute together, so their dependencies are "
            "unknown"
        )
    if sum(timeline.n_without_launch for timeline in timelines) > _LARGEST_UNLAUNCHED * sum(
        timeline.start.size for timeline in timelines
    ):
        yield (
            "kernel launches were not recorded (capture with --trace=cuda,nvtx), so dependencies "
            "are unknown"
        )
    # Few of all operations, but without its launch nothing says what one waits for.
    launches = np.concatenate([timeline.collectives.launch for timeline in timelines])
    n_not = int(np.count_nonzero(launches == BEFORE_ALL_NS))
    if n_not:
        yield (
            f"launches of collectives are missing ({n_not} of {launches.size}), so their "
            "dependencies are unknown"
        )


def why_not_knobs(replay: Replay, knobs: Knobs) -> str | None:
    """Return why a combination of knobs cannot be answered; None if it can."""
    if not _OF_GRADIENTS.isdisjoint(knobs.given) and (
        replay.is_sharded or not replay.has_gradients
    ):
        if replay.is_sharded and "gradient_dtype" in knobs.given:
            return (
                "gradients are sharded (FSDP/ZeRO), and the simulation does not cover "
                "reduce-scatters in another datatype"
            )
        if replay.is_hybrid_sharded:
            return "the all-reduces are of gradient shards (hybrid sharding), not of DDP buckets"
        if OTHER in replay.roles and not replay.is_sharded:
            return (
                "the purpose of some communication is unknown, so nsyspipe cannot identify "
                "gradients"
            )
        what = "only sharded gradients (FSDP/ZeRO)"
        if not replay.is_sharded:
            what = f"only {', '.join(replay.roles)} communication"
        return f"the run has {what}, and no all-reduces of whole gradients that could change"
    of_knobs = (
        refused(replay, knobs)
        for name, (_, refused) in _KNOBS.items()
        if refused and name in knobs.given
    )
    return next(chain(_run(replay, knobs), *of_knobs), None)


def beyond_nominal(replay: Replay) -> str | None:
    """Return why the captured bandwidth cannot be: more than the GPUs' links give, or next to nothing; None if it can, or nothing says it."""
    most = replay.nominal_bytes_per_s
    own = replay.bus_bytes_per_s if replay.has_gradients else None
    in_switch = _IN_SWITCH if replay.captured.program.n_ranks > _PAIR else 1.0
    if own is None or _SLOWEST_NETWORK_BYTES_PER_S <= own <= (most or math.inf) * in_switch:
        return None
    link = f"the fastest interconnect of these GPUs reaches only {(most or 0.0) / GB:,.0f} GB/s"
    if own < _SLOWEST_NETWORK_BYTES_PER_S:
        link = f"even the slowest network reaches {_SLOWEST_NETWORK_BYTES_PER_S / GB:g} GB/s"
    return (
        f"the size of the gradients is wrong: it means a bandwidth of {own / GB:,.3g} GB/s, but "
        f"{link}"
    )


def _run(replay: Replay, knobs: Knobs) -> Iterator[str]:
    reason = beyond_nominal(replay)
    if reason:
        yield reason
    n_ranks = replay.captured.program.n_ranks
    n_all = replay.world_size
    if n_ranks < max(n_all, 2) and knobs.given.keys() - {"bucket_mb", "no_grad_copy"}:
        there = (
            "only 1 rank was captured"
            if n_ranks <= 1
            else f"only {n_ranks} of {n_all} ranks were captured"
        )
        fix = (
            "pass the reports of all ranks, nsyspipe can predict only buckets and their copies "
            "without the others"
        )
        yield f"{there}, so nsyspipe cannot separate wait time from transfer time ({fix})"
    shares = replay.starved_shares
    n_starved = np.count_nonzero(shares > MAX_STARVED_SHARE)
    share = f"{100 * shares.max():.1f}%"
    causes = " or ".join(replay.starved_causes[int(np.argmax(shares))])
    rank = replay.rank_names.name(int(replay.captured.windows.ranks[np.argmax(shares)]))
    if n_starved > 1 or n_starved == n_ranks:
        others = ", and other ranks wait too" if n_starved > 1 else ""
        yield (
            f"rank {rank} is {causes}, because its GPU waits for the CPU for {share} of the median "
            f"step{others}"
        )
    if n_starved and not knobs.no_wait:
        if replay.is_answered_balanced and (staying := replay.why_refused_balanced(knobs)):
            yield staying
        fix = (
            ""
            if replay.is_answered_balanced
            else f". {_host_to_mend(replay, int(np.argmax(shares)))}"
        )
        yield (
            f"rank {rank} is {causes}, because its GPU waits for the CPU for {share} of the median "
            f"step{fix}"
        )


def _faster(replay: Replay, knobs: Knobs) -> Iterator[str]:
    target = knobs.target_bytes_per_s or 0.0
    if knobs.role is not None and knobs.role not in replay.roles:
        yield f"the run has no {knobs.role} communication, only {', '.join(replay.roles)}"
        return
    most, fastest = max((link.nominal_bytes_per_s or 0.0, link.name) for link in NAMED_LINKS)
    if target > most * _IN_SWITCH:
        yield (
            f"no interconnect reaches {target / GB:,.0f} GB/s. The fastest that nsyspipe knows "
            f"is {fastest} with "
            f"{most / GB:,.0f} GB/s. For a limit, use nsyspipe whatif --perfect-overlap"
        )
    for role in replay.roles if knobs.role is None else (knobs.role,):
        if knobs.bandwidth_factor is None and replay.bus_bandwidth_of(role) is None:
            if role == OTHER and len(replay.roles) > 1:
                continue
            fix = f"{replay.sizes_recorded_by}, or use nsyspipe whatif --bandwidth 2x"
            if replay.has_gradients and not replay.is_sharded:
                fix = "use nsyspipe whatif --gradient-bytes N"
            yield f"message sizes were not recorded, so the captured bandwidth is unknown ({fix})"
        elif replay.bandwidth_ratio(knobs, role) > 1 + _SAME and not replay.is_waited_for(role):
            named = "FSDP/ZeRO" if replay.is_sharded else role
            yield (
                f"{named} communication overlaps with compute, and the work that waits for an "
                "overlapped collective is "
                "unknown, so nsyspipe predicts only faster interconnects"
            )


def _buckets(replay: Replay, knobs: Knobs) -> Iterator[str]:
    n_bursts = replay.n_bursts
    if n_bursts > 1:
        yield (
            f"gradients are all-reduced {n_bursts} times per step, with other work in between, "
            "and nsyspipe cannot "
            "match them (with no_sync(), accumulation sends gradients only once)"
        )
    if replay.gradient_bytes is None:
        yield "the size of the gradients was not recorded (use nsyspipe whatif --gradient-bytes N)"
    if replay.sent_share is not None and replay.sent_share < _WHOLE:
        yield (
            f"a hook compresses the gradients to {replay.sent_share:.2f} of their size, but "
            "bucket_cap_mb counts "
            "uncompressed gradients (use a capture without the hook)"
        )
    ends = [
        bucket_ends(gradient.n_bytes, knobs.bucket_mb or 0.0)
        for gradient in replay.gradients
        if gradient is not None
    ]
    n = max((end.size for end in ends), default=0)
    n_steps = len(replay.captured.steps)
    program = replay.captured.program
    if n > _MOST_BUCKETS:
        n_own = np.bincount(program.step[program.is_gradient]).max(initial=0)
        yield (
            f"{n:,} buckets per step are too many: nsyspipe predicts up to {_MOST_BUCKETS}, "
            f"and the run has {n_own}"
        )
    if n * n_steps > _MOST_REPLAYED:
        yield (
            f"{n:,} buckets in each of {n_steps:,} steps take too long to simulate, the most "
            f"is {_MOST_REPLAYED:,} in all "
            "steps (capture fewer steps, or leave out some with --skip-first N)"
        )
    if replay.lag_share > 1:
        yield (
            "collectives start late after everything that they depend on, with a delay of "
            f"{replay.lag_share:.1f} times their own duration, so the start of smaller or "
            "larger collectives is unknown"
        )


def _halved(replay: Replay, _: Knobs) -> Iterator[str]:
    if replay.datatypes != {"f32"}:
        shown = ", ".join(
            sorted(datatype or "an unknown type" for datatype in replay.datatypes or {None})
        )
        yield f"gradients are sent as {shown}, and only f32 gradients can be halved"


def _only_where(is_there: Callable[[Replay], bool], reason: str) -> _Refused:
    return lambda replay, _: iter(() if is_there(replay) else (reason,))


# Each knob in the words of the option that turns it, and when it is refused, whatever the run is
# like.
_KNOBS: dict[str, tuple[Callable[[Any], str], _Refused | None]] = {
    "bandwidth_bytes_per_s": (lambda rate: f"bandwidth {rate / GB:g} GB/s", _faster),
    "bandwidth_factor": ("{:g}x bandwidth".format, _faster),
    "role": ("only {} communication".format, None),
    "link": ("interconnect {}".format, _faster),
    "bucket_mb": ("bucket_cap_mb={:g}".format, _buckets),
    "no_grad_copy": (
        lambda _: "gradient_as_bucket_view=True",
        _only_where(
            lambda replay: replay.n_copies > 1,
            (
                "there are no copies between buckets and gradients, so "
                "gradient_as_bucket_view=True is already set or a hook is in use"
            ),
        ),
    ),
    "gradient_dtype": ("gradients as {}".format, _halved),
    "no_sync": (
        lambda _: "no_sync() before the last micro-batch",
        _only_where(
            lambda replay: replay.n_bursts > 1,
            "the backward passes show that gradients are already sent once per step",
        ),
    ),
    "prefetch": (
        lambda _: "gather parameters a layer earlier",
        _only_where(
            lambda replay: bool(replay.is_prefetched.any()),
            "the run has no all-gathers of parameters (FSDP, ZeRO 3) that could start earlier",
        ),
    ),
    "no_wait": (lambda _: "no late ranks", None),
    "perfect_overlap": (
        lambda _: "perfect overlap",
        _only_where(
            lambda replay: (
                not any(
                    timeline.collectives.is_inline.any() for timeline in replay.captured.timelines
                )
            ),
            (
                "communication runs on the compute stream, so communication cannot overlap with "
                "compute"
            ),
        ),
    ),
}


def contradiction(replay: Replay) -> str | None:
    """Return why a replay contradicts itself: the step without communication is shorter than what its device computes."""
    least = replay.least_compute_ns(_MOST_SLOWER)
    if replay.limits is None or (limit := np.median(replay.limits[0])) >= least:
        return None
    return (
        "the simulation contradicts itself: with zero communication time a step takes "
        f"{limit / 1e6:.2f} ms, but "
        f"compute alone takes at least {least / 1e6:.2f} ms"
    )

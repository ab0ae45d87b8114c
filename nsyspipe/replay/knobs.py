"""What can be changed: the knobs, in which words; and where the replay does not hold, with a reason instead of a wrong figure."""

from __future__ import annotations

import re
from dataclasses import dataclass, fields
from itertools import chain
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow.compute as pc

from nsyspipe.analysis.links import NAMED_LINKS, named_link
from nsyspipe.errors import OptionError
from nsyspipe.replay.gradients import bucket_ends
from nsyspipe.replay.program import NEVER, RankTimeline, Windows

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from nsyspipe.model.table import Float64
    from nsyspipe.replay.scenarios import Replay
    from nsyspipe.run.run import Run

# No link between GPUs is slower.
_LEAST_BYTES_PER_S = 1e6
_GB = 1e9
_UNITS = {"": 1.0, "k": 1e3, "m": 1e6, "g": 1e9, "t": 1e12}
_NUMBER = r"\s*([0-9]*\.?[0-9]+(?:[eE][0-9]+)?)\s*([kKmMgGtT]?)"
_FORM = re.compile(_NUMBER + r"B/?[sS]\s*")
# Networks are told in bits: 200Gb/s, 200Gbit/s, 200Gbps.
_BITS = re.compile(_NUMBER + r"(?:b/?[sS]|bps|[bB]its?/[sS])\s*")

LINKS = {link.name: link for link in NAMED_LINKS}
DTYPES = ("bf16", "fp16")
LARGEST_IDENTITY_ERROR = 0.01
# From this share of the step on, a GPU that stands idle because its work was not launched yet decides the step.
LARGEST_STARVED_SHARE = 0.02
_LARGEST_UNLAUNCHED = 0.01
_SHARDED = {"all_gather", "reduce_scatter"}
_SAME = 0.03
# Of the gradients' bytes: less is sent under a hook that compresses them.
_WHOLE = 0.75
# Where the switch adds up (NVLink SHARP, of more than two ranks), a bus bandwidth is a little above what the links give.
_IN_SWITCH, _PAIR = 1.25, 2
_MOST_BUCKETS = 128
# Collectives of all steps together: a tenth of a second for each thousand.
_MOST_REPLAYED = 2_500
# Kernels may be slower beside communication, but hardly so much.
_MOST_SLOWER = 1.5


@dataclass(frozen=True)
class Knobs:
    """A combination of changes, as `answer.whatif` describes them; what is None or false stays as it is."""

    bandwidth_bytes_per_s: float | None = None
    link: str | None = None
    gradient_dtype: str | None = None
    bucket_mb: float | None = None
    no_wait: bool = False
    no_grad_copy: bool = False
    perfect_overlap: bool = False

    def __post_init__(self) -> None:
        if self.link is not None and self.bandwidth_bytes_per_s is not None:
            raise OptionError("--link and --bandwidth", "say the same thing twice", fix="give one")
        if self.link is not None and self.link not in LINKS:
            # None of them is offered: a link of nearly the same name is another link.
            known = ", ".join("/".join((one.name, *one.gpus)) for one in LINKS.values())
            fix = "give the bus bandwidth that collectives reach over it: --bandwidth 300GB/s"
            raise OptionError(f"--link {self.link!r}", "is not known", found=known, fix=fix)
        if self.gradient_dtype not in (None, *DTYPES):
            raise OptionError(f"--gradient-dtype {self.gradient_dtype!r}", "is not known", found=", ".join(DTYPES))
        _check_positive("--bandwidth", self.bandwidth_bytes_per_s)
        _check_positive("--bucket-mb", self.bucket_mb)

    def __bool__(self) -> bool:
        return bool(self.given)

    @property
    def given(self) -> dict[str, float | str | bool]:
        """What is changed, by name."""
        values = {one.name: getattr(self, one.name) for one in fields(self)}
        return {name: value for name, value in values.items() if value not in (None, False)}

    @property
    def target_bytes_per_s(self) -> float | None:
        """The bandwidth asked for; None keeps the captured one."""
        return self.bandwidth_bytes_per_s if self.link is None else LINKS[self.link].bus_bytes_per_s

    @property
    def label(self) -> str:
        """The changes in the words of the options that make them."""
        return ", ".join(_KNOBS[name][0](value) for name, value in self.given.items())


def _check_positive(option: str, value: float | None) -> None:
    if value is not None and not 0 < value < float("inf"):
        raise OptionError(f"{option} {value:g}", "is not a positive number")


def parse_bandwidth(text: str) -> float:
    """Return bytes per second of ``300GB/s``: k, M, G, T are powers of 1000, B is bytes; all else is an `OptionError`."""
    if bits := _BITS.fullmatch(text):
        value, unit = float(bits[1]), bits[2].upper().replace("K", "k")
        fix = f"--bandwidth {value / 8:g}{unit}B/s, or {value:g}{unit}B/s if it was bytes"
        raise OptionError(f"--bandwidth {text!r}", "bits? it is asked for in bytes", fix=fix)
    found = _FORM.fullmatch(text)
    value = float(found[1]) * _UNITS[found[2].lower()] if found else 0.0
    if not 0 < value < float("inf"):
        raise OptionError(f"--bandwidth {text!r}", "is no bandwidth", fix="--bandwidth 300GB/s")
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
    if isinstance(bandwidth, str):
        bandwidth = parse_bandwidth(bandwidth)
    elif bandwidth is not None and 0 < bandwidth < _LEAST_BYTES_PER_S:  # meant in another unit
        what, fix = f"bandwidth={bandwidth:g}", f'bandwidth="{bandwidth:g}GB/s"'
        raise OptionError(what, "is in bytes per second", fix=fix)
    named = None if link is None else named_link(link)
    return Knobs(bandwidth, link if named is None else named.name, **others)


# --- where the replay does not hold -----------------------------------------------------------------


def starved_shares(timelines: Sequence[RankTimeline], windows: Windows) -> Float64:
    """Return the share of each rank's median step that its GPU was idle before an operation was launched."""
    shares = []
    for at, rank in enumerate(timelines):
        comm, edges = rank.collectives, windows.edges[:, at]
        # A gap belongs to the window that it lies in: the last ends with what begins the window after it.
        start = np.concatenate((rank.start, comm.start, edges[-1:]))
        order = np.argsort(start, kind="stable")
        start = start[order]
        end = np.concatenate((rank.end, comm.end, edges[-1:]))[order]
        launch = np.concatenate((rank.launch, comm.launch, [rank.next_launch]))[order]
        free = np.maximum.accumulate(end)[:-1]
        idle = np.clip(np.minimum(start[1:], launch[1:]) - free, 0, None)
        step = np.clip(np.searchsorted(edges, free, side="right") - 1, 0, windows.steps.size - 1)
        per_step = np.bincount(step, weights=idle, minlength=windows.steps.size) / np.diff(edges)
        shares.append(float(np.median(per_step[windows.counts])))
    return np.array(shares)


def why_not(run: Run) -> str | None:
    """Return why a run cannot be replayed at all, by its figures; None if nothing speaks against it."""
    if run.is_capture:
        return "the run has no steps, it is a capture as a whole: name the steps with --step REGEX"
    n_ranks, world_size = run.header.n_ranks, run.header.world_size
    has_comm = bool(run.collectives().num_rows)
    if n_ranks <= 1 and (world_size == 1 or (world_size is None and not has_comm)):
        return "the run has 1 rank: nothing is communicated that could be changed"
    if not has_comm:
        hidden = run.problems.filter(pc.equal(run.problems["code"], "comm-in-graphs")).to_pylist()
        return f"{hidden[0]['message']}; {hidden[0]['fix']}" if hidden else "no communication was recorded in any step"
    steps = run.steps()
    complete = np.unique(steps.filter(steps["is_complete"])["step"].to_numpy())
    counted = np.unique(steps.filter(steps["in_summary"])["step"].to_numpy())
    if not np.isin(counted, complete).all() or not counted.size:
        return "no step is complete on every rank"
    if complete.size == 1 and not run.skipped_steps:
        late = "ranks begin the first one at different times (capture at least 4 steps)"
        return f"no complete step after the first: {late}"
    return None


def why_not_replayable(run: Run, timelines: Sequence[RankTimeline], windows: Windows) -> str | None:
    """Return why the operations of a run cannot be replayed; None if nothing speaks against it."""
    first = timelines[0].collectives
    if any(one.n_outside for one in timelines):
        return "communication outside of the steps is under way in them, so collectives cannot be told apart"
    table = run.collectives()
    inside = table.filter(pc.is_in(table["step"], value_set=pc.cast(windows.steps, "int64")))
    if not inside.num_rows or not all(one.collectives.start.size for one in timelines):
        return "no communication was recorded in the steps that count"
    others = [one.collectives for one in timelines]
    is_same = all(np.array_equal(one.step, first.step) and np.array_equal(one.seq, first.seq) for one in others)
    if not is_same or (len(timelines) > 1 and not pc.all(inside["is_matched"]).as_py()):
        return "collectives could not be matched across ranks"
    # A hook computes between a collective and what waits for it, for more than a replay may be off by. What a cast of bf16
    # compression does on one of many streams in turn, once in a while on NCCL's, is less.
    n_steps, most = windows.steps.size, max(timelines, key=lambda one: one.hooked_ns)
    share = most.hooked_ns / (windows.edges[-1] - windows.edges[0]).mean()
    if share > LARGEST_IDENTITY_ERROR:
        return (
            "compute kernels run on the stream of the communication, as with PowerSGD or where one stream has both "
            f"({most.n_hooked / n_steps:,.3g} per step, {100 * share:.1f} % of it): the model does not cover that"
        )
    return _several_streams_or_unlaunched(inside["comm_id"].unique().to_pylist(), timelines)


def _several_streams_or_unlaunched(communicators: Sequence[str], timelines: Sequence[RankTimeline]) -> str | None:
    first = timelines[0].collectives
    kinds = set(first.kind.tolist())
    # Without NCCL's ids a communicator is named collective/order.
    is_several = any(not one.endswith("/0") for one in communicators) and len(communicators) > 1
    is_odd = np.unique(first.stream).size > 1 and not kinds <= _SHARDED
    if is_several or is_odd or any(np.unique(first.stream[first.kind == kind]).size > 1 for kind in kinds):
        return "several communicators are in use, for which the model is not validated"
    if sum(one.n_without_launch for one in timelines) > _LARGEST_UNLAUNCHED * sum(one.start.size for one in timelines):
        return "launches were not recorded (capture with --trace=cuda,nvtx), so what waits for what is not known"
    # Few of all operations, but without its launch nothing says what one waits for.
    launches = np.concatenate([one.collectives.launch for one in timelines])
    if n_not := int(np.count_nonzero(launches == NEVER)):
        return f"launches of collectives were not recorded ({n_not} of {launches.size}), so what they wait for is not known"
    return None


def why_not_knobs(replay: Replay, knobs: Knobs) -> str | None:
    """Return why a combination of knobs cannot be answered; None if it can."""
    of_knobs = (refused(replay, knobs) for name, (_, refused) in _KNOBS.items() if refused and name in knobs.given)
    return next(chain(_run(replay, knobs), *of_knobs), None)


def beyond_nominal(replay: Replay) -> str | None:
    """Return why the captured bandwidth cannot be: more than the GPUs' links give; None if it can, or nothing says them."""
    most, own = replay.nominal_bytes_per_s, replay.bus_bytes_per_s
    in_switch = _IN_SWITCH if replay.captured.program.n_ranks > _PAIR else 1.0
    if most is None or own is None or own <= most * in_switch:
        return None
    link = f"the fastest link of these GPUs gives {most / _GB:,.0f} GB/s"
    return f"a captured bandwidth of {own / _GB:,.0f} GB/s cannot be where {link}: the bytes of the gradients are not right"


def _run(replay: Replay, knobs: Knobs) -> Iterator[str]:
    if reason := beyond_nominal(replay):
        yield reason
    n_ranks, n_all = replay.captured.program.n_ranks, replay.world_size
    # How long a rank waits for those that are not there is not known.
    if n_ranks < max(n_all, 2) and knobs.given.keys() - {"bucket_mb", "no_grad_copy"}:
        there, its, these = "1 rank alone is", "its", "this rank"
        if n_ranks > 1:
            there, its, these = f"{n_ranks} of {n_all} ranks are", "their", "these ranks"
        yield (
            f"{there} there: how much of {its} communication is waiting for the others is not known; "
            f"pass the reports of all ranks (buckets and --no-grad-copy can be answered for {these})"
        )
    shares = replay.starved_shares
    n_starved, share = np.count_nonzero(shares > LARGEST_STARVED_SHARE), f"{100 * shares.max():.1f} %"
    if n_starved > 1 or n_starved == n_ranks:
        idle = f"GPUs stand idle {share} of the step because work was not launched yet"
        yield f"launch- or input-bound: {idle}, and how that changes is not known"
    if n_starved and not knobs.no_wait:
        idle = f"one rank alone stands idle {share} of its step for lack of launches"
        yield f"{idle} (place {np.argmax(shares)} in order): a straggler; ask for the balanced run, --no-wait"


def _faster(replay: Replay, knobs: Knobs) -> Iterator[str]:
    target, own = knobs.target_bytes_per_s or 0.0, replay.bus_bytes_per_s
    most, fastest = max((link.nominal_bytes_per_s or 0.0, link.name) for link in NAMED_LINKS)
    if target > most * _IN_SWITCH:
        known = f"the fastest that is known, {fastest}, gives {most / _GB:,.0f} GB/s"
        left = "perfect overlap says what is left where communication costs nothing"
        yield f"no link gives {target / _GB:,.0f} GB/s: {known}; {left}"
    if own is None:
        fix = "" if replay.is_sharded else " (--gradient-bytes N says them)"
        yield f"message bytes were not recorded, so the captured bandwidth is not known{fix}"
    elif replay.is_sharded and target < own * (1 - _SAME):
        hidden = "what waits for a collective that is hidden now is not known"
        yield f"sharded, as with FSDP: {hidden}, so only faster links can be answered"


def _sharded(replay: Replay) -> Iterator[str]:
    if replay.is_sharded:
        yield "no all-reduces of gradients alone (sharded, as with FSDP): there are no buckets to change"


def _buckets(replay: Replay, knobs: Knobs) -> Iterator[str]:
    yield from _sharded(replay)
    if (n_bursts := replay.n_bursts) > 1:
        unknown = "which of them are the same is not known (an accumulation sends them once under no_sync())"
        yield f"gradients are all-reduced {n_bursts} times per step, with other work between, and {unknown}"
    if replay.gradient_bytes is None:
        yield "the bytes of the gradients were not recorded (--gradient-bytes N says them)"
    if replay.sent_share is not None and replay.sent_share < _WHOLE:
        hook = f"a hook compresses the gradients (NCCL is given {replay.sent_share:.2f} of their bytes)"
        yield f"{hook}, and bucket_cap_mb counts them as they are before it: ask a capture without the hook"
    ends = [bucket_ends(one.n_bytes, knobs.bucket_mb or 0.0) for one in replay.gradients if one is not None]
    n = max((one.size for one in ends), default=0)
    n_steps, program = len(replay.captured.steps), replay.captured.program
    if n > _MOST_BUCKETS:
        n_own = np.bincount(program.step[program.is_gradient]).max(initial=0)
        most = f"up to {_MOST_BUCKETS} are answered; the run has {n_own}"
        yield f"{n:,} buckets per step: what so many small ones take is not known ({most})"
    if n * n_steps > _MOST_REPLAYED:
        long = f"{n:,} buckets in each of {n_steps:,} steps take long to replay (up to {_MOST_REPLAYED:,} in all are)"
        yield f"{long}: capture fewer steps, or leave some out with --skip-first N"
    if replay.lag_share > 1:
        late = f"collectives begin {replay.lag_share:.1f} times as long after all that they wait for as they take"
        yield f"{late}, so when smaller or larger ones would begin is not known"


def _copies(replay: Replay, _: Knobs) -> Iterator[str]:
    yield from _sharded(replay)
    if replay.n_copies <= 1:
        yield "no copies between buckets and gradients were found: gradient_as_bucket_view=True is on already, or a hook is in use"


def _halved(replay: Replay, _: Knobs) -> Iterator[str]:
    yield from _sharded(replay)
    if replay.datatypes != {"f32"}:
        shown = ", ".join(sorted(one or "of unknown type" for one in replay.datatypes or {None}))
        yield f"gradients are sent as {shown}: only f32 ones can be halved"


# Each knob in the words of the option that turns it, and when it is refused, whatever the run is like.
_KNOBS: dict[str, tuple[Callable[[Any], str], Callable[[Replay, Knobs], Iterator[str]] | None]] = {
    "bandwidth_bytes_per_s": (lambda rate: f"bandwidth {rate / _GB:g} GB/s", _faster),
    "link": ("link {}".format, _faster),
    "bucket_mb": ("bucket_cap_mb={:g}".format, _buckets),
    "no_grad_copy": (lambda _: "gradient_as_bucket_view=True", _copies),
    "gradient_dtype": ("gradients as {}".format, _halved),
    "no_wait": (lambda _: "no waiting for late ranks", None),
    "perfect_overlap": (lambda _: "perfect overlap", None),
}


def contradiction(replay: Replay) -> str | None:
    """Return why a replay contradicts itself: the step without communication is shorter than what its device computes."""
    limit = replay.limit_ns
    if limit is None or limit >= (least := replay.least_compute_ns(_MOST_SLOWER)):
        return None
    free, busy = f"{limit / 1e6:.2f} ms per step if transfers took no time", f"{least / 1e6:.2f} ms at least"
    return f"the replay contradicts itself: {free}, where the device computes {busy}"

"""The assumptions of an estimate, in words."""

from collections.abc import Iterator

from nsyspipe.analysis.kernels import MOST_USUAL
from nsyspipe.analysis.links import GB
from nsyspipe.replay.knobs import LINKS, Knobs
from nsyspipe.replay.scenarios import Replay


def assumptions(replay: Replay, knobs: Knobs) -> Iterator[str]:
    """Yield the assumptions of an estimate, one sentence each."""
    yield from _of_ranks(replay)
    yield from _of_given_bytes(replay)
    yield from _of_link(replay, knobs)
    yield from _of_gradients(replay, knobs)
    yield from _of_changed_work(replay, knobs)
    yield from _of_concurrent_work(replay, knobs)


def _of_ranks(replay: Replay) -> Iterator[str]:
    """Yield what is assumed about ranks that are not simulated."""
    n_ranks = replay.captured.program.n_ranks
    if n_ranks <= 1:
        yield "only this rank is simulated, and its wait time for other ranks stays the same"
        return
    n_missing = replay.world_size - n_ranks
    if n_missing:
        missing = f"{n_missing} rank is" if n_missing == 1 else f"{n_missing} ranks are"
        yield (
            f"{missing} missing: a step is as long as on the {n_ranks} captured ranks of "
            f"{replay.world_size}, and these ranks do not wait for missing ranks"
        )


def _of_given_bytes(replay: Replay) -> Iterator[str]:
    """Yield the size of gradients, if the user gave it."""
    n_bytes = replay.given_bytes
    if n_bytes is None:
        return
    element_bytes = replay.element_bytes
    number = ""
    if element_bytes:
        # `element_bytes` is the size of an element as it was sent. If the user gave the bytes of
        # f32 gradients, and a hook sent them as bf16, the number is twice that of the gradients.
        n_gradients = n_bytes / element_bytes
        number = f" ({n_gradients:,.0f} gradients of {element_bytes} bytes, as sent)"
    yield f"gradients have {n_bytes:,.0f} bytes per step, as given by --gradient-bytes{number}"


def _of_link(replay: Replay, knobs: Knobs) -> Iterator[str]:
    """Yield the assumptions of another bandwidth: a factor, a given one, or that of a link."""
    if knobs.bandwidth_factor is not None:
        role = "all" if knobs.role is None else knobs.role
        yield (
            f"{role} communicators reach {knobs.bandwidth_factor:g} times the captured bandwidth, "
            "within 10%"
        )
        if not knobs.no_wait:
            yield "ranks wait for late ranks as before"
    bandwidths = _captured_bandwidths(replay, knobs)
    if knobs.target_bytes_per_s is None or not bandwidths:
        return
    captured = _captured_text(replay, bandwidths)
    if knobs.link is None:
        yield _given_bandwidth_text(replay, knobs.target_bytes_per_s, captured)
    else:
        # Without a target, the bandwidth stays the captured one.
        is_same_link = all(replay.target(knobs, role) is None for role in bandwidths)
        yield from _named_link_texts(knobs.link, captured, is_same_link=is_same_link)


def _captured_bandwidths(replay: Replay, knobs: Knobs) -> dict[str, float]:
    """Return the known bus bandwidths of the kinds of parallelism whose bandwidth changes."""
    bandwidths = {}
    for role in replay.roles:
        bandwidth = replay.bus_bandwidth_of(role)
        if knobs.role in (None, role) and bandwidth is not None:
            bandwidths[role] = bandwidth
    return bandwidths


def _captured_text(replay: Replay, bandwidths: dict[str, float]) -> str:
    has_several_roles = len(replay.roles) > 1
    texts = []
    for role, bandwidth in bandwidths.items():
        suffix = f" ({role})" if has_several_roles else ""
        texts.append(f"{bandwidth / GB:.4g} GB/s{suffix}")
    return f"captured {', '.join(texts)}"


def _given_bandwidth_text(replay: Replay, target_bytes_per_s: float, captured: str) -> str:
    """Say which bandwidth the user gave, and that it exceeds that of the GPUs, if it does."""
    peak = replay.nominal_bytes_per_s
    excess = ""
    if peak is not None and target_bytes_per_s > peak:
        excess = f", more than the {peak / GB:,.0f} GB/s of the fastest interconnect of these GPUs"
    return (
        f"the bus bandwidth is {target_bytes_per_s / GB:.4g} GB/s as given{excess}, within 10% "
        f"({captured})"
    )


def _named_link_texts(name: str, captured: str, *, is_same_link: bool) -> Iterator[str]:
    """Yield the bandwidth of a link and its source, or that the link is as fast as the captured."""
    link = LINKS[name]
    if is_same_link:
        yield f"{link.name} is as fast as the {captured}"
        return
    how = "measured" if link.is_measured else "not measured"
    yield (
        f"{link.name} reaches {link.bus_bytes_per_s / GB:.4g} GB/s bus bandwidth, within "
        f"{100 * link.within:.0f}% ({captured})"
    )
    yield f"the bandwidth of {link.name} is {how} ({link.source})"


def _of_gradients(replay: Replay, knobs: Knobs) -> Iterator[str]:
    """Yield the assumptions of another bucket size and of another datatype."""
    if knobs.bucket_mb is not None:
        if replay.is_exact:
            how = "from the copies and kernels of each gradient"
        else:
            how = "estimated from the captured buckets"
        yield f"sizes and ready times of the gradients are {how}"
        yield "buckets of other sizes reach the same bandwidth"
    if knobs.gradient_dtype is not None:
        yield f"gradients as {knobs.gradient_dtype} have half the bytes"
        yield (
            f"gradients as {knobs.gradient_dtype} may change convergence, which nsyspipe does not "
            "check"
        )
        yield "launching casts costs no CPU time" if replay.n_copies else "casting takes no time"
    if knobs.bucket_mb is not None and knobs.gradient_dtype is not None:
        yield (
            "buckets and datatype change independently (the only capture of both was 2.4% "
            "slower than the predicted range)"
        )


def _of_changed_work(replay: Replay, knobs: Knobs) -> Iterator[str]:
    """Yield an assumption for each change of the work itself, or of what communication hides."""
    copies = ", and the copies into and out of buckets disappear" if replay.n_copies else ""
    texts = {
        "no_wait": "every rank is as fast as the median rank (with two ranks: as the faster rank)",
        "no_sync": f"adding up gradients on each rank takes no extra time{copies}",
        "prefetch": (
            "each all-gather can start when its predecessor can, and the parameters of one more "
            "layer fit in memory"
        ),
        "no_grad_copy": "all copies from buckets to gradients disappear",
        "perfect_overlap": "all communication overlaps with compute and slows compute down",
    }
    for name, text in texts.items():
        if name in knobs.given:
            yield text


def _of_concurrent_work(replay: Replay, knobs: Knobs) -> Iterator[str]:
    """Yield how much communication slows work down, and how that is known."""
    if replay.is_sharded:
        yield "work during communication is as fast as captured"
        return
    comm = replay.captured.timelines[0].collectives
    is_all_on_compute_stream = comm.is_inline.all()
    if is_all_on_compute_stream:
        yield (
            "communication and compute run on the same stream, so communication does not slow down "
            "compute"
        )
        return
    slowdowns = replay.slowdowns(replay.target(knobs))
    shares = [pair.after.total(replay.operations_per_ns) for pair in slowdowns.pairs]
    percents = [100 * share for share in shares]
    # The first pair is the most likely one.
    likely_percent = percents[0]
    is_delay_measured = replay.contention is not None and replay.contention.delay_ns is not None
    end_of_sentence = ""
    if slowdowns.is_measured:
        how = "measured here"
        kernels_percent = 100 * max(replay.compared.slowdown_ratio or 0.0, 0.0)
        end_of_sentence = _why_longer_text(likely_percent, kernels_percent)
    elif is_delay_measured:
        how = "assumed, except for later kernel starts"
    else:
        how = "assumed"
    yield (
        f"work during communication takes {likely_percent:.0f}% longer ({how}, range "
        f"{min(percents):.0f} to {max(percents):.0f}%){end_of_sentence}"
    )
    if likely_percent > 100 * MOST_USUAL:
        yield f"few captures show that work takes more than {100 * MOST_USUAL:.0f}% longer"


def has_later_starts(work_percent: float, kernels_percent: float) -> bool:
    """Tell whether communication slows work down more than its kernels, by the printed digits.

    Then kernels also start later. Otherwise kernels may be slowed down more than all of the work,
    because the gaps between kernels take no longer.
    """
    return round(work_percent) > round(kernels_percent, 1)


def _why_longer_text(work_percent: float, kernels_percent: float) -> str:
    """Return why work during communication takes longer, as the end of a sentence.

    `work_percent` is how much longer all work takes, and `kernels_percent` how much longer kernels
    take. The text is empty if kernels take no longer, because then it is not known why.
    """
    if has_later_starts(work_percent, kernels_percent):
        return (
            f". Kernels take {kernels_percent:.1f}% longer (comm-slows-compute), and the rest is "
            "later kernel starts"
        )
    if round(kernels_percent, 1):
        return ", only because of slower kernels (comm-slows-compute)"
    return ""

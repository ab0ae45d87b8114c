"""How far an answer may be off: the settings that stand for what the capture does not say."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from nsyspipe.metrics.slowdown import LEAST_COMPARED, MEASURED_WITHIN
from nsyspipe.replay.program import Slowing

if TYPE_CHECKING:
    from nsyspipe.replay.contention import Contention

__all__ = ["OVERHEADS_NS", "Slowdowns", "slowdowns"]

# Least, likeliest, most: what a collective takes besides its bytes.
OVERHEADS_NS = (10_000.0, 30_000.0, 80_000.0)

# A slowdown that is measured in the capture needs this share of the work beside communication; from a narrow link to a
# wide one it holds within as much again as `MEASURED_WITHIN`.
_LEAST_COVERED = 0.02
# No kernels were ever seen to take so much longer: such a figure is of something else.
_MOST_POSSIBLE = 1.5
# Without one: what was seen on H200 over host memory (about 30 GB/s) and over NVLink (about 300), of pairs of captures
# where the same operations ran with and without communication. Over host memory operations begin later, since
# launches take the way that the transfers take; over NVLink NCCL runs many more thread blocks, which take the place of the
# operations' own. Between them by the logarithm.
_NARROW_LINK, _WIDE_LINK = 30e9, 300e9
_NARROW, _WIDE = Slowing(0.03, 6_500.0), Slowing(0.5, 250.0)
# Of the delay over host memory, how much makes the operation itself longer rather than the gap before it.
_NARROW_IN_OPERATION_NS = 3_800.0
_ASSUMED_WITHIN = 0.6


@dataclass(frozen=True)
class Slowdowns:
    """The slowdown of work beside communication, in the capture and in the replay.

    Attributes
    ----------
    pairs
        (before, after): the likeliest, then those that make the step shortest and longest.
    is_measured
        Whether it was measured in the capture.
    """

    pairs: tuple[tuple[Slowing, Slowing], ...]
    is_measured: bool

    @property
    def likely(self) -> tuple[Slowing, Slowing]:
        """The likeliest pair."""
        return self.pairs[0]


def slowdowns(
    measured: Contention | None,
    captured_bytes_per_s: float | None,
    target_bytes_per_s: float | None,
) -> Slowdowns:
    """Return the slowdowns to run with.

    Parameters
    ----------
    measured
        In the capture.
    captured_bytes_per_s, target_bytes_per_s
        Bus bandwidth in the capture, None if not known; and in the replay, None if it stays.

    Notes
    -----
    Kernels that could not be compared count with the assumed slowdown, those that could with their own. On the way from
    a narrow link to a wide one the measured slowdown gives way to the assumed one of the target.
    """
    before, is_measured = _of_capture(measured, captured_bytes_per_s)
    within = MEASURED_WITHIN if is_measured else _ASSUMED_WITHIN
    is_delay_measured = measured is not None and measured.delay_ns is not None
    of_delay = MEASURED_WITHIN if is_delay_measured else within
    least, most = (
        Slowing((1 + sign * within) * before.ratio, (1 + sign * of_delay) * before.delay_ns)
        for sign in (-1, 1)
    )
    if target_bytes_per_s is None:
        return Slowdowns(((before, before), (least, least), (most, most)), is_measured)
    moved = abs(_width(target_bytes_per_s) - _width(captured_bytes_per_s or target_bytes_per_s))
    after = before.blended(_assumed(target_bytes_per_s), moved if is_measured else 1.0)
    within += moved * (_ASSUMED_WITHIN - within)
    return Slowdowns(
        ((before, after), (most, after.scaled(1 - within)), (least, after.scaled(1 + within))),
        is_measured,
    )


def _of_capture(measured: Contention | None, bytes_per_s: float | None) -> tuple[Slowing, bool]:
    """Return the slowdown of work beside communication in the capture, and whether it was measured."""
    assumed = _assumed(bytes_per_s)
    if measured is None or measured.covered_share < _LEAST_COVERED:
        return assumed, False
    found, compared = assumed, measured.compared
    is_measured = (
        compared.slowdown is not None
        and compared.share >= LEAST_COMPARED
        and compared.slowdown <= _MOST_POSSIBLE
    )
    in_operation = _NARROW_IN_OPERATION_NS * assumed.delay_ns / _NARROW.delay_ns
    # One operation beside communication, without the gap before it and what it is slower.
    each = measured.covered_ns / max(measured.n_covered, 1.0) - measured.free_gap_ns
    each = (each - assumed.delay_ns) / (1 + assumed.ratio)
    of_others = assumed.ratio + in_operation / max(each, in_operation, 1.0)
    ratio = of_others
    if is_measured and compared.slowdown is not None:
        ratio += compared.share * (max(compared.slowdown, 0.0) - of_others)
    if measured.delay_ns is not None:
        # The gap between two operations is no work that could be slower.
        found = Slowing(ratio, measured.delay_ns - ratio * measured.free_gap_ns)
    elif is_measured:
        found = Slowing(ratio, assumed.delay_ns - in_operation)
    return found, is_measured


def _assumed(bytes_per_s: float | None) -> Slowing:
    """Return the likeliest slowdown over a link; of one that is not known that in the middle."""
    return _NARROW.blended(_WIDE, 0.5 if bytes_per_s is None else _width(bytes_per_s))


def _width(bytes_per_s: float) -> float:
    """Return where a link is between a narrow and a wide one, by the logarithm: 0 to 1, beyond them too."""
    width = math.log(bytes_per_s / _NARROW_LINK) / math.log(_WIDE_LINK / _NARROW_LINK)
    return min(max(width, 0.0), 1.0)

"""How far an answer may be off: the settings that stand for what the capture does not say."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from nsyspipe.replay.contention import Contention

__all__ = ["OVERHEADS_NS", "Slowdowns", "slowdowns"]

# Least, likeliest, most: what a collective takes besides its bytes.
OVERHEADS_NS = (10_000.0, 30_000.0, 80_000.0)

# A slowdown measured in the capture holds within this, and within as much again from a narrow link to a wide one; it
# needs this share of the work beside communication.
_MEASURED_WITHIN = 0.3
_LEAST_COVERED = 0.02
# Without one: what was seen on H200 over host memory (about 30 GB/s) and over NVLink (about 300), where NCCL runs
# many more thread blocks; between them by the logarithm, so that a faster link never costs more. Short operations
# lose more: each loses time of its own to the launch after it.
_NARROW_LINK, _WIDE_LINK = 30e9, 300e9
_LIKELY = (0.1, 0.35)
_MOST = (0.45, 1.0)
_PER_OPERATION_NS = 3_500.0


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

    pairs: tuple[tuple[float, float], ...]
    is_measured: bool

    @property
    def likely(self) -> tuple[float, float]:
        """The likeliest pair."""
        return self.pairs[0]


def slowdowns(
    measured: Contention | None,
    pitch_ns: float,
    captured_bytes_per_s: float | None,
    target_bytes_per_s: float | None,
) -> Slowdowns:
    """Return the slowdowns to run with.

    Parameters
    ----------
    measured
        In the capture.
    pitch_ns
        Mean time from one operation to the next.
    captured_bytes_per_s, target_bytes_per_s
        Bus bandwidth in the capture, None if not known; and in the replay, None if it stays.

    Notes
    -----
    A measured slowdown c changes with the link as the assumed one does: c x assumed(target) / assumed(captured).
    """
    least, likely, most = _assumed(pitch_ns, captured_bytes_per_s)
    is_measured = measured is not None and measured.covered_share >= _LEAST_COVERED
    if measured is not None and is_measured:
        least, likely, most = _around(measured.slowdown, _MEASURED_WITHIN)
    if target_bytes_per_s is None:
        return Slowdowns(((likely, likely), (least, least), (most, most)), is_measured)
    new = _assumed(pitch_ns, target_bytes_per_s)
    if is_measured and captured_bytes_per_s is not None:
        ratio = new[1] / _assumed(pitch_ns, captured_bytes_per_s)[1]
        # Outside of the two links that were looked at nothing is known to change.
        moved = abs(_width(target_bytes_per_s) - _width(captured_bytes_per_s))
        new = _around(ratio * likely, _MEASURED_WITHIN * (1 + moved))
    return Slowdowns(((likely, new[1]), (most, new[0]), (least, new[2])), is_measured)


def _around(value: float, within: float) -> tuple[float, float, float]:
    return (1 - within) * value, value, (1 + within) * value


def _assumed(pitch_ns: float, bytes_per_s: float | None) -> tuple[float, float, float]:
    """Return least, likeliest and most slowdown over a link; one that is not known may be any."""
    each = _PER_OPERATION_NS / max(pitch_ns, _PER_OPERATION_NS)
    if bytes_per_s is None:
        return 0.0, _LIKELY[0] + each, max(_MOST[1], _LIKELY[0] + each)
    width = _width(bytes_per_s)
    likely, most = (low + width * (high - low) for low, high in (_LIKELY, _MOST))
    return 0.0, likely + each, max(most, likely + each)


def _width(bytes_per_s: float) -> float:
    """Return where a link is between a narrow and a wide one, by the logarithm: 0 to 1, beyond them too."""
    width = math.log(bytes_per_s / _NARROW_LINK) / math.log(_WIDE_LINK / _NARROW_LINK)
    return min(max(width, 0.0), 1.0)

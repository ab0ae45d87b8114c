"""Samples of Python as nsys writes them, planted in built reports."""

import struct
from typing import NamedTuple

from tests.build.trace import NVTX, TraceBuilder

DOMAIN = 9
LOCK_DOMAIN = 10
# States of a thread: the second while it holds Python's lock (GIL) for longer than a period.
SEEN, HELD = 1, 3
HEADER = struct.pack("<QIIQQ", 1, 3, 1, 0, 32)
SITE = "/opt/venv/lib/python3.12/site-packages"
BOOTSTRAP = ("_bootstrap", "/usr/lib/python3.12/threading.py", 1030)


class Frame(NamedTuple):
    function: str
    file: str
    line: int


def payload(frames, *, n_frames=None, state=SEEN) -> bytes:
    """Return a payload with frames of (function ID, file ID, line); `n_frames` is what it claims."""
    claimed = len(frames) if n_frames is None else n_frames
    rows = [struct.pack("<QQII", function, file, line, 0) for function, file, line in frames]
    return HEADER + struct.pack("<iiii", state, 1, claimed, 0) + b"".join(rows)


def with_domain(builder: TraceBuilder) -> TraceBuilder:
    return builder.domain("Python Backtrace", DOMAIN)


def lock_range(builder: TraceBuilder, thread, start, end, *, waits) -> TraceBuilder:
    """Add a time in which a thread waits for Python's lock, or holds it."""
    text = "Waiting for GIL" if waits else "Holding GIL"
    return builder.range(start, end, text, thread=thread, domain=LOCK_DOMAIN)


def sample(builder: TraceBuilder, at, *frames, category=1, blob=None, state=SEEN) -> TraceBuilder:
    """Add a sample with frames, the innermost first, or with a payload as it is."""
    ids = [
        (builder.string(frame[0]), builder.string(frame[1]), frame[2])
        for frame in map(tuple, frames)
    ]
    return builder.add(
        NVTX,
        start=at,
        end=None,
        eventType=34,
        globalTid=builder.global_tid(),
        domainId=DOMAIN,
        category=category,
        binaryData=payload(ids, state=state) if blob is None else blob,
    )

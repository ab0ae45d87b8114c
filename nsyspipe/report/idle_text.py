"""Why the devices idle, for the terminal: one line."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow.compute as pc

from nsyspipe.schema import IDLE_CAUSES
from nsyspipe.units import percent_text
from nsyspipe.untrusted import printable

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["idle_text"]

_LEAST_SHARE, _LEAST_PART = 0.02, 0.001
# Names of calls come from the report; all of CUDA's are shorter.
_LONGEST_NAME = 35


def idle_text(steps: pa.Table, calls: pa.Table) -> str | None:
    """Return what share of step time is idle, and why, the largest cause first.

    None where less than 2 % is idle, or where it is not known. Causes under 0.1 % are left out.

    Parameters
    ----------
    steps
        `schema.STEPS` of the summary steps.
    calls
        `schema.IDLE_CALLS`; the largest one is named.
    """
    wall, idle = _total(steps, "wall_ns"), _total(steps, "idle_ns")
    if not wall or idle is None or idle / wall < _LEAST_SHARE:
        return None
    parts = {_word(name): _total(steps, name) for name in IDLE_CAUSES}
    known = {word: part for word, part in parts.items() if part is not None}
    if len(known) < len(parts):  # the other causes are still told apart
        known[" or ".join(word for word in parts if word not in known)] = idle - sum(known.values())
    shown = sorted(known.items(), key=lambda pair: -pair[1])
    texts = [
        f"{word} {percent_text(part / wall)}{_longest_call(calls) if word == 'blocked' else ''}"
        for word, part in shown
        if part / wall >= _LEAST_PART
    ]
    return f"idle {percent_text(idle / wall)}: {', '.join(texts)}"


def _total(steps: pa.Table, column: str) -> int | None:
    total: int | None = pc.sum(steps[column], skip_nulls=False, min_count=1).as_py()
    return total


def _word(column: str) -> str:
    return column.removeprefix("idle_").removesuffix("_ns")


def _longest_call(calls: pa.Table) -> str:
    if not calls.num_rows:
        return ""
    return f" ({printable(calls['call'][0].as_py())[:_LONGEST_NAME]})"

"""What ranks send to each other over whole processes, as a short table."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from nsyspipe.report.blocks import Block, Field, Sentence, of, table_of
from nsyspipe.report.units import bytes_text, count_text, place_of_more
from nsyspipe.run.run import Run

MAX_ROWS = 8
_CAPTION = "Sends and receives by peer, whole process (NCCL Inspector)"
_NOTE = "These are all records of the processes, not only those of steps."
_VERBS = {"send": "sends to", "recv": "receives from"}


def peer_blocks(run: Run) -> Iterator[Block]:
    """Yield the peers with most bytes; nothing if Inspector recorded no send and no receive."""
    rows = run.peers().to_pylist()
    if not rows:
        return
    # Rows of equal bytes stay in the order of ranks.
    rows.sort(key=lambda row: -row["message_bytes"])
    shown = rows[:MAX_ROWS]

    def rank_cell(row: Mapping[str, Any]) -> str:
        return run.rank_names.name(row["rank"])

    def peer_cell(row: Mapping[str, Any]) -> str:
        peer_rank = row["peer_rank"]
        return "unknown" if peer_rank is None else run.rank_names.name(peer_rank)

    fields = [
        Field("rank", rank_cell),
        Field("direction", of("direction", _verb), kind="word"),
        Field("peer", peer_cell),
        Field("calls", of("n_calls", count_text)),
        Field("bytes", _bytes_cell),
    ]
    note = _NOTE
    if any(row["is_lower_bound"] for row in shown):
        note += " The words at least mean that records may be missing."
    n_left_out = len(rows) - len(shown)
    if n_left_out:
        note += f" {place_of_more(n_left_out, 'row', 'the table peers')}"
    yield Sentence(f"{_CAPTION}:")
    yield table_of(_CAPTION, shown, fields, note, is_close=True)


def _verb(direction: str) -> str:
    return _VERBS.get(direction, direction)


def _bytes_cell(row: Mapping[str, Any]) -> str:
    text = bytes_text(row["message_bytes"])
    return f"at least {text}" if row["is_lower_bound"] else text

"""Packets of a Perfetto trace, encoded by the `perfetto` package's protobuf messages."""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING, BinaryIO

import numpy as np

from nsyspipe.export.perfetto_slices import Values

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from types import ModuleType

    from numpy.typing import NDArray
    from perfetto.protos.perfetto.trace.perfetto_trace_pb2 import Trace, TracePacket, TrackEvent

    from nsyspipe.export.perfetto_slices import Slices

    Int64 = NDArray[np.int64]

__all__ = ["Packets", "Pen", "track_name_at_head"]

# The first packet names the run, which takes a line at most.
_LONGEST_HEAD = 1 << 16
_TAG = b"\x0a"  # field 1 of Trace: a packet
_LOW_BITS, _N_LOW_BITS, _MOST_BYTES = 0x7F, 7, 3


class Packets:
    """Makes packets. A file is their concatenation, each wrapped in a `Trace` of its own."""

    @cached_property
    def protos(self) -> ModuleType:
        """The messages; loading them costs 50 ms, and only this output needs them."""
        from perfetto.protos.perfetto.trace import perfetto_trace_pb2

        found: ModuleType = perfetto_trace_pb2
        return found

    def plain(self, **fields: object) -> bytes:
        """Return a packet that belongs to no sequence."""
        packet: bytes = self.protos.Trace(packet=[fields]).SerializeToString()
        return packet

    def first(self, sequence: int, **fields: object) -> bytes:
        """Return the first packet of a sequence, whose events are on the track of the same number unless they say."""
        flags = self.protos.TracePacket
        return self.plain(
            trusted_packet_sequence_id=sequence,
            first_packet_on_sequence=True,
            sequence_flags=flags.SEQ_INCREMENTAL_STATE_CLEARED | flags.SEQ_NEEDS_INCREMENTAL_STATE,
            trace_packet_defaults={"track_event_defaults": {"track_uuid": sequence}},
            **fields,
        )

    def event(self, sequence: int, kind: TrackEvent.Type) -> tuple[Trace, TracePacket]:
        """Return a message of one event, and the event in it: both serve again for each event like it."""
        message = self.protos.Trace()
        packet = message.packet.add(
            trusted_packet_sequence_id=sequence,
            sequence_flags=self.protos.TracePacket.SEQ_NEEDS_INCREMENTAL_STATE,
        )
        packet.track_event.type = kind
        return message, packet

    def pens(
        self, sequence: int, slices: Slices, notes: Sequence[Values]
    ) -> tuple[list[Pen], Int64]:
        """Return a pen for each combination of category and known notes, and which one each slice takes."""
        columns = [*notes] if slices.flows is None else [*notes, slices.flows]
        shape = slices.category.numbers << len(columns)
        for place, values in enumerate(columns):
            shape = shape | (values.is_known.astype(np.int64) << place)
        shapes, pen_of = np.unique(shape, return_inverse=True)
        pens = []
        for one in shapes.tolist():
            message, packet = self.event(sequence, self.protos.TrackEvent.TYPE_SLICE_BEGIN)
            known = [place for place in range(len(columns)) if one >> place & 1]
            packet.track_event.category_iids.append((one >> len(columns)) + 1)
            pens.append(Pen(message, packet, notes, known))
        return pens, pen_of

    def interned(
        self, slices: Slices, notes: dict[str, Values]
    ) -> tuple[dict[str, object], list[Values]]:
        """Return the texts that a sequence refers to, and its notes with texts as references; ids begin with 1."""
        ids: dict[str, int] = {}
        coded = []
        for values in notes.values():
            numbers = values.numbers
            if values.texts is not None:
                own = [ids.setdefault(text, len(ids) + 1) for text in values.texts]
                numbers = np.array(own, np.int64)[numbers]
            coded.append(Values(numbers, values.is_known, values.texts))
        names = {
            "event_names": _numbered(slices.names.texts or ()),
            "event_categories": _numbered(slices.category.texts or ()),
            "debug_annotation_names": _numbered(notes),
            "debug_annotation_string_values": [
                {"iid": number, "str": text.encode()} for text, number in ids.items()
            ],
        }
        return {"interned_data": names}, coded


class Pen:
    """Writes the begins of slices of which the same is known: one message, in which only values are replaced.

    Building each message anew would cost four times as much.
    """

    def __init__(
        self, message: Trace, packet: TracePacket, notes: Sequence[Values], known: Sequence[int]
    ) -> None:
        self._message, self._packet, self._event = message, packet, packet.track_event
        add = self._event.debug_annotations.add
        self._numbers, self._texts = [], []
        self._flow_ids = None
        for place in known:
            if place == len(notes):
                self._event.flow_ids.append(0)
                self._flow_ids = self._event.flow_ids
            elif notes[place].texts is None:
                self._numbers.append((place, add(name_iid=place + 1)))
            else:
                self._texts.append((place, add(name_iid=place + 1)))

    def begin(self, start: int, name: int, flow: int, values: Sequence[int]) -> bytes:
        """Return the packet of a slice's begin; times and values as the trace counts them."""
        self._packet.timestamp = start
        self._event.name_iid = name
        if self._flow_ids is not None:
            self._flow_ids[0] = flow
        for place, note in self._numbers:
            note.int_value = values[place]
        for place, note in self._texts:
            note.string_value_iid = values[place]
        packet: bytes = self._message.SerializeToString()
        return packet


def _numbered(texts: Iterable[str]) -> list[dict[str, object]]:
    return [{"iid": number, "name": text} for number, text in enumerate(texts, start=1)]


def track_name_at_head(file: BinaryIO) -> str | None:
    """Return the name of the track that a trace's first packet describes; None if the file begins otherwise."""
    from google.protobuf.message import DecodeError

    size = _size(file) if file.read(1) == _TAG else None
    if size is None or size > _LONGEST_HEAD:
        return None
    try:
        packet = Packets().protos.TracePacket.FromString(file.read(size))
    except DecodeError:
        return None
    name: str = packet.track_descriptor.name
    return name or None


def _size(file: BinaryIO) -> int | None:
    """Read the size of a message: seven bits a byte, the lowest first; None where it has no end."""
    size = 0
    for place in range(_MOST_BYTES):
        byte = int.from_bytes(file.read(1) or b"\xff")
        size |= (byte & _LOW_BITS) << (_N_LOW_BITS * place)
        if byte <= _LOW_BITS:
            return size
    return None

"""What is drawn on a Perfetto track, and how it is written: packets, by the `perfetto` package's protobuf messages."""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, BinaryIO

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from nsyspipe.model.text import printable

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from types import ModuleType

    from perfetto.protos.perfetto.trace.perfetto_trace_pb2 import Trace, TracePacket, TrackEvent

    from nsyspipe.model.types import Flags, Int64


@dataclass(frozen=True)
class Values:
    """A column: numbers, or places in `texts`; `is_known` is false where nothing was recorded."""

    numbers: Int64
    is_known: Flags
    texts: tuple[str, ...] | None = None

    def take(self, rows: Int64) -> Values:
        """Return the values of some rows; -1 stands for a row that is not there."""
        if not self.numbers.size:
            return Values(np.zeros(rows.size, np.int64), np.zeros(rows.size, np.bool_), self.texts)
        return Values(self.numbers[rows], self.is_known[rows] & (rows >= 0), self.texts)

    def compact(self) -> Values:
        """Return the same with no text that no row has."""
        if self.texts is None:
            return self
        is_used = np.bincount(self.numbers, minlength=len(self.texts)) > 0
        texts = tuple(text for text, used in zip(self.texts, is_used, strict=True) if used)
        return Values((np.cumsum(is_used) - 1)[self.numbers], self.is_known, texts)


@dataclass(frozen=True)
class Slices:
    """Slices of one track in order of start, outer ones first; each ends before the next or holds it."""

    # aligned time, ns
    starts: Int64
    ends: Int64
    # texts
    names: Values
    category: Values
    # what else is told of each slice, by name
    notes: Mapping[str, Values] = field(default_factory=dict)
    # slices with the same number are linked by arrows, in order of start; None for no arrows
    flows: Values | None = None

    def __len__(self) -> int:
        return int(self.starts.size)

    def take(self, rows: Int64) -> Slices:
        """Return some of them, in that order."""
        return Slices(
            self.starts[rows],
            self.ends[rows],
            self.names.take(rows),
            self.category.take(rows),
            {name: values.take(rows) for name, values in self.notes.items()},
            None if self.flows is None else self.flows.take(rows),
        )

    def compact(self) -> Slices:
        """Return the same with nothing that no slice has: texts, notes."""
        known = {name: one.compact() for name, one in self.notes.items() if one.is_known.any()}
        names, category = self.names.compact(), self.category.compact()
        return Slices(self.starts, self.ends, names, category, known, self.flows)


def shown(text: str) -> str:
    """Make a name of a trace or a file fit for protobuf and for a page: no control characters, no lone surrogates."""
    return printable(text.encode("utf-8", "replace").decode("utf-8"))


def values_of(column: pa.ChunkedArray) -> Values:
    """Turn an Arrow column of integers, flags or texts into `Values`; flags become texts."""
    if pa.types.is_boolean(column.type):
        column = column.cast(pa.string())
    known = pc.is_valid(column).to_numpy().astype(np.bool_)
    if not pa.types.is_string(column.type):
        return Values(pc.fill_null(column, 0).to_numpy().astype(np.int64, copy=False), known)
    # As bytes, since nothing proves that what an export calls text is UTF-8.
    coded = column.cast(pa.binary()).combine_chunks().dictionary_encode()
    texts = tuple(shown(raw.decode("utf-8", "replace")) for raw in coded.dictionary.to_pylist())
    places = pc.fill_null(coded.indices, 0).to_numpy(zero_copy_only=False)
    return Values(places.astype(np.int64), known, texts)


def same_text(text: str, size: int) -> Values:
    """Return a column that says the same on every row."""
    return Values(np.zeros(size, np.int64), np.ones(size, np.bool_), (text,))


def disjoint_lanes(starts: Int64, ends: Int64, ties: Int64 | None = None) -> list[Int64]:
    """Share slices out among as few tracks as their order allows, so that none overlaps another on its track.

    Returns
    -------
    list of numpy.ndarray
        For each track its rows in order of (start, end, ties); each slice stands on the first track that is free.
    """
    order = np.lexsort((ends, starts) if ties is None else (ties, ends, starts))
    start, end = starts[order], ends[order]
    if (start[1:] >= np.maximum.accumulate(end)[:-1]).all():
        return [order] if order.size else []
    free: list[int] = []
    lanes: list[list[int]] = []
    for row, begin, finish in zip(order.tolist(), start.tolist(), end.tolist(), strict=True):
        lane = next((place for place, time in enumerate(free) if time <= begin), len(free))
        if lane == len(free):
            free.append(finish)
            lanes.append([])
        free[lane] = finish
        lanes[lane].append(row)
    return [np.array(lane, np.int64) for lane in lanes]


def nested_lanes(starts: Int64, ends: Int64, depth: Int64) -> list[Int64]:
    """Share slices out among as few tracks as their order allows, so that of two that overlap one holds the other.

    Returns
    -------
    list of numpy.ndarray
        For each track its rows in order of (start, longest first, depth).
    """
    order = np.lexsort((depth, -ends, starts))
    lanes: list[tuple[list[int], list[int]]] = []  # rows, and the ends of those still open
    columns = (order.tolist(), starts[order].tolist(), ends[order].tolist())
    for row, begin, finish in zip(*columns, strict=True):
        found = next((lane for lane in lanes if _holds(lane[1], begin, finish)), None)
        if found is None:
            found = ([], [])
            lanes.append(found)
        found[0].append(row)
        found[1].append(finish)
    return [np.array(rows, np.int64) for rows, _ in lanes]


def _holds(open_ends: list[int], begin: int, finish: int) -> bool:
    """Close what ended before, and tell whether what is still open holds a slice."""
    while open_ends and open_ends[-1] <= begin:
        open_ends.pop()
    return not open_ends or open_ends[-1] >= finish


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

    def pens(self, sequence: int, slices: Slices, notes: Sequence[Values]) -> tuple[list[Pen], Int64]:
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

    def interned(self, slices: Slices, notes: dict[str, Values]) -> tuple[dict[str, object], list[Values]]:
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
            "debug_annotation_string_values": [{"iid": number, "str": text.encode()} for text, number in ids.items()],
        }
        return {"interned_data": names}, coded


class Pen:
    """Writes the begins of slices of which the same is known: one message, in which only values are replaced.

    Building each message anew would cost four times as much.
    """

    def __init__(self, message: Trace, packet: TracePacket, notes: Sequence[Values], known: Sequence[int]) -> None:
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


# Slices whose packets are held before they are written.
_BATCH = 16_384
# A thread's id must be no process's.
_FIRST_THREAD = 1_000_000


@dataclass(frozen=True)
class Track:
    """How a track is described."""

    name: str
    parent: int | None = None  # number of the track it stands under; None at the top
    place: int = 0  # order among its siblings
    about: str | None = None  # longer text, shown on demand
    # the process's id, for a track that stands for it or for a thread of it
    process: int | None = None
    is_thread: bool = False
    unit: str | None = None  # of a counter; None for a track of slices


class TraceWriter:
    """Writes tracks one after the other; of their packets it holds one batch at most.

    Every track is a packet sequence of its own, with its own interned names. Its number is both its
    uuid and the id of its sequence.
    """

    def __init__(self, file: BinaryIO, shift_ns: int) -> None:
        self._file = file
        self._shift_ns = shift_ns
        self._n_tracks = 0
        self._packets = Packets()

    def write_order(self) -> None:
        """Let processes and threads stand in the order of their tracks, not of their names or ids."""
        kinds = self._packets.protos.TrackDescriptor
        root = {
            "uuid": 0,
            "process_ordering": kinds.PROCESS_ORDERING_EXPLICIT,
            "thread_ordering": kinds.THREAD_ORDERING_EXPLICIT,
        }
        self._file.write(self._packets.plain(track_descriptor=root))

    def write_track(self, track: Track) -> int:
        """Describe a track that has no slices of its own, and return its number."""
        self._n_tracks += 1
        number, name = self._n_tracks, shown(track.name)
        found: dict[str, object] = {"uuid": number, "sibling_order_rank": track.place}
        if track.parent is not None:
            found["parent_uuid"] = track.parent
        if track.about is not None:
            found["description"] = shown(track.about)
        if track.is_thread:
            thread = _FIRST_THREAD + number
            found["thread"] = {"pid": track.process, "tid": thread, "thread_name": name}
        elif track.process is not None:
            found["process"] = {"pid": track.process, "process_name": name}
        else:
            found["name"] = name
            found["child_ordering"] = self._packets.protos.TrackDescriptor.EXPLICIT
        if track.unit is not None:
            found["counter"] = {"unit_name": track.unit}
        self._file.write(self._packets.plain(track_descriptor=found))
        return number

    def write_slices(self, track: Track, slices: Slices) -> int:
        """Write a track with its slices and return its number; each slice tells its aligned start too."""
        number = self.write_track(track)
        slices = slices.compact()
        start = Values(slices.starts, np.ones(len(slices), np.bool_))
        names, coded = self._packets.interned(slices, {"start_ns": start, **slices.notes})
        self._file.write(self._packets.first(number, **names))
        self._write_events(number, slices, coded)
        return number

    def write_counter(self, track: Track, times: Int64, values: Int64) -> int:
        """Write a counter and return its track's number: the value from each time on, times in order."""
        number = self.write_track(track)
        self._file.write(self._packets.first(number))
        message, packet = self._packets.event(number, self._packets.protos.TrackEvent.TYPE_COUNTER)
        event = packet.track_event
        packets = []
        for time, value in zip(self._trace_time(times), values.tolist(), strict=True):
            packet.timestamp, event.counter_value = time, value
            packets.append(message.SerializeToString())
        self._file.write(b"".join(packets))
        return number

    def _trace_time(self, times: Int64) -> list[int]:
        found: list[int] = np.maximum(times + self._shift_ns, 0).tolist()
        return found

    def _write_events(self, number: int, slices: Slices, notes: Sequence[Values]) -> None:
        """Write begins and ends in order of time: what ends when another begins ends first."""
        kind = self._packets.protos.TrackEvent.TYPE_SLICE_END
        ending, end_packet = self._packets.event(number, kind)
        pens, pen_of = self._packets.pens(number, slices, notes)
        open_ends: list[int] = []
        for at in range(0, len(slices), _BATCH):
            rows = slice(at, at + _BATCH)
            packets = []
            for start, end, pen, name, values, flow in zip(
                self._trace_time(slices.starts[rows]),
                self._trace_time(slices.ends[rows]),
                pen_of[rows].tolist(),
                (slices.names.numbers[rows] + 1).tolist(),
                zip(*(column.numbers[rows].tolist() for column in notes), strict=True),
                _unsigned(slices.flows, rows),
                strict=False,  # no flows are zeros without end
            ):
                while open_ends and open_ends[-1] <= start:
                    end_packet.timestamp = open_ends.pop()
                    packets.append(ending.SerializeToString())
                packets.append(pens[pen].begin(start, name, flow, values))
                open_ends.append(end)
            self._file.write(b"".join(packets))
        while open_ends:
            end_packet.timestamp = open_ends.pop()
            self._file.write(ending.SerializeToString())


def _unsigned(flows: Values | None, rows: slice) -> Iterable[int]:
    """Return flow ids as the unsigned integers that the trace counts them by."""
    return itertools.repeat(0) if flows is None else flows.numbers[rows].view(np.uint64).tolist()

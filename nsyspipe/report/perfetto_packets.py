"""How tracks of slices and counters are written for Perfetto: packets, by the `perfetto` package's protobuf messages."""

from __future__ import annotations

import functools
import importlib
import itertools
from collections.abc import Callable, Iterable, Sequence
from types import ModuleType
from typing import TYPE_CHECKING, BinaryIO, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from msgspec import Struct

from nsyspipe.model.names import printable
from nsyspipe.model.table import Flags, Int64

if TYPE_CHECKING:
    from perfetto.protos.perfetto.trace.perfetto_trace_pb2 import Trace, TracePacket, TrackEvent

    _Pen = Callable[
        [int, int, int, Sequence[int]], bytes
    ]  # of a slice: start, name, flow, and what is told of it

# Columns of a table of slices, in order of start, outer ones first: each ends before the next or
# holds it. Times are aligned times, ns; slices with the same flow are linked by arrows, in order of
# start. Every other column is a note.
START, END, NAME, CATEGORY, FLOW = NOT_NOTES = ("start", "end", "name", "category", "flow")
_BATCH = 16_384  # slices whose packets are held before they are written
_FIRST_THREAD = 1_000_000  # an id of a thread must be no process's


def shown(text: str) -> str:
    """Make a name of a trace or a file fit for protobuf and for a page: no control characters, no lone surrogates."""
    return printable(text.encode("utf-8", "replace").decode("utf-8"))


def coded(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """Return a column with each of its texts told once; flags become texts."""
    if pa.types.is_boolean(column.type):
        column = column.cast(pa.string())
    # As bytes, since nothing proves that what an export calls text is UTF-8.
    return (
        column.cast(pa.binary()).dictionary_encode() if pa.types.is_string(column.type) else column
    )


def slices(
    starts: Int64,
    ends: Int64,
    names: pa.ChunkedArray | str,
    category: pa.ChunkedArray | str,
    notes: pa.Table,
) -> pa.Table:
    """Return a table of slices: their times, names and categories (or the one of all), and what else is told of each."""
    columns = {START: pa.array(starts), END: pa.array(ends), NAME: names, CATEGORY: category}
    columns |= {
        name: pa.repeat(one, len(starts)) for name, one in columns.items() if isinstance(one, str)
    }
    columns |= {name: notes[name] for name in notes.column_names}
    return pa.table(
        {
            name: coded(column)
            for name, column in zip(columns, pa.table(columns).columns, strict=True)
        }
    )


class Values(NamedTuple):
    """A column: integers, or places in `texts`; `is_known` is false where nothing was recorded."""

    numbers: Int64
    is_known: Flags
    texts: tuple[str, ...] | None


def values_of(column: pa.ChunkedArray) -> Values:
    """Turn a column of `coded` into numbers, with no text that no row has."""
    column = column.combine_chunks()
    known = np.asarray(pc.is_valid(column).to_numpy(zero_copy_only=False), np.bool_)
    places = column.indices if pa.types.is_dictionary(column.type) else column
    filled = pc.fill_null(places, 0) if column.null_count else places
    numbers = filled.to_numpy(zero_copy_only=False).astype(np.int64, copy=False)
    if places is column:
        return Values(numbers, known, None)
    is_used = (
        np.bincount(
            numbers[known] if column.null_count else numbers, minlength=len(column.dictionary)
        )
        > 0
    )
    texts = tuple(
        shown(raw.decode("utf-8", "replace"))
        for raw in column.dictionary.filter(is_used).to_pylist()
    )
    return Values(np.where(known, np.append(np.cumsum(is_used) - 1, 0)[numbers], 0), known, texts)


def disjoint_lanes(starts: Int64, ends: Int64, ties: Int64 | None = None) -> list[Int64]:
    """Share slices out among the first tracks that are free: of each its rows in order of (start, end, ties)."""
    order = np.lexsort((ends, starts) if ties is None else (ties, ends, starts))
    start = starts[order]
    end = ends[order]
    if (start[1:] >= np.maximum.accumulate(end)[:-1]).all():
        return [order] if order.size else []
    return _lanes(order, start, end, lambda open_ends, _: not open_ends)


def nested_lanes(starts: Int64, ends: Int64, depth: Int64) -> list[Int64]:
    """Do the same so that of two that overlap one holds the other: rows in order of (start, longest first, depth)."""
    order = np.lexsort((depth, -ends, starts))
    return _lanes(
        order,
        starts[order],
        ends[order],
        lambda open_ends, end: not open_ends or open_ends[-1] >= end,
    )


def _lanes(
    order: Int64, starts: Int64, ends: Int64, has_room: Callable[[list[int], int], bool]
) -> list[Int64]:
    """Put each slice on the first track that has room, beside the ends of those that are still open there, for its end."""
    lanes: list[tuple[list[int], list[int]]] = []  # rows, and the ends of those still open
    for row, start, end in zip(order.tolist(), starts.tolist(), ends.tolist(), strict=True):
        for lane in lanes:
            while lane[1] and lane[1][-1] <= start:
                lane[1].pop()
            if has_room(lane[1], end):
                break
        else:
            lanes.append(lane := ([], []))
        lane[0].append(row)
        lane[1].append(end)
    return [np.array(rows, np.int64) for rows, _ in lanes]


@functools.cache
def pb2() -> ModuleType:
    """Return the messages; loading them costs 50 ms, and only this output needs them."""
    return importlib.import_module("perfetto.protos.perfetto.trace.perfetto_trace_pb2")


def _numbered(texts: Iterable[str]) -> list[dict[str, object]]:
    return [{"iid": number, "name": text} for number, text in enumerate(texts, start=1)]


class Track(Struct, frozen=True):
    """How a track is described."""

    name: str
    parent: int | None = None  # number of the track it stands under; None at the top
    place: int = 0  # order among its siblings
    about: str | None = None  # longer text, shown on demand
    process: int | None = None  # its id, for a track that stands for it or for a thread of it
    is_thread: bool = False
    unit: str | None = None  # of a counter; None for a track of slices


class TraceWriter:
    """Writes tracks one after the other; of their packets it holds one batch at most.

    A file is a concatenation of packets, each in a `Trace` of its own. Every track is a packet
    sequence with interned names of its own; its number is both its uuid and the id of its sequence.
    """

    def __init__(self, file: BinaryIO, shift_ns: int) -> None:
        self._file = file
        self._shift_ns = shift_ns
        self._n_tracks = 0

    def _write(self, **fields: object) -> None:
        self._file.write(pb2().Trace(packet=[fields]).SerializeToString())

    def write_order(self) -> None:
        """Let processes and threads stand in the order of their tracks, not of their names or ids."""
        kinds = pb2().TrackDescriptor
        processes = kinds.PROCESS_ORDERING_EXPLICIT
        threads = kinds.THREAD_ORDERING_EXPLICIT
        self._write(
            track_descriptor={"uuid": 0, "process_ordering": processes, "thread_ordering": threads}
        )

    def write_track(self, track: Track) -> int:
        """Describe a track that has no slices of its own, and return its number."""
        self._n_tracks += 1
        number = self._n_tracks
        name = shown(track.name)
        fields: dict[str, object] = {
            "uuid": number,
            "sibling_order_rank": track.place,
            "parent_uuid": track.parent,
        }
        fields["description"] = track.about and shown(track.about)
        fields["counter"] = track.unit and {"unit_name": track.unit}
        if track.is_thread:
            fields["thread"] = {
                "pid": track.process,
                "tid": _FIRST_THREAD + number,
                "thread_name": name,
            }
        elif track.process is not None:
            fields["process"] = {"pid": track.process, "process_name": name}
        else:
            fields |= {"name": name, "child_ordering": pb2().TrackDescriptor.EXPLICIT}
        self._write(track_descriptor=fields)
        return number

    def write_slices(self, track: Track, slices: pa.Table) -> int:
        """Write a track with its slices and return its number; each slice tells its aligned start too."""
        number = self.write_track(track)
        known = (
            name
            for name in slices.column_names
            if name in NOT_NOTES or slices[name].null_count < slices.num_rows
        )
        columns = {name: values_of(slices[name]) for name in known}
        notes = {"start_ns": columns[START]} | {
            name: columns[name] for name in columns if name not in NOT_NOTES
        }
        ids: dict[str, int] = {}
        numbered = [*notes.values()]
        for at, values in enumerate(numbered):
            if values.texts is not None:
                of_texts = [
                    *(ids.setdefault(text, len(ids) + 1) for text in values.texts),
                    0,
                ]  # 0 if there is none
                numbered[at] = values._replace(numbers=np.array(of_texts, np.int64)[values.numbers])
        names = {
            "event_names": _numbered(columns[NAME].texts or ()),
            "event_categories": _numbered(columns[CATEGORY].texts or ()),
            "debug_annotation_names": _numbered(notes),
            "debug_annotation_string_values": [
                {"iid": iid, "str": text.encode()} for text, iid in ids.items()
            ],
        }
        self._write_first(number, interned_data=names)
        self._write_events(number, columns, numbered)
        return number

    def write_counter(self, track: Track, times: Int64, values: Int64) -> None:
        """Write a counter: the value from each time on, times in order."""
        number = self.write_track(track)
        self._write_first(number)
        message, packet = _event(number, pb2().TrackEvent.TYPE_COUNTER)
        packets = []
        for time, value in zip(self._trace_time(times), values.tolist(), strict=True):
            packet.timestamp, packet.track_event.counter_value = time, value
            packets.append(message.SerializeToString())
        self._file.write(b"".join(packets))

    def _write_first(self, sequence: int, **fields: object) -> None:
        """Write the first packet of a sequence, whose events are on the track of the same number unless they say."""
        flags = pb2().TracePacket
        self._write(
            trusted_packet_sequence_id=sequence,
            first_packet_on_sequence=True,
            sequence_flags=flags.SEQ_INCREMENTAL_STATE_CLEARED | flags.SEQ_NEEDS_INCREMENTAL_STATE,
            trace_packet_defaults={"track_event_defaults": {"track_uuid": sequence}},
            **fields,
        )

    def _trace_time(self, times: Int64) -> list[int]:
        return [*np.maximum(times + self._shift_ns, 0).tolist()]

    def _write_events(
        self, number: int, columns: dict[str, Values], notes: Sequence[Values]
    ) -> None:
        """Write begins and ends in order of time: what ends when another begins ends first."""
        ending, end_packet = _event(number, pb2().TrackEvent.TYPE_SLICE_END)
        flows = columns.get(FLOW)
        pens, pen_of = _pens(number, columns[CATEGORY], notes, flows)
        starts, ends, names = (columns[name].numbers for name in (START, END, NAME))
        open_ends: list[int] = []
        for at in range(0, starts.size, _BATCH):
            rows = slice(at, at + _BATCH)
            packets = []
            for start, end, pen, name, values, flow in zip(
                self._trace_time(starts[rows]),
                self._trace_time(ends[rows]),
                pen_of[rows].tolist(),
                (names[rows] + 1).tolist(),
                zip(*(column.numbers[rows].tolist() for column in notes), strict=True),
                # as the unsigned integers that a trace counts flows by
                itertools.repeat(0)
                if flows is None
                else flows.numbers[rows].view(np.uint64).tolist(),
                strict=False,  # no flows are zeros without end
            ):
                while open_ends and open_ends[-1] <= start:
                    end_packet.timestamp = open_ends.pop()
                    packets.append(ending.SerializeToString())
                packets.append(pens[pen](start, name, flow, values))
                open_ends.append(end)
            self._file.write(b"".join(packets))
        while open_ends:
            end_packet.timestamp = open_ends.pop()
            self._file.write(ending.SerializeToString())


def _event(sequence: int, kind: TrackEvent.Type) -> tuple[Trace, TracePacket]:
    """Return a message of one event, and the event in it: both serve again for each event like it."""
    message = pb2().Trace()
    flag = pb2().TracePacket.SEQ_NEEDS_INCREMENTAL_STATE
    packet = message.packet.add(trusted_packet_sequence_id=sequence, sequence_flags=flag)
    packet.track_event.type = kind
    return message, packet


def _pens(
    sequence: int, category: Values, notes: Sequence[Values], flows: Values | None
) -> tuple[list[_Pen], Int64]:
    columns = [*notes] if flows is None else [*notes, flows]
    shape = category.numbers << len(columns)
    for place, values in enumerate(columns):
        shape = shape | (values.is_known.astype(np.int64) << place)
    shapes, pen_of = np.unique(shape, return_inverse=True)
    known = (
        (bits, [at for at in range(len(columns)) if bits >> at & 1]) for bits in shapes.tolist()
    )
    return [_pen(sequence, bits >> len(columns), notes, places) for bits, places in known], pen_of


def _pen(sequence: int, category: int, notes: Sequence[Values], known: Sequence[int]) -> _Pen:
    """Return what writes begins of slices of which the same is known: one message, whose values change, at a quarter of the cost."""
    message, packet = _event(sequence, pb2().TrackEvent.TYPE_SLICE_BEGIN)
    event = packet.track_event
    add = packet.track_event.debug_annotations.add
    event.category_iids.append(category + 1)
    has_flow = len(notes) in known
    if has_flow:
        event.flow_ids.append(0)
    flow_ids = event.flow_ids
    known = [place for place in known if place < len(notes)]
    numbers = [(place, add(name_iid=place + 1)) for place in known if notes[place].texts is None]
    texts = [(place, add(name_iid=place + 1)) for place in known if notes[place].texts is not None]

    def begin(start: int, name: int, flow: int, values: Sequence[int]) -> bytes:
        packet.timestamp, event.name_iid = start, name
        if has_flow:
            flow_ids[0] = flow
        for place, note in numbers:
            note.int_value = values[place]
        for place, note in texts:
            note.string_value_iid = values[place]
        return bytes(message.SerializeToString())

    return begin

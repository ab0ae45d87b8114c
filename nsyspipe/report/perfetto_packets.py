"""Packets of tracks with slices and counters for Perfetto, as messages of the `perfetto` package.

To make a message anew for each slice takes four times as long as to change the values of one, so
messages are used again.
"""

from __future__ import annotations

import functools
import importlib
import itertools
from collections.abc import Callable, Iterable, Mapping, Sequence
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

    # Returns the packet of the begin of a slice from its time, the ID of its name, its flow, and
    # the values of its notes.
    _BeginWriter = Callable[[int, int, int, Sequence[int]], bytes]

# Columns of a table of slices. Each slice ends before the next one starts, or holds it, and the
# rows are in order of start, outer slices first. Times are aligned times, ns. Arrows link slices
# with the same flow, in order of start. Every other column is a note.
START = "start"
END = "end"
NAME = "name"
CATEGORY = "category"
FLOW = "flow"
NOT_NOTES = (START, END, NAME, CATEGORY, FLOW)
# Packets of so many slices are in memory before they are written.
_SLICES_PER_BATCH = 16_384
# The ID of a thread must not be that of a process.
_FIRST_THREAD = 1_000_000


def shown(text: str) -> str:
    """Return a name that protobuf and a page accept: no control characters or lone surrogates."""
    return printable(text.encode("utf-8", "replace").decode("utf-8"))


def coded(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """Return a column of texts or flags in dictionary form, with flags as texts.

    The entries of the dictionary are bytes, because the text of an export may not be UTF-8. A
    column of any other type stays as it is.
    """
    is_of_flags = pa.types.is_boolean(column.type)
    is_of_texts = pa.types.is_string(column.type)
    if is_of_flags:
        texts = column.cast(pa.string())
    elif is_of_texts:
        texts = column
    else:
        return column
    return texts.cast(pa.binary()).dictionary_encode()


def slices(
    starts: Int64,
    ends: Int64,
    names: pa.ChunkedArray | str,
    category: pa.ChunkedArray | str,
    notes: pa.Table,
) -> pa.Table:
    """Return a table of slices. A text in place of a column is the same for all slices."""
    columns = {START: pa.array(starts), END: pa.array(ends)}
    n_slices = len(starts)
    columns[NAME] = _repeated(names, n_slices)
    columns[CATEGORY] = _repeated(category, n_slices)
    columns |= {name: notes[name] for name in notes.column_names}
    coded_columns = [coded(column) for column in pa.table(columns).columns]
    return pa.table(coded_columns, names=[*columns])


def _repeated(column: pa.ChunkedArray | str, n_rows: int) -> pa.ChunkedArray | pa.Array:
    if isinstance(column, str):
        return pa.repeat(column, n_rows)
    return column


class Values(NamedTuple):
    """A column: integers, or indices into `texts`."""

    numbers: Int64
    # False where nothing was recorded.
    is_known: Flags
    texts: tuple[str, ...] | None


def values_of(column: pa.ChunkedArray) -> Values:
    """Return a column of `coded` as numbers. Null becomes 0.

    The numbers of a column of texts are indices into the `texts` of the result. The dictionary of
    such a column may have entries that no row uses. They are left out of `texts`.
    """
    array = column.combine_chunks()
    validity = pc.is_valid(array).to_numpy(zero_copy_only=False)
    is_known = np.asarray(validity, np.bool_)
    is_of_texts = pa.types.is_dictionary(array.type)
    if not is_of_texts:
        return Values(_numbers_without_null(array), is_known, None)
    entry_of_row = _numbers_without_null(array.indices)
    n_uses_of_entry = np.bincount(entry_of_row[is_known], minlength=len(array.dictionary))
    is_entry_used = n_uses_of_entry > 0
    used_entries = array.dictionary.filter(is_entry_used).to_pylist()
    decoded_texts = [raw.decode("utf-8", "replace") for raw in used_entries]
    texts = tuple(map(shown, decoded_texts))
    # The index in `texts` of each entry that is used, which is the number of used entries before.
    index_of_entry = np.cumsum(is_entry_used) - 1
    # A row of null has the entry 0, which an empty dictionary does not have.
    index_of_entry_or_null = np.append(index_of_entry, 0)
    index_of_row = np.where(is_known, index_of_entry_or_null[entry_of_row], 0)
    return Values(index_of_row, is_known, texts)


def _numbers_without_null(column: pa.Array) -> Int64:
    """Return the numbers of a column, with 0 in place of null."""
    if column.null_count:
        column = pc.fill_null(column, 0)
    numbers: Int64 = column.to_numpy(zero_copy_only=False).astype(np.int64, copy=False)
    return numbers


def disjoint_lanes(starts: Int64, ends: Int64, ties: Int64 | None = None) -> list[Int64]:
    """Divide slices among tracks, so that the slices of a track do not overlap.

    A slice goes to the first track that is free. Returns the rows of each track, in order of
    (start, end, ties).
    """
    # `lexsort` sorts by its last key first.
    keys = (ends, starts) if ties is None else (ties, ends, starts)
    sorted_rows = np.lexsort(keys)
    sorted_starts = starts[sorted_rows]
    sorted_ends = ends[sorted_rows]
    latest_ends = np.maximum.accumulate(sorted_ends)
    is_after_all_before = sorted_starts[1:] >= latest_ends[:-1]
    if is_after_all_before.all():
        # One track has room for all slices.
        return [sorted_rows] if sorted_rows.size else []

    def has_room(open_ends: list[int], _end: int) -> bool:
        return not open_ends

    return _lanes(sorted_rows, sorted_starts, sorted_ends, has_room)


def nested_lanes(starts: Int64, ends: Int64, depth: Int64) -> list[Int64]:
    """Divide slices among tracks. Slices of a track overlap only if one is inside of the other.

    A slice goes to the first track that has room for it. Returns the rows of each track, in order
    of (start, longest first, depth). `depth` is smaller for the outer one of two equal slices.
    """
    latest_end_first = -ends
    # `lexsort` sorts by its last key first.
    sorted_rows = np.lexsort((depth, latest_end_first, starts))

    def has_room(open_ends: list[int], end: int) -> bool:
        # The slice must end inside of the innermost open slice.
        return not open_ends or end <= open_ends[-1]

    return _lanes(sorted_rows, starts[sorted_rows], ends[sorted_rows], has_room)


class _Lane(NamedTuple):
    """A track: its rows, and the ends of the slices that are still open, outer ones first."""

    rows: list[int]
    open_ends: list[int]

    def close_until(self, time: int) -> None:
        """Forget the slices that have ended at this time."""
        while self.open_ends and self.open_ends[-1] <= time:
            self.open_ends.pop()


def _lanes(
    rows: Int64, starts: Int64, ends: Int64, has_room: Callable[[list[int], int], bool]
) -> list[Int64]:
    """Put each slice on the first track that has room for it, and return the rows of each track.

    `rows`, `starts` and `ends` are of the slices in order of start. `has_room` gets the ends of the
    open slices of a track, outer ones first, and the end of the slice.
    """
    lanes: list[_Lane] = []

    def lane_for(start: int, end: int) -> _Lane:
        for lane in lanes:
            lane.close_until(start)
            if has_room(lane.open_ends, end):
                return lane
        lanes.append(_Lane([], []))
        return lanes[-1]

    for row, start, end in zip(rows.tolist(), starts.tolist(), ends.tolist(), strict=True):
        lane = lane_for(start, end)
        lane.rows.append(row)
        lane.open_ends.append(end)
    return [np.array(lane.rows, np.int64) for lane in lanes]


@functools.cache
def pb2() -> ModuleType:
    """Return the messages of Perfetto. To import them takes 50 ms, and few outputs need them."""
    return importlib.import_module("perfetto.protos.perfetto.trace.perfetto_trace_pb2")


def _interned_names(texts: Iterable[str]) -> list[dict[str, object]]:
    """Return names with IDs from 1, as packets refer to them."""
    numbered = enumerate(texts, start=1)
    return [{"iid": number, "name": text} for number, text in numbered]


class Track(Struct, frozen=True):
    """How a track is described."""

    name: str
    # The number of the track above it. None at the top.
    parent: int | None = None
    # Its order among the tracks with the same parent.
    place: int = 0
    # A longer text, shown on demand.
    about: str | None = None
    # The ID of the process, of a track that stands for it or for a thread of it.
    process: int | None = None
    is_thread: bool = False
    # Of a counter. None for a track of slices.
    unit: str | None = None


class TraceWriter:
    """Writes one track after the other. Packets of one batch at most are in memory.

    A file is a sequence of packets, each in a `Trace` of its own. Every track is a packet sequence
    with its own interned names. The number of a track is its uuid and the ID of its sequence.
    """

    def __init__(self, file: BinaryIO, shift_ns: int) -> None:
        self._file = file
        self._shift_ns = shift_ns
        self._n_tracks = 0

    def _write(self, **fields: object) -> None:
        trace = pb2().Trace(packet=[fields])
        self._file.write(trace.SerializeToString())

    def write_order(self) -> None:
        """Show processes and threads in the order of their tracks, not of their names or IDs."""
        descriptor = pb2().TrackDescriptor
        order = {
            # The track 0 stands for the whole trace.
            "uuid": 0,
            "process_ordering": descriptor.PROCESS_ORDERING_EXPLICIT,
            "thread_ordering": descriptor.THREAD_ORDERING_EXPLICIT,
        }
        self._write(track_descriptor=order)

    def write_track(self, track: Track) -> int:
        """Write the description of a track, and return the number of the track.

        For a track with slices or values, use `write_slices` or `write_counter` instead.
        """
        self._n_tracks += 1
        number = self._n_tracks
        description = None if track.about is None else shown(track.about)
        counter = None if track.unit is None else {"unit_name": track.unit}
        fields: dict[str, object] = {
            "uuid": number,
            "sibling_order_rank": track.place,
            "parent_uuid": track.parent,
            "description": description,
            "counter": counter,
        }
        fields |= _fields_of_kind(track, number)
        self._write(track_descriptor=fields)
        return number

    def write_slices(self, track: Track, slices: pa.Table) -> int:
        """Write a track with its slices, and return its number.

        Each slice has its aligned start as a note. Columns of nulls are left out.
        """
        number = self.write_track(track)
        columns = _known_columns(slices)
        notes = {"start_ns": columns[START]}
        notes |= {name: values for name, values in columns.items() if name not in NOT_NOTES}
        id_of_text = _ids_of_texts(notes.values())
        # The texts that later packets refer to by their IDs.
        interned = {
            "event_names": _interned_names(columns[NAME].texts or ()),
            "event_categories": _interned_names(columns[CATEGORY].texts or ()),
            "debug_annotation_names": _interned_names(notes),
            "debug_annotation_string_values": _interned_strings(id_of_text),
        }
        self._write_first(number, interned_data=interned)
        note_values = [_with_ids(values, id_of_text) for values in notes.values()]
        self._write_events(number, columns, note_values)
        return number

    def write_counter(self, track: Track, times: Int64, values: Int64) -> None:
        """Write a counter: times in order, and the value from each of them on."""
        number = self.write_track(track)
        self._write_first(number)
        # The packet is a part of the message, and both are used again for each value.
        message, packet = _message_of_event(number, pb2().TrackEvent.TYPE_COUNTER)
        packets = []
        trace_times = self._trace_times(times)
        for time, value in zip(trace_times, values.tolist(), strict=True):
            packet.timestamp = time
            packet.track_event.counter_value = value
            packets.append(message.SerializeToString())
        self._file.write(b"".join(packets))

    def _write_first(self, sequence: int, **fields: object) -> None:
        """Write the first packet of a sequence of packets.

        The events of a sequence are on the track that has the number of the sequence. `fields` are
        further fields of the packet.
        """
        packet = pb2().TracePacket
        # Nothing before this packet applies to the sequence, and its later packets need this one.
        flags = packet.SEQ_INCREMENTAL_STATE_CLEARED | packet.SEQ_NEEDS_INCREMENTAL_STATE
        event_defaults = {"track_uuid": sequence}
        self._write(
            trusted_packet_sequence_id=sequence,
            first_packet_on_sequence=True,
            sequence_flags=flags,
            trace_packet_defaults={"track_event_defaults": event_defaults},
            **fields,
        )

    def _trace_times(self, aligned_times: Int64) -> list[int]:
        """Return aligned times as times of the trace, which has no time before 0."""
        trace_times: list[int] = np.maximum(aligned_times + self._shift_ns, 0).tolist()
        return trace_times

    def _write_events(
        self, number: int, columns: dict[str, Values], notes: Sequence[Values]
    ) -> None:
        """Write begins and ends in order of time. Ends come before begins at the same time."""
        begins = _Begins(number, columns, notes)
        end_message, end_packet = _message_of_event(number, pb2().TrackEvent.TYPE_SLICE_END)
        starts = columns[START].numbers
        ends = columns[END].numbers
        # The ends of the slices that have begun, outer slices first. So the last end comes next.
        open_ends: list[int] = []

        def packet_of_next_end() -> bytes:
            end_packet.timestamp = open_ends.pop()
            return bytes(end_message.SerializeToString())

        for first in range(0, starts.size, _SLICES_PER_BATCH):
            batch = slice(first, first + _SLICES_PER_BATCH)
            start_times = self._trace_times(starts[batch])
            end_times = self._trace_times(ends[batch])
            begin_packets = begins.packets(batch, start_times)
            packets = []
            for start, end, begin_packet in zip(start_times, end_times, begin_packets, strict=True):
                while open_ends and open_ends[-1] <= start:
                    packets.append(packet_of_next_end())
                packets.append(begin_packet)
                open_ends.append(end)
            self._file.write(b"".join(packets))
        while open_ends:
            self._file.write(packet_of_next_end())


def _fields_of_kind(track: Track, number: int) -> dict[str, object]:
    """Return the fields that depend on the kind of a track: a thread, a process, or neither.

    `number` is the number of the track.
    """
    name = shown(track.name)
    if track.is_thread:
        # Different for each track, because the number is.
        thread_id = _FIRST_THREAD + number
        return {"thread": {"pid": track.process, "tid": thread_id, "thread_name": name}}
    if track.process is not None:
        process = {"pid": track.process, "process_name": name}
        return {"process": process}
    # The tracks below are in the order of their places.
    explicit_order = pb2().TrackDescriptor.EXPLICIT
    return {"name": name, "child_ordering": explicit_order}


def _ids_of_texts(columns: Iterable[Values]) -> dict[str, int]:
    """Return the ID of each text of some columns, from 1. Equal texts have the same ID."""
    id_of_text: dict[str, int] = {}
    for values in columns:
        for text in values.texts or ():
            id_of_text.setdefault(text, len(id_of_text) + 1)
    return id_of_text


def _with_ids(values: Values, id_of_text: Mapping[str, int]) -> Values:
    """Return a column of texts with the IDs of its texts as numbers. Other columns stay."""
    if values.texts is None:
        return values
    ids = [id_of_text[text] for text in values.texts]
    # The number of null is 0, which must be an index even if there are no texts.
    ids_and_guard = np.array([*ids, 0], np.int64)
    return values._replace(numbers=ids_and_guard[values.numbers])


def _known_columns(slices: pa.Table) -> dict[str, Values]:
    """Return the columns of slices by name. A note that is null for all slices is left out."""
    columns = {}
    for name in slices.column_names:
        column = slices[name]
        if name in NOT_NOTES or column.null_count < slices.num_rows:
            columns[name] = values_of(column)
    return columns


def _interned_strings(id_of_text: Mapping[str, int]) -> list[dict[str, object]]:
    """Return the texts of notes with their IDs, as packets refer to them."""
    return [{"iid": iid, "str": text.encode()} for text, iid in id_of_text.items()]


class _MessageOfEvent(NamedTuple):
    """A message, and the packet in it. Whoever changes the packet changes the message."""

    message: Trace
    packet: TracePacket


def _message_of_event(sequence: int, kind: TrackEvent.Type) -> _MessageOfEvent:
    """Return a message with the packet of one event, which can be used again for similar events."""
    message = pb2().Trace()
    flag = pb2().TracePacket.SEQ_NEEDS_INCREMENTAL_STATE
    packet = message.packet.add(trusted_packet_sequence_id=sequence, sequence_flags=flag)
    packet.track_event.type = kind
    return _MessageOfEvent(message, packet)


class _Begins:
    """Makes the packets of the begins of the slices of a track."""

    def __init__(
        self, sequence: int, columns: Mapping[str, Values], notes: Sequence[Values]
    ) -> None:
        """Prepare the packets of all slices of a track.

        `sequence` is the number of the track. `columns` are the columns of its slices by name, and
        `notes` are those that are notes, with the IDs of texts as numbers.
        """
        self._names = columns[NAME].numbers
        self._flows = columns.get(FLOW)
        self._notes = notes
        optional_columns = [*notes] if self._flows is None else [*notes, self._flows]
        categories = columns[CATEGORY].numbers
        # Slices of the same shape have the same fields, so one writer makes all their packets.
        shape_of_slice = _shapes(categories, optional_columns)
        _shape, first_slice_of_shape, self._writer_of_slice = np.unique(
            shape_of_slice, return_index=True, return_inverse=True
        )
        self._writers = []
        for first_slice in first_slice_of_shape.tolist():
            known_notes = [
                index for index, values in enumerate(notes) if values.is_known[first_slice]
            ]
            has_flow = self._flows is not None and bool(self._flows.is_known[first_slice])
            category = int(categories[first_slice])
            writer = _begin_writer(sequence, category, notes, known_notes, has_flow=has_flow)
            self._writers.append(writer)

    def packets(self, rows: slice, times: Sequence[int]) -> list[bytes]:
        """Return the packets of the begins of some slices. `times` are their starts."""
        writers = self._writers
        note_columns = [values.numbers[rows].tolist() for values in self._notes]
        # IDs of names start at 1, and the numbers of names at 0.
        name_ids = self._names[rows] + 1
        fields_of_slices = zip(
            self._writer_of_slice[rows].tolist(),
            times,
            name_ids.tolist(),
            self._flow_ids(rows, len(times)),
            zip(*note_columns, strict=True),
            strict=True,
        )
        return [
            writers[writer_index](time, name_id, flow_id, notes)
            for writer_index, time, name_id, flow_id, notes in fields_of_slices
        ]

    def _flow_ids(self, rows: slice, n_slices: int) -> Iterable[int]:
        """Return the flows of some slices, as the unsigned integers of a trace. 0 without flows."""
        if self._flows is None:
            return itertools.repeat(0, n_slices)
        signed_ids = self._flows.numbers[rows]
        flow_ids: list[int] = signed_ids.view(np.uint64).tolist()
        return flow_ids


def _shapes(categories: Int64, optional_columns: Iterable[Values]) -> Int64:
    """Return a number for each slice: its category, and one bit for each value that is known.

    Two slices have the same number if they have the same category and the same known values.
    """
    # Values that all slices have need no bit, so that the bits of wide tables fit a number.
    varying_columns = [values for values in optional_columns if not values.is_known.all()]
    shapes = categories << len(varying_columns)
    for bit, values in enumerate(varying_columns):
        is_known = values.is_known.astype(np.int64)
        shapes = shapes | (is_known << bit)
    return shapes


def _begin_writer(
    sequence: int,
    category: int,
    notes: Sequence[Values],
    known_notes: Sequence[int],
    *,
    has_flow: bool,
) -> _BeginWriter:
    """Return a function that makes the packet of a begin, for slices with the same fields.

    `category` is the index of the category of the slices, and `known_notes` are the indices of the
    notes that the slices have. All packets are made from one message, whose values change.
    """
    message, packet = _message_of_event(sequence, pb2().TrackEvent.TYPE_SLICE_BEGIN)
    event = packet.track_event
    # IDs of categories and of names start at 1, and indices at 0.
    event.category_iids.append(category + 1)
    if has_flow:
        # A placeholder. Each slice has its own ID of a flow.
        event.flow_ids.append(0)
    flow_ids = event.flow_ids
    indices_of_numbers = [index for index in known_notes if notes[index].texts is None]
    indices_of_texts = [index for index in known_notes if notes[index].texts is not None]
    add = event.debug_annotations.add
    number_notes = [(index, add(name_iid=index + 1)) for index in indices_of_numbers]
    text_notes = [(index, add(name_iid=index + 1)) for index in indices_of_texts]

    def write_begin(time: int, name_id: int, flow_id: int, values: Sequence[int]) -> bytes:
        packet.timestamp = time
        event.name_iid = name_id
        if has_flow:
            flow_ids[0] = flow_id
        for index, note in number_notes:
            note.int_value = values[index]
        for index, note in text_notes:
            note.string_value_iid = values[index]
        return bytes(message.SerializeToString())

    return write_begin

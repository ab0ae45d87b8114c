"""A Perfetto trace read back: tracks, slices and counters rebuilt from its packets, and every rule of the format checked.

Perfetto's own trace processor is a program that cannot be had from a package registry, so this
follows its rules: events of a track count in order of time, and of the file where times are equal;
an end closes what was opened last.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from perfetto.protos.perfetto.trace.perfetto_trace_pb2 import (
    Trace,
    TracePacket,
    TrackDescriptor,
    TrackEvent,
)

END = TrackEvent(type=TrackEvent.TYPE_SLICE_END)


@dataclass
class Slice:
    start: int
    end: int
    name: str
    category: str
    notes: dict
    flows: list
    depth: int
    parent: Slice | None


@dataclass
class Track:
    number: int
    name: str
    parent: Track | None
    descriptor: Any
    is_counter: bool = False
    slices: list = field(default_factory=list)
    values: list = field(default_factory=list)
    children: list = field(default_factory=list)

    @property
    def bars(self):
        return [(one.start, one.end, one.name) for one in self.slices]

    @property
    def times(self):
        return [(one.start, one.end) for one in self.slices]

    @property
    def total(self):
        return sum(one.end - one.start for one in self.slices)

    def child(self, name):
        (found,) = [one for one in self.children if one.name == name]
        return found

    @property
    def names(self):
        return [one.name for one in sorted(self.children, key=lambda one: one.place)]

    @property
    def place(self):
        return self.descriptor.sibling_order_rank

    @property
    def threads(self):
        return sorted(
            [one for one in self.children if one.descriptor.HasField("thread")],
            key=lambda one: one.place,
        )


class ReadTrace:
    """The tracks of a trace by number."""

    def __init__(self, data: bytes) -> None:
        self.tracks: dict[int, Track] = {}
        self.root = None
        self._names: dict[int, dict[str, dict[int, str]]] = {}
        self._defaults: dict[int, int] = {}
        self._open: dict[int, list[Slice]] = {}
        self._last: dict[int, int] = {}
        for packet in Trace.FromString(data).packet:
            self._read(packet)
        assert not any(self._open.values()), "a slice has no end"
        ids = [
            one.descriptor.thread.tid
            for one in self.tracks.values()
            if one.descriptor.HasField("thread")
        ]
        pids = [row.descriptor.process.pid for row in self.ranks]
        assert len({*ids, *pids}) == len(ids) + len(pids)
        assert all(0 < one < 2**31 for one in [*ids, *pids])

    @property
    def run(self) -> Track:
        return self.tracks[1]

    @property
    def ranks(self) -> list[Track]:
        found = [one for one in self.tracks.values() if one.descriptor.HasField("process")]
        return sorted(found, key=lambda one: one.place)

    def flows(self) -> dict[int, list[Slice]]:
        found: dict[int, list[Slice]] = {}
        for track in self.tracks.values():
            for one in track.slices:
                for flow in one.flows:
                    found.setdefault(flow, []).append(one)
        return {flow: sorted(slices, key=lambda one: one.start) for flow, slices in found.items()}

    def _read(self, packet) -> None:
        sequence, flags = packet.trusted_packet_sequence_id, packet.sequence_flags
        if flags & TracePacket.SEQ_INCREMENTAL_STATE_CLEARED:
            assert sequence not in self._names, "a sequence begins once"
            assert packet.first_packet_on_sequence
            self._names[sequence] = {}
        if packet.HasField("trace_packet_defaults"):
            self._defaults[sequence] = packet.trace_packet_defaults.track_event_defaults.track_uuid
        for kind, rows in packet.interned_data.ListFields():
            known = self._names[sequence].setdefault(kind.name, {})
            for row in rows:
                assert row.iid > 0, row
                assert row.iid not in known, row
                known[row.iid] = row.name if hasattr(row, "name") else row.str.decode()
        if packet.HasField("track_descriptor"):
            self._describe(packet.track_descriptor)
        if packet.HasField("track_event"):
            assert flags & TracePacket.SEQ_NEEDS_INCREMENTAL_STATE
            self._event(packet.timestamp, packet.track_event, sequence)

    def _describe(self, descriptor) -> None:
        if descriptor.uuid == 0:
            self.root = descriptor
            return
        assert descriptor.uuid not in self.tracks, "a track is described once"
        parent = self.tracks[descriptor.parent_uuid] if descriptor.HasField("parent_uuid") else None
        name = descriptor.name or descriptor.process.process_name or descriptor.thread.thread_name
        is_counter = descriptor.HasField("counter")
        track = Track(descriptor.uuid, name, parent, descriptor, is_counter)
        self.tracks[descriptor.uuid] = track
        if parent is None:
            return
        parent.children.append(track)
        if descriptor.HasField("thread"):
            assert parent.descriptor.process.pid == descriptor.thread.pid
        elif not parent.descriptor.HasField("process"):
            assert parent.descriptor.child_ordering == TrackDescriptor.EXPLICIT

    def _event(self, time, event, sequence) -> None:
        number = event.track_uuid if event.HasField("track_uuid") else self._defaults[sequence]
        track, stack, kind = self.tracks[number], self._open.setdefault(number, []), event.type
        assert time >= self._last.get(number, 0), "events of a track stand in order of time"
        self._last[number] = time
        assert track.is_counter == (kind == TrackEvent.TYPE_COUNTER)
        if kind == TrackEvent.TYPE_COUNTER:
            track.values.append((time, event.counter_value))
        elif kind == TrackEvent.TYPE_SLICE_END:
            stack.pop().end = time
            assert event == END, "an end says nothing else"
        else:
            assert kind == TrackEvent.TYPE_SLICE_BEGIN
            names = self._names[sequence]
            (category,) = event.category_iids
            found = Slice(
                start=time,
                end=-1,
                name=names["event_names"][event.name_iid],
                category=names["event_categories"][category],
                notes=dict(_note(note, names) for note in event.debug_annotations),
                flows=list(event.flow_ids),
                depth=len(stack),
                parent=stack[-1] if stack else None,
            )
            assert len(found.notes) == len(event.debug_annotations)
            track.slices.append(found)
            stack.append(found)


def _note(note, names):
    name = names["debug_annotation_names"][note.name_iid]
    if note.HasField("string_value_iid"):
        return name, names["debug_annotation_string_values"][note.string_value_iid]
    assert note.HasField("int_value")
    return name, note.int_value

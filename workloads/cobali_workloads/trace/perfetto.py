"""Timelines as a Perfetto trace: the protobuf that https://ui.perfetto.dev opens."""

from __future__ import annotations

from collections.abc import Iterable
from hashlib import blake2b
from typing import IO, Any

from perfetto.protos.perfetto.trace import perfetto_trace_pb2 as pb
from perfetto.trace_builder.proto_builder import StreamingTraceProtoBuilder

from cobali_workloads.trace.shapes import Counter, Group, Slice, Timeline, Track

SEQUENCE_ID = 1
EXPLICIT = pb.TrackDescriptor.ChildTracksOrdering.EXPLICIT


def write_trace(file: IO[bytes], timelines: Iterable[Timeline]) -> None:
    """Write one process per timeline. Times in the file are nanoseconds; the UI can show the date."""
    writer = _Writer(file)
    for number, timeline in enumerate(timelines, 1):
        writer.write(number, timeline)


class _Writer:
    """Packets in the order in which the events of each row follow each other."""

    def __init__(self, file: IO[bytes]) -> None:
        self._builder = StreamingTraceProtoBuilder(file)
        self._n_tracks = self._engine = 0
        self._first: Timeline | None = None
        self._shift_s = 0.0
        """From the clock of the timeline's machine to that of the first one's."""

    def write(self, number: int, timeline: Timeline) -> None:
        self._engine = number
        self._shift_s = self._behind(timeline)
        clocks = self._builder.create_packet()
        for clock_id, at_s in (
            (pb.BuiltinClock.BUILTIN_CLOCK_BOOTTIME, timeline.now_s + self._shift_s),
            (pb.BuiltinClock.BUILTIN_CLOCK_REALTIME, timeline.unix_s),
        ):
            clocks.clock_snapshot.clocks.add(clock_id=clock_id, timestamp=_ns(at_s))
        self._send(clocks)
        process = self._describe(None)
        process.track_descriptor.process.pid = number
        process.track_descriptor.process.process_name = timeline.name
        root = self._finish(process)
        for rank, row in enumerate(timeline.rows):
            self._row(row, root, rank)

    def _behind(self, timeline: Timeline) -> float:
        """Return what to add to its times: those of another machine are joined by the wall clock."""
        if self._first is None:
            self._first = timeline
        if timeline.node == self._first.node:
            return 0.0
        return (timeline.unix_s - timeline.now_s) - (self._first.unix_s - self._first.now_s)

    def _row(self, row: Track | Group | Counter, parent: int, rank: int) -> None:
        packet = self._describe(parent, row.name, rank)
        match row:
            case Track(slices=slices):
                track = self._finish(packet)
                for item in slices:
                    self._slice(item, track)
            case Group(tracks=tracks):
                group = self._finish(packet)
                for i, track_row in enumerate(tracks):
                    self._row(track_row, group, i)
            case Counter(unit=unit, points=points):
                packet.track_descriptor.counter.unit_name = unit
                counter = self._finish(packet)
                for at_s, value in points:
                    event = self._event(at_s, counter, pb.TrackEvent.TYPE_COUNTER)
                    event.track_event.double_counter_value = value
                    self._send(event)

    def _describe(self, parent: int | None, name: str = "", rank: int = 0) -> Any:
        self._n_tracks += 1
        packet = self._builder.create_packet()
        descriptor = packet.track_descriptor
        descriptor.uuid = self._n_tracks
        descriptor.child_ordering = EXPLICIT
        if parent is not None:
            descriptor.parent_uuid, descriptor.name, descriptor.sibling_order_rank = parent, name, rank
        return packet

    def _finish(self, packet: Any) -> int:
        self._send(packet)
        uuid: int = packet.track_descriptor.uuid
        return uuid

    def _slice(self, item: Slice, track: int) -> None:
        begin = self._event(item.start_s, track, pb.TrackEvent.TYPE_SLICE_BEGIN)
        begin.track_event.name = item.name
        for name, value in item.args.items():
            _annotate(begin.track_event.debug_annotations.add(name=name), value)
        if item.flow is not None:
            begin.track_event.flow_ids.append(self._engine << 48 | item.flow)
        if item.journey is not None:
            begin.track_event.flow_ids.append(_journey(item.journey))
        self._send(begin)
        for child in item.children:
            self._slice(child, track)
        self._send(self._event(item.end_s, track, pb.TrackEvent.TYPE_SLICE_END))

    def _event(self, at_s: float, track: int, kind: Any) -> Any:
        packet = self._builder.create_packet()
        packet.timestamp = _ns(at_s + self._shift_s)
        packet.track_event.type, packet.track_event.track_uuid = kind, track
        return packet

    def _send(self, packet: Any) -> None:
        packet.trusted_packet_sequence_id = SEQUENCE_ID
        self._builder.write_packet(packet)


def _annotate(annotation: Any, value: Any) -> None:
    match value:
        case bool():
            annotation.bool_value = value
        case int():
            annotation.int_value = value
        case float():
            annotation.double_value = value
        case _:
            annotation.string_value = str(value)


def _journey(name: str) -> int:
    """Return the number of an arrow between engines; those within one have none so large."""
    return 1 << 63 | int.from_bytes(blake2b(name.encode(), digest_size=7).digest())


def _ns(seconds: float) -> int:
    return round(seconds * 1e9)

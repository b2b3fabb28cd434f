"""Recorded frames of the AWS clients, from `golden/`, and helpers that split bytes."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from penstock.wire.protocol import AppendRun, Event, Frame, ServerProtocol

CLIENTS = ("python", "javascript", "java")


class Captured(NamedTuple):
    client: str
    operation: str
    frame: bytes

    @property
    def body(self) -> bytes:
        return self.frame[5:]


def captured_from(client: str) -> list[Captured]:
    lines = (Path(__file__).parent / "golden" / f"{client}.jsonl").read_text().splitlines()
    return [
        Captured(client, entry["operation"], bytes.fromhex(entry["hex"]))
        for entry in map(json.loads, lines)
    ]


CAPTURED = [frame for client in CLIENTS for frame in captured_from(client)]


def one_of(client: str, operation: str) -> Captured:
    return next(
        frame for frame in CAPTURED if (frame.client, frame.operation) == (client, operation)
    )


def connected(max_frame_bytes: int | None = None) -> ServerProtocol:
    """Returns a state machine after its handshake."""
    protocol = ServerProtocol() if max_frame_bytes is None else ServerProtocol(max_frame_bytes)
    protocol.receive(b"\x01" + one_of("javascript", "Connect").frame)
    assert isinstance(protocol.next_event(), Frame)
    protocol.accept()
    return protocol


def events_of(protocol: ServerProtocol, pieces: Iterable[bytes]) -> list[Event]:
    """Returns all events of the pieces; accepts the first frame as the handshake."""
    events: list[Event] = []
    for piece in pieces:
        protocol.receive(piece)
        while (event := protocol.next_event()) is not None:
            events.append(event)
            if protocol.in_handshake and isinstance(event, Frame):
                protocol.accept()
    return events


def without_runs(events: Iterable[Event]) -> Iterator[Event]:
    """Yields runs of appends as single appends, because runs depend on the pieces."""
    for event in events:
        if isinstance(event, AppendRun):
            for request_id, payload in zip(event.request_ids, event.payloads, strict=True):
                yield AppendRun(event.stream_name, [request_id], [payload])
        else:
            yield event


def split(data: bytes, places: Sequence[int]) -> list[bytes]:
    """Splits the data at these positions."""
    ends = [*sorted(place % (len(data) + 1) for place in places), len(data)]
    return [data[start:end] for start, end in zip([0, *ends], ends, strict=False) if start < end]

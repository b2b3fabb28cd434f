"""Hostile clients: garbage, fuzzed frames, half-open connections, clients that do not read."""

from __future__ import annotations

import contextlib
import socket
import struct
import time
from collections.abc import Callable
from random import Random

from penstock.wire.frames import HEADER
from penstock.wire.operations import Operation
from soak.plan import HostileAction
from tests.support import append_frame, connect_frame, frame

# Only hostile clients append to this stream. Its contents are not checked.
HOSTILE_STREAM = "hostile"

_CONNECT_SECONDS = 5.0
_FRAMES = 60
_HTTP_CONNECTIONS = 100


class HostileClients:
    """Opens hostile connections to a broker, and closes them at the end of the round."""

    def __init__(self, port: int, http_port: int, token: str, large_stream: str) -> None:
        self._port = port
        self._http_port = http_port
        self._token = token
        self._large_stream = large_stream
        self._open: list[socket.socket] = []
        self.connections = 0
        self.by_kind: dict[str, int] = {}

    def attack(self, kind: HostileAction, random: Random) -> None:
        actions: dict[HostileAction, Callable[[socket.socket, Random], None]] = {
            HostileAction.GARBAGE: _send_garbage,
            HostileAction.HALF_OPEN: _send_half_a_handshake,
            HostileAction.FUZZED_FRAMES: self._send_fuzzed_frames,
            HostileAction.MUTATED_APPENDS: self._send_mutated_appends,
            HostileAction.LARGE_FRAME: self._announce_large_frame,
            HostileAction.SLOW_WRITER: self._write_slowly,
            HostileAction.NO_READER: self._read_nothing,
            HostileAction.ABRUPT_CLOSE: self._close_abruptly,
            HostileAction.HALF_OPEN_HTTP: self._send_half_an_http_request,
        }
        port = self._http_port if kind is HostileAction.HALF_OPEN_HTTP else self._port
        # The broker may close the connection, or be stopped.
        with contextlib.suppress(OSError):
            peer = self._connect(port)
            self.by_kind[kind] = self.by_kind.get(kind, 0) + 1
            actions[kind](peer, random)

    def _connect(self, port: int) -> socket.socket:
        peer = socket.create_connection(("127.0.0.1", port), _CONNECT_SECONDS)
        self._open.append(peer)
        self.connections += 1
        return peer

    def close(self) -> None:
        for peer in self._open:
            peer.close()
        self._open.clear()

    def _send_handshake(self, peer: socket.socket) -> None:
        peer.sendall(b"\x01" + connect_frame(self._token))

    def _send_fuzzed_frames(self, peer: socket.socket, random: Random) -> None:
        self._send_handshake(peer)
        for _ in range(_FRAMES):
            body = random.randbytes(random.randint(0, 300))
            peer.sendall(HEADER.pack(len(body) + 1, random.randint(-128, 127)) + body)

    def _send_mutated_appends(self, peer: socket.socket, random: Random) -> None:
        self._send_handshake(peer)
        for _ in range(_FRAMES):
            valid = bytearray(append_frame(HOSTILE_STREAM, random.randbytes(random.randint(1, 80))))
            # The length is not changed: a wrong one only makes the broker wait for more bytes.
            for _ in range(random.randint(0, 3)):
                valid[random.randrange(HEADER.size - 1, len(valid))] ^= 1 << random.randrange(8)
            peer.sendall(bytes(valid))

    def _announce_large_frame(self, peer: socket.socket, random: Random) -> None:
        self._send_handshake(peer)
        peer.sendall(HEADER.pack((1 << 29) + 1, Operation.AppendMessage))
        peer.sendall(random.randbytes(random.randint(0, 100_000)))

    def _write_slowly(self, peer: socket.socket, random: Random) -> None:
        self._send_handshake(peer)
        request = append_frame(HOSTILE_STREAM, random.randbytes(40))
        for position in range(random.randint(1, len(request))):
            peer.sendall(request[position : position + 1])
            time.sleep(0.002)

    def _read_nothing(self, peer: socket.socket, random: Random) -> None:
        peer.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        peer.settimeout(1.0)
        self._send_handshake(peer)
        options = {"minMessageCount": 1, "maxMessageCount": 10_000}
        request = frame(
            Operation.ReadMessages, streamName=self._large_stream, readMessagesOptions=options
        )
        for _ in range(random.randint(1, 20)):
            peer.sendall(request)

    def _send_half_an_http_request(self, peer: socket.socket, random: Random) -> None:
        request = b"GET /api/status HTTP/1.1\r\nHost: 127.0.0.1\r\nX-Filler: "
        for _ in range(random.randint(1, _HTTP_CONNECTIONS)):
            peer.sendall(request[: random.randint(1, len(request))])
            peer = self._connect(self._http_port)

    def _close_abruptly(self, peer: socket.socket, random: Random) -> None:
        self._send_handshake(peer)
        request = append_frame(HOSTILE_STREAM, random.randbytes(2000))
        peer.sendall(request[: random.randint(1, len(request) - 1)])
        # Closing sends a reset.
        peer.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        peer.close()


def _send_garbage(peer: socket.socket, random: Random) -> None:
    peer.sendall(random.randbytes(random.randint(1, 4000)))


def _send_half_a_handshake(peer: socket.socket, random: Random) -> None:
    handshake = b"\x01" + connect_frame("not a token")
    peer.sendall(handshake[: random.randint(0, len(handshake) - 1)])

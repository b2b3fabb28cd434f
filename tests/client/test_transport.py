"""Sending and receiving over sockets and TLS, with deadlines, in both directions at once."""

from __future__ import annotations

import contextlib
import gc
import socket
import ssl
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from penstock.client.endpoint import Endpoint
from penstock.client.transport import DeadlineError, TlsTransport, Transport, open_transport
from tests.support import TIMEOUT_S, running, wait_until

from .servers import Certificates, make_certificates


def deadline_in(seconds: float = TIMEOUT_S) -> float:
    return time.monotonic() + seconds


def receive_exactly(transport: Transport, size: int) -> bytes:
    """Receives exactly `size` bytes."""
    data = bytearray()
    while len(data) < size:
        piece = transport.receive(deadline_in())
        assert piece, "unexpected end of the stream"
        data += piece
    return bytes(data)


def receive_exactly_from(stream_socket: socket.socket, size: int) -> bytes:
    data = bytearray()
    while len(data) < size:
        data += stream_socket.recv(size - len(data))
    return bytes(data)


@pytest.fixture
def ends() -> Iterator[tuple[Transport, socket.socket]]:
    """A transport and its peer's socket."""
    ours, theirs = socket.socketpair()
    theirs.settimeout(TIMEOUT_S)
    with ours, theirs:
        yield Transport(ours), theirs


Ends = tuple[Transport, socket.socket]
LARGE = bytes(range(256)) * 4096 * 16


# Without TLS


def test_bytes_arrive_in_order_and_the_end_is_empty(ends: Ends) -> None:
    transport, peer = ends
    transport.send(b"ask", deadline_in())
    assert peer.recv(10) == b"ask"

    peer.sendall(b"answer")
    assert receive_exactly(transport, 6) == b"answer"

    peer.close()
    assert transport.receive(deadline_in()) == b""


def test_large_send_to_a_slow_receiver(ends: Ends) -> None:
    transport, peer = ends
    with ThreadPoolExecutor() as pool:
        taken = pool.submit(receive_exactly_from, peer, len(LARGE))
        transport.send(LARGE, deadline_in())
        assert taken.result() == LARGE


def test_blocked_sender_receives_answers(ends: Ends) -> None:
    """The peer reads nothing before it has sent all its bytes."""
    transport, peer = ends
    answers = bytearray()

    def take_answers() -> bool:
        while transport.has_input():
            answers.extend(transport.receive(deadline_in()))
        return True

    def talk() -> None:
        peer.sendall(LARGE)
        assert receive_exactly_from(peer, len(LARGE)) == LARGE

    with running(talk):
        transport.send(LARGE, deadline_in(), take_answers)
    answers += (
        receive_exactly(transport, len(LARGE) - len(answers)) if len(answers) < len(LARGE) else b""
    )
    assert answers == LARGE


def test_send_raises_after_its_deadline(ends: Ends) -> None:
    transport, _ = ends
    began = time.monotonic()

    with pytest.raises(DeadlineError, match="did not accept the request in time"):
        transport.send(LARGE, deadline_in(0.2))

    assert time.monotonic() - began >= 0.2


@pytest.mark.parametrize("seconds", [0.0, 0.1, 1.1])
def test_receive_waits_until_its_deadline(ends: Ends, seconds: float) -> None:
    transport, _ = ends
    began = time.monotonic()

    with pytest.raises(DeadlineError):
        transport.receive(began + seconds)

    # Also if the socket's receive timeout is shorter.
    assert time.monotonic() - began >= seconds


def test_arrived_bytes_are_received_after_the_deadline(ends: Ends) -> None:
    transport, peer = ends
    peer.sendall(b"answer")

    assert transport.receive(time.monotonic() - 1) == b"answer"


def test_has_input_detects_bytes_and_the_end(ends: Ends) -> None:
    transport, peer = ends
    assert not transport.has_input()
    peer.sendall(b"x")
    assert transport.has_input()
    receive_exactly(transport, 1)
    assert not transport.has_input()
    peer.close()
    assert transport.has_input()


def test_shut_down_wakes_waiting_threads(ends: Ends) -> None:
    transport, _ = ends
    with ThreadPoolExecutor() as pool:
        receiving = pool.submit(transport.receive, deadline_in())
        sending = pool.submit(transport.send, LARGE, deadline_in())
        transport.shut_down()

        assert receiving.result() == b""
        with pytest.raises(OSError, match="pipe"):
            sending.result()


def test_shut_down_and_close_are_idempotent(ends: Ends) -> None:
    transport, _ = ends
    transport.shut_down()
    transport.close()
    transport.shut_down()
    transport.close()


# Connecting


def test_unix_socket_connects(tmp_path: Path) -> None:
    path = str(tmp_path / "socket")
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(path)
        listener.listen()
        transport = open_transport(Endpoint("", 0, path), deadline_in())
        peer, _ = listener.accept()
        with peer:
            transport.send(b"ask", deadline_in())
            assert peer.recv(10) == b"ask"
        transport.close()


def test_failed_connect_raises_the_system_error_and_closes_the_socket(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    gc.collect()  # the garbage of other tests
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(ConnectionRefusedError):
            open_transport(Endpoint("127.0.0.1", port), deadline_in())
        with pytest.raises(FileNotFoundError):
            open_transport(Endpoint("", 0, str(tmp_path / "missing")), deadline_in())
        gc.collect()


# TLS


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    return make_certificates(tmp_path_factory.mktemp("tls"))


@contextlib.contextmanager
def listening(serve: Callable[[socket.socket], object]) -> Iterator[int]:
    """Serves one connection, and yields the port."""
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def run() -> None:
            peer, _ = listener.accept()
            with peer:
                peer.settimeout(TIMEOUT_S)
                serve(peer)

        with running(run):
            yield listener.getsockname()[1]


def tls_endpoint(port: int, certificates: Certificates, host: str = "127.0.0.1") -> Endpoint:
    return Endpoint(host, port, tls=certificates.client_context())


def test_large_messages_pass_over_tls_in_both_directions_at_once(
    certificates: Certificates,
) -> None:
    def talk(peer: socket.socket) -> None:
        """Sends and receives concurrently, like a broker."""
        secure = _TlsServer(peer, certificates)
        with running(lambda: secure.send(LARGE)):
            taken = secure.receive_exactly(len(LARGE))
        secure.send(bytes([taken == LARGE]))
        assert peer.recv(1) == b""

    with listening(talk) as port, ThreadPoolExecutor() as pool:
        transport = open_transport(tls_endpoint(port, certificates), deadline_in())
        taken = pool.submit(receive_exactly, transport, len(LARGE) + 1)
        transport.send(LARGE, deadline_in())
        assert taken.result() == LARGE + b"\x01"
        transport.shut_down()
        transport.close()


class _TlsServer:
    """A TLS server over memory buffers, which can send and receive at the same time."""

    def __init__(self, peer: socket.socket, certificates: Certificates) -> None:
        self.peer = peer
        self._lock = threading.Lock()
        self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._tls = certificates.server_context().wrap_bio(
            self._incoming, self._outgoing, server_side=True
        )
        while True:
            try:
                self._tls.do_handshake()
                break
            except ssl.SSLWantReadError:
                peer.sendall(self._outgoing.read())
                self._receive_some()
        peer.sendall(self._outgoing.read())

    def encrypt(self, data: bytes) -> bytes:
        with self._lock:
            rest = memoryview(data)
            while rest:
                rest = rest[self._tls.write(rest) :]
            return self._outgoing.read()

    def encrypt_close(self) -> bytes:
        with contextlib.suppress(ssl.SSLWantReadError):
            self._tls.unwrap()
        return self._outgoing.read()

    def send(self, data: bytes) -> None:
        self.peer.sendall(self.encrypt(data))

    def receive_exactly(self, size: int) -> bytes:
        data = bytearray()
        while len(data) < size:
            self._receive_some()
            with self._lock, contextlib.suppress(ssl.SSLWantReadError):
                while piece := self._tls.read(1 << 16):
                    data += piece
        return bytes(data)

    def _receive_some(self) -> None:
        data = self.peer.recv(1 << 16)
        if not data:
            raise EOFError
        self._incoming.write(data)


def test_tls_record_arrives_byte_by_byte(certificates: Certificates) -> None:
    def talk(peer: socket.socket) -> None:
        peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        secure = _TlsServer(peer, certificates)
        for byte in secure.encrypt(b"answer"):
            peer.sendall(bytes([byte]))
        assert peer.recv(1) == b""

    with listening(talk) as port:
        transport = open_transport(tls_endpoint(port, certificates), deadline_in())
        assert receive_exactly(transport, 6) == b"answer"
        transport.shut_down()
        transport.close()


def test_partial_tls_record_is_not_received(certificates: Certificates) -> None:
    def talk(peer: socket.socket) -> None:
        secure = _TlsServer(peer, certificates)
        record = secure.encrypt(b"answer")
        peer.sendall(record[:10])
        assert secure.receive_exactly(4) == b"more"
        peer.sendall(record[10:])
        assert peer.recv(1) == b""

    with listening(talk) as port:
        transport = open_transport(tls_endpoint(port, certificates), deadline_in())
        wait_until(transport.has_input)
        with pytest.raises(DeadlineError):
            transport.receive(deadline_in(0.05))

        transport.send(b"more", deadline_in())
        assert receive_exactly(transport, 6) == b"answer"
        transport.shut_down()
        transport.close()


def test_tls_close_is_the_end_while_the_socket_stays_open(
    certificates: Certificates,
) -> None:
    """asyncio waits for the peer's TLS close before it closes the socket."""

    def talk(peer: socket.socket) -> None:
        secure = _TlsServer(peer, certificates)
        peer.sendall(secure.encrypt(b"last words") + secure.encrypt_close())
        assert peer.recv(1) == b""

    with listening(talk) as port:
        transport = open_transport(tls_endpoint(port, certificates), deadline_in())
        assert receive_exactly(transport, 10) == b"last words"
        assert transport.has_input()
        assert transport.receive(deadline_in()) == b""
        transport.shut_down()
        transport.close()


def test_socket_close_without_a_tls_close_is_the_end(certificates: Certificates) -> None:
    with listening(lambda peer: _TlsServer(peer, certificates)) as port:
        transport = open_transport(tls_endpoint(port, certificates), deadline_in())
        assert transport.receive(deadline_in()) == b""
        transport.close()


@pytest.mark.parametrize("what", ["another authority", "another name"])
def test_untrusted_certificate_is_rejected(
    certificates: Certificates, tmp_path: Path, what: str
) -> None:
    trusted, host = certificates, "127.0.0.1"
    if what == "another authority":
        trusted = make_certificates(tmp_path)
    else:
        host = "elsewhere.example"

    def talk(peer: socket.socket) -> None:
        with pytest.raises(EOFError):
            _TlsServer(peer, certificates)

    with (
        listening(talk) as port,
        socket.create_connection(("127.0.0.1", port)) as stream_socket,
        pytest.raises(ssl.SSLCertVerificationError),
    ):
        TlsTransport(stream_socket, trusted.client_context(), host, deadline_in())


def test_close_during_the_tls_handshake_is_an_error(certificates: Certificates) -> None:
    with (
        listening(lambda peer: peer.recv(1 << 16)) as port,
        pytest.raises(ConnectionResetError, match=r"ended the handshake|reset"),
    ):
        open_transport(tls_endpoint(port, certificates), deadline_in())


def test_tls_handshake_times_out(certificates: Certificates) -> None:
    with (
        listening(lambda peer: [*iter(lambda: peer.recv(1 << 16), b"")]) as port,
        pytest.raises(DeadlineError),
    ):
        open_transport(tls_endpoint(port, certificates), deadline_in(0.2))


def test_server_without_tls_is_an_ssl_error(certificates: Certificates) -> None:
    def talk(peer: socket.socket) -> None:
        peer.sendall(b"\x01\x00\x00\x00\x05 no handshake of TLS")
        with contextlib.suppress(ConnectionResetError):
            while peer.recv(1 << 16):
                pass

    with listening(talk) as port, pytest.raises(ssl.SSLError):
        open_transport(tls_endpoint(port, certificates), deadline_in())

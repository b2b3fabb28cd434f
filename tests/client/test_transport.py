"""Bytes over sockets and TLS: all of them, in time, in both directions at once."""

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


def later(seconds: float = TIMEOUT_S) -> float:
    return time.monotonic() + seconds


def take(transport: Transport, size: int) -> bytes:
    """So many bytes, as whoever uses a transport takes them."""
    data = bytearray()
    while len(data) < size:
        piece = transport.receive(later())
        assert piece, "it ended"
        data += piece
    return bytes(data)


def take_from(stream_socket: socket.socket, size: int) -> bytes:
    data = bytearray()
    while len(data) < size:
        data += stream_socket.recv(size - len(data))
    return bytes(data)


@pytest.fixture
def ends() -> Iterator[tuple[Transport, socket.socket]]:
    """A transport and the socket at the other end of it."""
    ours, theirs = socket.socketpair()
    theirs.settimeout(TIMEOUT_S)
    with ours, theirs:
        yield Transport(ours), theirs


Ends = tuple[Transport, socket.socket]
LARGE = bytes(range(256)) * 4096 * 16


# Plain


def test_bytes_arrive_in_order_and_the_end_is_nothing(ends: Ends) -> None:
    transport, peer = ends
    transport.send(b"ask", later())
    assert peer.recv(10) == b"ask"

    peer.sendall(b"answer")
    assert take(transport, 6) == b"answer"

    peer.close()
    assert transport.receive(later()) == b""


def test_all_of_something_large_is_sent_to_one_who_takes_it_slowly(ends: Ends) -> None:
    transport, peer = ends
    with ThreadPoolExecutor() as pool:
        taken = pool.submit(take_from, peer, len(LARGE))
        transport.send(LARGE, later())
        assert taken.result() == LARGE


def test_one_who_cannot_send_takes_answers_meanwhile(ends: Ends) -> None:
    """The other end reads nothing before it is rid of what it has to say."""
    transport, peer = ends
    answers = bytearray()

    def take_answers() -> bool:
        while transport.has_input():
            answers.extend(transport.receive(later()))
        return True

    def talk() -> None:
        peer.sendall(LARGE)
        assert take_from(peer, len(LARGE)) == LARGE

    with running(talk):
        transport.send(LARGE, later(), take_answers)
    answers += take(transport, len(LARGE) - len(answers)) if len(answers) < len(LARGE) else b""
    assert answers == LARGE


def test_what_is_not_taken_in_time_is_an_error(ends: Ends) -> None:
    transport, _ = ends
    began = time.monotonic()

    with pytest.raises(DeadlineError, match="takes no more"):
        transport.send(LARGE, later(0.2))

    assert time.monotonic() - began >= 0.2


@pytest.mark.parametrize("seconds", [0.0, 0.1, 1.1])
def test_nothing_that_comes_is_waited_for_until_the_deadline(ends: Ends, seconds: float) -> None:
    transport, _ = ends
    began = time.monotonic()

    with pytest.raises(DeadlineError):
        transport.receive(began + seconds)

    # Also where the kernel wakes it in between to look at the clock.
    assert time.monotonic() - began >= seconds


def test_what_has_arrived_is_taken_even_after_the_deadline(ends: Ends) -> None:
    transport, peer = ends
    peer.sendall(b"answer")

    assert transport.receive(time.monotonic() - 1) == b"answer"


def test_input_is_noticed_and_so_is_the_end(ends: Ends) -> None:
    transport, peer = ends
    assert not transport.has_input()
    peer.sendall(b"x")
    assert transport.has_input()
    take(transport, 1)
    assert not transport.has_input()
    peer.close()
    assert transport.has_input()


def test_whoever_waits_is_woken_by_the_end(ends: Ends) -> None:
    transport, _ = ends
    with ThreadPoolExecutor() as pool:
        receiving = pool.submit(transport.receive, later())
        sending = pool.submit(transport.send, LARGE, later())
        transport.shut()

        assert receiving.result() == b""
        with pytest.raises(OSError, match="pipe"):
            sending.result()


def test_the_end_may_come_twice(ends: Ends) -> None:
    transport, _ = ends
    transport.shut()
    transport.close()
    transport.shut()
    transport.close()


# Connecting


def test_a_unix_socket_is_a_way_too(tmp_path: Path) -> None:
    path = str(tmp_path / "socket")
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(path)
        listener.listen()
        transport = open_transport(Endpoint("", 0, path), later())
        peer, _ = listener.accept()
        with peer:
            transport.send(b"ask", later())
            assert peer.recv(10) == b"ask"
        transport.close()


def test_nobody_there_is_an_error_of_the_system_and_leaves_nothing_open(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(ConnectionRefusedError):
            open_transport(Endpoint("127.0.0.1", port), later())
        with pytest.raises(FileNotFoundError):
            open_transport(Endpoint("", 0, str(tmp_path / "nobody")), later())
        gc.collect()


# TLS


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    return make_certificates(tmp_path_factory.mktemp("tls"))


@contextlib.contextmanager
def listening(serve: Callable[[socket.socket], object]) -> Iterator[int]:
    """A server of one connection."""
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


def test_large_messages_pass_in_both_directions_at_once(certificates: Certificates) -> None:
    def talk(peer: socket.socket) -> None:
        """As a broker does: each direction at its own pace."""
        secure = _SecureServer(peer, certificates)
        with running(lambda: secure.send(LARGE)):
            taken = secure.take(len(LARGE))
        secure.send(bytes([taken == LARGE]))
        assert peer.recv(1) == b""

    with listening(talk) as port, ThreadPoolExecutor() as pool:
        transport = open_transport(tls_endpoint(port, certificates), later())
        taken = pool.submit(take, transport, len(LARGE) + 1)
        transport.send(LARGE, later())
        assert taken.result() == LARGE + b"\x01"
        transport.shut()
        transport.close()


class _SecureServer:
    """The other end of TLS, in memory too: sends and takes at the same time."""

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
                self._take_some()
        peer.sendall(self._outgoing.read())

    def encrypt(self, data: bytes) -> bytes:
        with self._lock:
            rest = memoryview(data)
            while rest:
                rest = rest[self._tls.write(rest) :]
            return self._outgoing.read()

    def say_end(self) -> bytes:
        with contextlib.suppress(ssl.SSLWantReadError):
            self._tls.unwrap()
        return self._outgoing.read()

    def send(self, data: bytes) -> None:
        self.peer.sendall(self.encrypt(data))

    def take(self, size: int) -> bytes:
        data = bytearray()
        while len(data) < size:
            self._take_some()
            with self._lock, contextlib.suppress(ssl.SSLWantReadError):
                while piece := self._tls.read(1 << 16):
                    data += piece
        return bytes(data)

    def _take_some(self) -> None:
        data = self.peer.recv(1 << 16)
        if not data:
            raise EOFError
        self._incoming.write(data)


def test_a_record_may_come_byte_by_byte(certificates: Certificates) -> None:
    def talk(peer: socket.socket) -> None:
        peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        secure = _SecureServer(peer, certificates)
        for byte in secure.encrypt(b"answer"):
            peer.sendall(bytes([byte]))
        assert peer.recv(1) == b""

    with listening(talk) as port:
        transport = open_transport(tls_endpoint(port, certificates), later())
        assert take(transport, 6) == b"answer"
        transport.shut()
        transport.close()


def test_a_part_of_a_record_is_no_answer_yet(certificates: Certificates) -> None:
    def talk(peer: socket.socket) -> None:
        secure = _SecureServer(peer, certificates)
        record = secure.encrypt(b"answer")
        peer.sendall(record[:10])
        assert secure.take(4) == b"more"
        peer.sendall(record[10:])
        assert peer.recv(1) == b""

    with listening(talk) as port:
        transport = open_transport(tls_endpoint(port, certificates), later())
        wait_until(transport.has_input)
        with pytest.raises(DeadlineError):
            transport.receive(later(0.05))

        transport.send(b"more", later())
        assert take(transport, 6) == b"answer"
        transport.shut()
        transport.close()


def test_the_end_of_tls_is_the_end_also_where_the_socket_stays_open(
    certificates: Certificates,
) -> None:
    """asyncio waits for the other side's word before it closes the socket."""

    def talk(peer: socket.socket) -> None:
        secure = _SecureServer(peer, certificates)
        peer.sendall(secure.encrypt(b"last words") + secure.say_end())
        assert peer.recv(1) == b""

    with listening(talk) as port:
        transport = open_transport(tls_endpoint(port, certificates), later())
        assert take(transport, 10) == b"last words"
        assert transport.has_input()
        assert transport.receive(later()) == b""
        transport.shut()
        transport.close()


def test_a_socket_that_just_ends_is_the_end_too(certificates: Certificates) -> None:
    with listening(lambda peer: _SecureServer(peer, certificates)) as port:
        transport = open_transport(tls_endpoint(port, certificates), later())
        assert transport.receive(later()) == b""
        transport.close()


@pytest.mark.parametrize("what", ["another authority", "another name"])
def test_a_certificate_that_is_not_trusted_is_refused(
    certificates: Certificates, tmp_path: Path, what: str
) -> None:
    trusted, host = certificates, "127.0.0.1"
    if what == "another authority":
        trusted = make_certificates(tmp_path)
    else:
        host = "elsewhere.example"

    def talk(peer: socket.socket) -> None:
        with pytest.raises(EOFError):
            _SecureServer(peer, certificates)

    with (
        listening(talk) as port,
        socket.create_connection(("127.0.0.1", port)) as stream_socket,
        pytest.raises(ssl.SSLCertVerificationError),
    ):
        TlsTransport(stream_socket, trusted.client_context(), host, later())


def test_a_server_that_ends_the_handshake_is_an_error(certificates: Certificates) -> None:
    with (
        listening(lambda peer: peer.recv(1 << 16)) as port,
        pytest.raises(ConnectionResetError, match=r"ended the handshake|reset"),
    ):
        open_transport(tls_endpoint(port, certificates), later())


def test_a_server_that_says_nothing_is_given_up_in_time(certificates: Certificates) -> None:
    with (
        listening(lambda peer: [*iter(lambda: peer.recv(1 << 16), b"")]) as port,
        pytest.raises(DeadlineError),
    ):
        open_transport(tls_endpoint(port, certificates), later(0.2))


def test_a_server_that_speaks_plainly_is_an_error_of_tls(certificates: Certificates) -> None:
    def talk(peer: socket.socket) -> None:
        peer.sendall(b"\x01\x00\x00\x00\x05 no handshake of TLS")
        with contextlib.suppress(ConnectionResetError):
            while peer.recv(1 << 16):
                pass

    with listening(talk) as port, pytest.raises(ssl.SSLError):
        open_transport(tls_endpoint(port, certificates), later())

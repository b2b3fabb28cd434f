"""Scripted servers, a relay in front of a broker, and TLS certificates, for tests of clients.

A scripted server exchanges real frames as its script says. A relay forwards bytes to a real broker;
it can delay, cut, count and modify them.
"""

from __future__ import annotations

import contextlib
import datetime as dt
import ipaddress
import socket
import ssl
import struct
import threading
from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path
from typing import Any, NamedTuple, Self

import cbor2
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from penstock.client.blocking import StreamManagerClient
from penstock.client.endpoint import Endpoint
from penstock.model import MessageStreamDefinition, StrategyOnFull
from penstock.wire.frames import HEADER, encode_frame
from penstock.wire.operations import RESPONSE_TO, Operation
from tests.support import TIMEOUT_S, Json, Reachable

_numbers = count()


def client_of(server: Reachable | ScriptedServer | Relay, **options: Any) -> StreamManagerClient:
    # A restart takes longer than the default timeouts when the machine is busy.
    timeouts = {"connect_timeout": TIMEOUT_S, "reconnect_timeout": TIMEOUT_S}
    options = {"token": server.token, **timeouts, **options}
    return StreamManagerClient("127.0.0.1", server.port, **options)


def make_stream(client: StreamManagerClient, **fields: Any) -> str:
    """Creates a stream with a unique name, which overwrites its oldest messages when full."""
    name = f"stream-{next(_numbers)}"
    fields.setdefault("strategy_on_full", StrategyOnFull.OverwriteOldestData)
    client.create_message_stream(MessageStreamDefinition(name=name, **fields))
    return name


class Request(NamedTuple):
    operation: int
    fields: Json

    @property
    def id(self) -> str:
        return str(self.fields["requestId"])


class ClientPeer:
    """The client's end of a connection to a scripted server."""

    def __init__(self, stream_socket: socket.socket) -> None:
        stream_socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        stream_socket.settimeout(TIMEOUT_S)
        self._socket = stream_socket
        self._reader = stream_socket.makefile("rb")

    def accept_handshake(self, **fields: Any) -> Json:
        """Accepts the handshake, and returns the client's request."""
        assert self.receive_bytes(1) == b"\x01"
        request = self.receive()
        assert request.operation == Operation.Connect
        self.send(b"\x01" + frame_to(request, **{"protocolVersion": "1.1.0", **fields}))
        return request.fields

    def receive(self) -> Request:
        length, operation = HEADER.unpack(self.receive_bytes(HEADER.size))
        return Request(operation, cbor2.loads(self.receive_bytes(length - 1)))

    def receive_bytes(self, size: int) -> bytes:
        data = self._reader.read(size)
        if len(data) < size:
            raise EOFError("the client closed the connection")
        return data

    def wait_for_close(self) -> None:
        """Reads until the client closes the connection."""
        with contextlib.suppress(ConnectionResetError):
            while self._reader.read1():
                pass

    def answer(self, request: Request, **fields: Any) -> None:
        self.send(frame_to(request, **fields))

    def send(self, data: bytes) -> None:
        self._socket.sendall(data)

    def disconnect(self) -> None:
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """Closes the socket. No thread may use it any longer."""
        self._reader.close()
        self._socket.close()


def frame_to(request: Request, operation: int | None = None, **fields: Any) -> bytes:
    """Encodes an answer; its status is success unless the fields contain another."""
    body = {"requestId": request.id, "status": 0, "errorMessage": "", **fields}
    return encode_frame(operation or RESPONSE_TO[request.operation], cbor2.dumps(body))


Script = Callable[[ClientPeer], object]


class ScriptedServer:
    """Runs the first script for the first connection, and so on; the last one for all others."""

    token = ""

    def __init__(self, *scripts: Script) -> None:
        self._scripts = scripts
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self.connections = 0
        self._threads: list[threading.Thread] = []
        self._peers: list[ClientPeer] = []
        self._errors: list[BaseException] = []

    @property
    def endpoint(self) -> Endpoint:
        return Endpoint("127.0.0.1", self.port)

    def __enter__(self) -> Self:
        self._run(self._accept)
        return self

    def __exit__(self, *_: object) -> None:
        # A close alone would leave the thread in accept.
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        for peer in self._peers:
            peer.disconnect()
        for thread in self._threads:
            thread.join(TIMEOUT_S)
        for peer in self._peers:
            peer.close()
        if self._errors:
            raise self._errors[0]

    def _run(self, target: Callable[..., None], *arguments: Any) -> None:
        thread = threading.Thread(target=target, args=arguments, daemon=True)
        self._threads.append(thread)
        thread.start()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                peer = ClientPeer(self._listener.accept()[0])
                script = self._scripts[min(self.connections, len(self._scripts) - 1)]
                self.connections += 1
                self._peers.append(peer)
                self._run(self._serve, peer, script)

    def _serve(self, peer: ClientPeer, script: Script) -> None:
        try:
            script(peer)
        except (EOFError, OSError):
            pass  # the client closed the connection, or the test ended
        except BaseException as error:  # noqa: BLE001 - `__exit__` raises it
            self._errors.append(error)
        finally:
            peer.disconnect()


class _Link:
    """The two sockets of a relayed connection."""

    def __init__(self, client: socket.socket, broker: socket.socket) -> None:
        self.client, self.broker = client, broker
        for end in (client, broker):
            end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def cut(self) -> None:
        for end in (self.client, self.broker):
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)


class Relay:
    """Forwards connections to a broker, with faults on demand."""

    def __init__(
        self, broker: Reachable, *, strip_extensions: bool = False, piece_bytes: int = 1 << 18
    ) -> None:
        self._broker = broker
        self._strips_extensions = strip_extensions
        self._piece_bytes = piece_bytes
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self._links: list[_Link] = []
        self._threads: list[threading.Thread] = []
        self._may_pass_answers = threading.Event()
        self._may_pass_answers.set()
        # The operations of all forwarded requests, in order.
        self.operations: list[int] = []

    @property
    def token(self) -> str:
        return self._broker.token

    @property
    def endpoint(self) -> Endpoint:
        return Endpoint("127.0.0.1", self.port, token=self.token)

    @property
    def connections(self) -> int:
        return len(self._links)

    def __enter__(self) -> Self:
        self._run(self._accept)
        return self

    def __exit__(self, *_: object) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self.cut()
        self.release()
        for thread in self._threads:
            thread.join(TIMEOUT_S)
        for link in self._links:
            link.client.close()
            link.broker.close()

    def hold(self) -> None:
        """Holds answers back until `release`."""
        self._may_pass_answers.clear()

    def release(self) -> None:
        self._may_pass_answers.set()

    def cut(self) -> None:
        for link in self._links:
            link.cut()

    def _run(self, target: Callable[..., None], *arguments: Any) -> None:
        thread = threading.Thread(target=target, args=arguments, daemon=True)
        self._threads.append(thread)
        thread.start()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            try:
                broker = socket.create_connection(("127.0.0.1", self._broker.port), TIMEOUT_S)
            except OSError:
                client.close()
                continue
            broker.settimeout(None)
            link = _Link(client, broker)
            self._links.append(link)
            self._run(self._pass_requests, link)
            self._run(self._pass_answers, link)

    def _pass_requests(self, link: _Link) -> None:
        with _ending(link), link.client.makefile("rb") as reader:
            link.broker.sendall(reader.read(1))
            while header := reader.read(HEADER.size):
                length, operation = HEADER.unpack(header)
                body = reader.read(length - 1)
                if operation == Operation.Connect and self._strips_extensions:
                    body = _without_extensions(body)
                self.operations.append(operation)
                link.broker.sendall(encode_frame(operation, body))

    def _pass_answers(self, link: _Link) -> None:
        with _ending(link):
            while data := link.broker.recv(1 << 18):
                self._may_pass_answers.wait()
                for start in range(0, len(data), self._piece_bytes):
                    link.client.sendall(data[start : start + self._piece_bytes])


def _without_extensions(body: bytes) -> bytes:
    fields = cbor2.loads(body)
    fields.pop("penstockExtensions", None)
    return cbor2.dumps(fields)


@contextlib.contextmanager
def _ending(link: _Link) -> Iterator[None]:
    """Closes both sockets when one direction ends."""
    try:
        with contextlib.suppress(OSError, struct.error):
            yield
    finally:
        link.cut()


class Certificates(NamedTuple):
    """A certificate for 127.0.0.1 and localhost, its key, and the authority's certificate."""

    authority: Path
    certificate: Path
    key: Path

    def environment(self) -> dict[str, str]:
        return {
            "PENSTOCK_TLS_CERTIFICATE": str(self.certificate),
            "PENSTOCK_TLS_KEY": str(self.key),
        }

    def client_context(self) -> ssl.SSLContext:
        return ssl.create_default_context(cafile=self.authority)

    def server_context(self) -> ssl.SSLContext:
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        context.load_cert_chain(self.certificate, self.key)
        return context


# Strict verifiers require that an authority's certificate allows signing.
KEY_USAGE = x509.KeyUsage(
    digital_signature=True,
    content_commitment=False,
    key_encipherment=False,
    data_encipherment=False,
    key_agreement=False,
    key_cert_sign=True,
    crl_sign=True,
    encipher_only=False,
    decipher_only=False,
)


def make_certificates(directory: Path) -> Certificates:
    authority_key = ec.generate_private_key(ec.SECP256R1())
    authority_name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "penstock test authority")])
    authority = (
        _certificate(authority_name, authority_key)
        .issuer_name(authority_name)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(KEY_USAGE, critical=True)
        .add_extension(_key_identifier(authority_key), critical=False)
        .sign(authority_key, hashes.SHA256())
    )
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "penstock test")])
    names = [
        x509.IPAddress(ipaddress.ip_address("127.0.0.1")),
        x509.DNSName("localhost"),
    ]
    certificate = (
        _certificate(name, key)
        .issuer_name(authority_name)
        .add_extension(x509.SubjectAlternativeName(names), critical=False)
        .add_extension(
            x509.AuthorityKeyIdentifier.from_issuer_public_key(authority_key.public_key()),
            critical=False,
        )
        .sign(authority_key, hashes.SHA256())
    )
    made = Certificates(directory / "ca.crt", directory / "tls.crt", directory / "tls.key")
    made.authority.write_bytes(authority.public_bytes(serialization.Encoding.PEM))
    made.certificate.write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
    made.key.write_bytes(
        key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        )
    )
    return made


def _certificate(name: x509.Name, key: ec.EllipticCurvePrivateKey) -> x509.CertificateBuilder:
    now = dt.datetime.now(dt.UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - dt.timedelta(days=1))
        .not_valid_after(now + dt.timedelta(days=1))
    )


def _key_identifier(key: ec.EllipticCurvePrivateKey) -> x509.SubjectKeyIdentifier:
    return x509.SubjectKeyIdentifier.from_public_key(key.public_key())

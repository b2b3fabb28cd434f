"""Where a client looks for its server, in which order, and whom it tells the token."""

from __future__ import annotations

import datetime as dt
import fcntl
import ipaddress
import os
import socket
import ssl
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from penstock.client.endpoint import Endpoint, Search, explain
from penstock.discovery import LOCK_FILE, Address, write_address
from penstock.errors import SettingError
from tests.support import BrokerProcess, LocalBroker

HOST = "STREAM_MANAGER_SERVER_HOST"
PORT = "STREAM_MANAGER_SERVER_PORT"
TOKEN = "AWS_CONTAINER_AUTHORIZATION_TOKEN"


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A machine on which there is nothing: no broker, no configuration."""
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    (tmp_path / "work").mkdir()
    monkeypatch.chdir(tmp_path / "work")
    return tmp_path / "home"


@pytest.fixture
def machine_root(home: Path) -> Path:
    """The root that is looked at when nobody names one."""
    root = home / ".penstock"
    root.mkdir(parents=True)
    return root


@contextmanager
def served(root: Path, port: int = 4000, host: str = "127.0.0.1", **address: Any) -> Iterator[None]:
    """A root as a running broker has it."""
    write_address(root, Address(pid=os.getpid(), host=host, port=port, **address))
    (root / "token").write_text(f"token of {port}\n")
    descriptor = os.open(root / LOCK_FILE, os.O_RDWR | os.O_CREAT)
    fcntl.flock(descriptor, fcntl.LOCK_EX)
    os.pwrite(descriptor, f"{os.getpid()}\n".encode(), 0)
    yield
    os.close(descriptor)


def configure(text: str) -> Path:
    path = Path("penstock.toml")
    path.write_text(text)
    return path


def found(search: Search | None = None, /, **environment: str) -> Endpoint:
    return (search or Search()).find(environment)


def place(search: Search | None = None, /, **environment: str) -> str:
    return str(found(search, **environment))


def refusal(search: Search | None = None, /, **environment: str) -> str:
    with pytest.raises(SettingError) as caught:
        found(search, **environment)
    return str(caught.value)


# Where


def test_where_nothing_is_said_it_is_the_usual_port_of_this_machine() -> None:
    assert found() == Endpoint("127.0.0.1", 8088, None, None, "")


def test_what_is_passed_comes_first(machine_root: Path, tmp_path: Path) -> None:
    configure("[client]\nhost = 'configured'\nport = 1\nunix_socket = '/configured'\n")
    environment = {HOST: "variable", PORT: "2"}
    other = tmp_path / "other"
    other.mkdir()
    with served(machine_root), served(other, 5000):
        assert place(Search("passed", 3, root=other), **environment) == "passed:3"
        assert place(Search(unix_socket="/passed", root=other), **environment) == "unix:/passed"
        assert place(Search("passed", root=other), **environment) == "passed:2"
        assert place(Search(port=3, root=other), **environment) == "127.0.0.1:3"


def test_then_a_root_that_is_passed(machine_root: Path, tmp_path: Path) -> None:
    configure("[client]\nhost = 'configured'\n")
    other = tmp_path / "other"
    other.mkdir()
    with served(machine_root), served(other, 5000):
        endpoint = found(Search(root=other), **{HOST: "variable", PORT: "2"})

    assert (str(endpoint), endpoint.token) == ("127.0.0.1:5000", "token of 5000")


def test_then_the_environment(machine_root: Path) -> None:
    configure("[client]\nhost = 'configured'\nport = 1\n")
    with served(machine_root):
        assert place(**{HOST: "variable", PORT: "2"}) == "variable:2"
        # They belong together: the rest is not taken from somewhere else.
        assert place(**{HOST: "variable"}) == "variable:8088"
        assert place(**{PORT: "2"}) == "127.0.0.1:2"


def test_then_the_configuration(machine_root: Path) -> None:
    with served(machine_root):
        configure("[client]\nhost = 'configured'\nport = 1\n")
        assert place() == "configured:1"
        configure("[client]\nport = 1\n")
        assert place() == "127.0.0.1:1"
        configure("[client]\nhost = 'configured'\nunix_socket = '/configured'\n")
        assert place() == "unix:/configured"


def test_then_the_broker_of_this_machine(machine_root: Path) -> None:
    configure("[client]\ntoken = 't'\n")
    with served(machine_root):
        assert place() == "127.0.0.1:4000"
    assert place() == "127.0.0.1:8088"


@pytest.mark.parametrize("variable", ["STREAM_MANAGER_STORE_ROOT_DIR", "PENSTOCK_ROOT"])
def test_a_variable_names_the_root_of_this_machine(
    variable: str, machine_root: Path, tmp_path: Path
) -> None:
    other = tmp_path / "other"
    other.mkdir()
    with served(machine_root), served(other, 5000):
        assert place(**{variable: str(other)}) == "127.0.0.1:5000"
        assert place(**{variable: ""}) == "127.0.0.1:4000"


def test_the_configuration_names_the_root_of_this_machine(tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.mkdir()
    configure(f"root = '{other}'\n")
    with served(other, 5000):
        assert place() == "127.0.0.1:5000"


def test_another_configuration_may_be_named(tmp_path: Path) -> None:
    configure("[client]\nhost = 'here'\n")
    other = tmp_path / "other.toml"
    other.write_text("[client]\nhost = 'there'\n")

    assert place() == "here:8088"
    assert place(PENSTOCK_CONFIG=str(other)) == "there:8088"
    assert place(Search(config=other)) == "there:8088"
    assert place(Search(config=str(other)), PENSTOCK_CONFIG="/nowhere") == "there:8088"
    assert "does not exist" in refusal(Search(config="/nowhere"))


@pytest.mark.parametrize("empty", [{HOST: ""}, {PORT: ""}, {PORT: "0"}, {PORT: " "}])
def test_a_variable_that_says_nothing_is_not_set(empty: dict[str, str], machine_root: Path) -> None:
    with served(machine_root):
        assert place(**empty) == "127.0.0.1:4000"
    configure("[client]\nport = 1\n")
    assert place(**empty) == "127.0.0.1:1"


def test_a_port_may_have_spaces_around_it() -> None:
    assert place(**{PORT: " 9000\n"}) == "127.0.0.1:9000"


@pytest.mark.parametrize("port", ["x", "65536", "-1", "1.5", "²", "00"])
def test_a_variable_that_is_no_port_is_told_so(port: str) -> None:
    assert refusal(**{PORT: port}).startswith(f"{PORT} is ")
    assert refusal(**{PORT: port}).endswith(": expected a port, 1 to 65535")


def test_a_port_may_be_text() -> None:
    assert found(Search(port="8089")).port == 8089


@pytest.mark.parametrize("port", [0, -1, 65_536, 1.5, "x", "-1"])
def test_a_number_that_is_no_port_is_told_so(port: Any) -> None:
    assert refusal(Search(port=port)) == f"port is {port!r}: expected a port, 1 to 65535"


# A root that is named


def test_a_root_that_nobody_serves_is_no_reason_to_go_elsewhere(tmp_path: Path) -> None:
    for environment in ({}, {HOST: "variable", PORT: "2"}):
        with pytest.raises(ConnectionRefusedError, match=f"no stream manager serves {tmp_path}"):
            found(Search(root=tmp_path), **environment)


def test_a_broker_that_was_killed_is_not_asked(tmp_path: Path) -> None:
    with served(tmp_path):
        assert place(Search(root=tmp_path)) == "127.0.0.1:4000"

    assert (tmp_path / "broker.json").exists()
    with pytest.raises(ConnectionRefusedError):
        found(Search(root=tmp_path))
    # Nor is anybody told its token who has got its port.
    assert found(Search(port=4000, root=tmp_path)).token == ""


@pytest.mark.parametrize("text", ["", "{}", "nonsense", '{"pid":1,"host":5,"port":1}'])
def test_an_address_that_makes_no_sense_is_none(machine_root: Path, text: str) -> None:
    with served(machine_root):
        (machine_root / "broker.json").write_text(text)
        assert found() == Endpoint("127.0.0.1", 8088)


@pytest.mark.parametrize("root", ["/proc/nowhere", "/etc/hosts", "/dev/null"])
def test_a_root_that_is_none_is_not_served(root: str) -> None:
    with pytest.raises(ConnectionRefusedError):
        found(Search(root=root))


@pytest.mark.parametrize("variable", ["STREAM_MANAGER_STORE_ROOT_DIR", "PENSTOCK_ROOT"])
def test_nor_is_one_that_is_named_otherwise(variable: str, tmp_path: Path) -> None:
    for environment in ({variable: str(tmp_path)}, {}):
        with pytest.raises(ConnectionRefusedError, match=f"no stream manager serves {tmp_path}"):
            found(**environment)
        assert place(Search(port=4000), **environment) == "127.0.0.1:4000"
        configure(f"root = '{tmp_path}'\n")


def test_a_running_broker_is_found_by_its_root(tmp_path: Path) -> None:
    with LocalBroker(tmp_path / "root") as broker:
        endpoint = found(Search(root=tmp_path / "root"))

        root = tmp_path / "root"
        assert endpoint == Endpoint("127.0.0.1", broker.port, None, None, broker.token, root)


# The token


def test_the_token_is_the_one_that_is_passed_or_set_or_configured(machine_root: Path) -> None:
    with served(machine_root):
        assert found().token == "token of 4000"
        configure("[client]\ntoken = 'configured'\n")
        assert found().token == "configured"
        assert found(**{TOKEN: "variable"}).token == "variable"
        assert found(**{TOKEN: ""}).token == "configured"
        assert found(Search(token="passed"), **{TOKEN: "variable"}).token == "passed"
        # Passed and empty is said, too.
        assert found(Search(token=""), **{TOKEN: "variable"}).token == ""


@pytest.mark.parametrize(
    "search",
    [
        Search("127.0.0.1", 4000),
        Search("localhost", 4000),
        Search(port=4000),
        Search(port=4001),
        Search("localhost", 4001),
        Search(unix_socket="/run/broker.sock"),
    ],
)
def test_the_token_of_a_root_is_for_the_broker_that_serves_it(
    search: Search, machine_root: Path
) -> None:
    with served(machine_root, 4000, local_port=4001, unix_socket="/run/broker.sock"):
        assert found(search).token == "token of 4000"


@pytest.mark.parametrize(
    "search",
    [
        Search("192.0.2.1", 4000),
        Search("example.org", 4000),
        Search("::1", 4000),
        Search("127.0.0.1", 4002),
        Search("192.0.2.1", 4001),
        Search("127.0.0.1"),
        Search(unix_socket="/run/other.sock"),
    ],
)
def test_nobody_else_is_told_the_token_of_a_root(search: Search, machine_root: Path) -> None:
    with served(machine_root, 4000, local_port=4001, unix_socket="/run/broker.sock"):
        assert found(search).token == ""
        assert found(search._replace(root=machine_root)).token == ""


def test_nobody_else_is_told_it_because_of_a_variable_or_a_file(machine_root: Path) -> None:
    with served(machine_root):
        assert found(**{HOST: "127.0.0.1", PORT: "4000"}).token == "token of 4000"
        assert found(**{HOST: "example.org", PORT: "4000"}).token == ""
        configure("[client]\nhost = 'example.org'\nport = 4000\n")
        assert found().token == ""


@pytest.mark.parametrize(
    ("listens_on", "host", "is_its"),
    [
        ("0.0.0.0", "127.0.0.1", True),
        ("0.0.0.0", "192.0.2.1", False),
        ("localhost", "127.0.0.1", True),
        ("localhost", "localhost", True),
        ("::1", "::1", True),
        ("::1", "127.0.0.1", False),
        ("192.0.2.1", "192.0.2.1", True),
        ("192.0.2.1", "127.0.0.1", False),
    ],
)
def test_a_broker_is_known_by_where_it_listens(
    listens_on: str, host: str, is_its: bool, machine_root: Path
) -> None:
    with served(machine_root, host=listens_on):
        assert bool(found(Search(host, 4000)).token) is is_its


def test_a_socket_is_known_by_a_relative_path_too(machine_root: Path) -> None:
    path = Path("broker.sock").absolute()
    with served(machine_root, unix_socket=str(path)):
        assert found(Search(unix_socket="broker.sock")).token == "token of 4000"


@pytest.mark.parametrize("token", [None, b"\xff\xfe"])
def test_a_token_that_cannot_be_read_is_none(machine_root: Path, token: bytes | None) -> None:
    with served(machine_root):
        (machine_root / "token").unlink()
        if token is None:
            # A directory cannot be read either, and not even by an administrator.
            (machine_root / "token").mkdir()
        else:
            (machine_root / "token").write_bytes(token)

        assert found() == Endpoint("127.0.0.1", 4000, root=machine_root)


# The table [client]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("hots = 'h'", "there is no setting client.hots; did you mean host?"),
        ("unixsocket = 'h'", "there is no setting client.unixsocket; did you mean unix_socket?"),
        ("colour = 'h'", "there is no setting client.colour"),
        ("port = 'x'\nprot = 1", "there is no setting client.prot; did you mean port?"),
    ],
)
def test_an_unknown_setting_is_told_with_the_nearest_one(text: str, message: str) -> None:
    path = configure(f"[client]\n{text}\n")

    assert refusal() == f"{path}: {message}"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("port = 0", "client.port in penstock.toml is 0: expected int >= 1"),
        ("port = 65536", "client.port in penstock.toml is 65536: expected int <= 65535"),
        (
            "port = '1'",
            "client.port in penstock.toml is '1': expected a whole number, unquoted",
        ),
        ("host = 5", "client.host in penstock.toml is 5: expected str | null, got int"),
    ],
)
def test_a_setting_that_cannot_be_is_told_so(text: str, message: str) -> None:
    configure(f"[client]\n{text}\n")

    assert refusal() == message


def test_what_is_no_table_is_told_so() -> None:
    configure("client = 5\n")

    assert refusal() == "client in penstock.toml is 5: expected object, got int"


def test_settings_of_the_broker_are_not_the_client_s() -> None:
    configure("port = 1\nhost = 'h'\ntls_key = '/nowhere'\nunix_socket = '/s'\n")

    assert found() == Endpoint("127.0.0.1", 8088)


# TLS


class Certificates:
    """Files with the certificate of a broker: alone, behind it the one that signed it, and none."""

    def __init__(self, directory: Path) -> None:
        authority_key = ec.generate_private_key(ec.SECP256R1())
        authority = self._sign("authority", authority_key.public_key(), "authority", authority_key)
        key = ec.generate_private_key(ec.SECP256R1())
        own = self._sign("broker", key.public_key(), "authority", authority_key)
        other_key = ec.generate_private_key(ec.SECP256R1())
        other = self._sign("other", other_key.public_key(), "authority", authority_key)
        self.chain = directory / "chain.pem"
        self.chain.write_bytes(own + authority)
        self.authority = directory / "authority.pem"
        self.authority.write_bytes(authority)
        self.broken = directory / "broken.pem"
        self.broken.write_text("no certificate")
        self.broker_files = self._files(directory, "broker", own + authority, key)
        self.other_files = self._files(directory, "other", other + authority, other_key)

    @staticmethod
    def _sign(
        subject: str,
        key: ec.EllipticCurvePublicKey,
        issuer: str,
        issuer_key: ec.EllipticCurvePrivateKey,
    ) -> bytes:
        now = dt.datetime.now(dt.UTC)
        names = [
            x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)]) for name in (subject, issuer)
        ]
        builder = (
            x509.CertificateBuilder()
            .subject_name(names[0])
            .issuer_name(names[1])
            .public_key(key)
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - dt.timedelta(days=1))
            .not_valid_after(now + dt.timedelta(days=1))
            .add_extension(x509.BasicConstraints(subject == issuer, None), critical=True)
        )
        if subject != issuer:
            address = x509.IPAddress(ipaddress.ip_address("127.0.0.1"))
            builder = builder.add_extension(x509.SubjectAlternativeName([address]), critical=False)
        return builder.sign(issuer_key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM)

    @staticmethod
    def _files(
        directory: Path, name: str, certificate: bytes, key: ec.EllipticCurvePrivateKey
    ) -> tuple[Path, Path]:
        paths = directory / f"{name}.crt", directory / f"{name}.key"
        paths[0].write_bytes(certificate)
        paths[1].write_bytes(
            key.private_bytes(
                serialization.Encoding.PEM,
                serialization.PrivateFormat.PKCS8,
                serialization.NoEncryption(),
            )
        )
        return paths


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    return Certificates(tmp_path_factory.mktemp("tls"))


def shakes_hands(client: ssl.SSLContext, certificate: tuple[Path, Path], name: str) -> bool:
    """Whether a client with this context trusts a server with that certificate."""
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server.load_cert_chain(*certificate)
    to_client, to_server = ssl.MemoryBIO(), ssl.MemoryBIO()
    ends = [
        client.wrap_bio(to_client, to_server, server_hostname=name),
        server.wrap_bio(to_server, to_client, server_side=True),
    ]
    while ends:
        for end in tuple(ends):
            try:
                end.do_handshake()
                ends.remove(end)
            except ssl.SSLWantReadError:
                pass
            except ssl.SSLCertVerificationError:
                return False
    return True


def test_a_context_is_taken_as_it_is() -> None:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)

    assert found(Search(tls=context)).tls is context


def test_true_trusts_whom_the_system_trusts(certificates: Certificates) -> None:
    context = found(Search("example.org", tls=True)).tls

    assert context is not None
    assert (context.verify_mode, context.check_hostname) == (ssl.CERT_REQUIRED, True)
    assert not shakes_hands(context, certificates.broker_files, "127.0.0.1")


@pytest.mark.parametrize("how", ["passed", "passed as text", "variable", "configured"])
def test_a_file_says_whom_else_to_trust(how: str, certificates: Certificates) -> None:
    file = certificates.authority
    environment = {"PENSTOCK_TLS_CA": str(file)} if how == "variable" else {}
    if how == "configured":
        configure(f"[client]\ntls_ca = '{file}'\n")
    passed: dict[str, Path | str] = {"passed": file, "passed as text": str(file)}

    context = found(Search(tls=passed.get(how)), **environment).tls

    assert context is not None
    assert shakes_hands(context, certificates.broker_files, "127.0.0.1")
    assert not shakes_hands(context, certificates.broker_files, "example.org")


def test_what_is_passed_decides_whether_there_is_tls(certificates: Certificates) -> None:
    environment = {"PENSTOCK_TLS_CA": str(certificates.authority)}

    assert found(Search(tls=False), **environment).tls is None
    assert found(PENSTOCK_TLS_CA="").tls is None


@pytest.mark.parametrize("name", ["broken", "missing", "directory"])
def test_a_file_without_certificates_is_told_so(name: str, certificates: Certificates) -> None:
    path = {"broken": certificates.broken, "directory": certificates.broken.parent}.get(
        name, Path("missing.pem")
    )

    assert refusal(Search(tls=path)).startswith(f"{path} is not a PEM file with certificates: ")


def test_the_broker_of_this_machine_is_known_by_its_certificate(
    machine_root: Path, certificates: Certificates
) -> None:
    own, other = certificates.broker_files, certificates.other_files
    with served(machine_root, host="0.0.0.0", tls=True, tls_certificate=str(own[0])):
        endpoint = found()
        elsewhere = found(Search("192.0.2.1", 4000))

    assert str(endpoint) == "127.0.0.1:4000"
    assert endpoint.tls is not None
    # By any name, and nobody else: not even whom the same authority signed.
    assert shakes_hands(endpoint.tls, own, "whatever")
    assert not shakes_hands(endpoint.tls, other, "127.0.0.1")
    assert elsewhere.tls is None


def test_without_its_certificate_it_is_trusted_like_any_other(
    machine_root: Path, certificates: Certificates
) -> None:
    for file in (None, "/nowhere", str(certificates.broken)):
        with served(machine_root, tls=True, tls_certificate=file):
            context = found().tls

        assert context is not None
        assert context.check_hostname
        assert not shakes_hands(context, certificates.broker_files, "127.0.0.1")


def test_a_plain_way_to_the_broker_of_this_machine_is_taken(machine_root: Path) -> None:
    with served(machine_root, tls=True, local_port=4001, unix_socket="/s"):
        token = "token of 4000"
        assert found() == Endpoint("127.0.0.1", 4001, token=token, root=machine_root)
    with served(machine_root, tls=True, unix_socket="/s"):
        assert found() == Endpoint("", 0, "/s", token=token, root=machine_root)


def test_unless_tls_is_wanted(machine_root: Path, certificates: Certificates) -> None:
    variable = {"PENSTOCK_TLS_CA": str(certificates.authority)}
    with served(machine_root, tls=True, local_port=4001, unix_socket="/s"):
        for endpoint in (found(Search(tls=True)), found(**variable)):
            assert str(endpoint) == "127.0.0.1:4000"
            assert endpoint.tls is not None
            assert endpoint.token == "token of 4000"


def test_a_unix_socket_has_no_tls(certificates: Certificates) -> None:
    endpoint = found(
        Search(unix_socket="/s", tls=True), PENSTOCK_TLS_CA=str(certificates.authority)
    )

    assert endpoint == Endpoint("", 0, "/s")


def test_a_broker_with_tls_is_found_by_its_root(tmp_path: Path, certificates: Certificates) -> None:
    certificate, key = certificates.broker_files
    with BrokerProcess(
        tmp_path / "root", PENSTOCK_TLS_CERTIFICATE=str(certificate), PENSTOCK_TLS_KEY=str(key)
    ) as broker:
        endpoint = found(Search(root=broker.root))

        assert endpoint.tls is not None
        with (
            socket.create_connection((endpoint.host, endpoint.port)) as plain,
            endpoint.tls.wrap_socket(plain) as connection,
        ):
            assert connection.version()


# What is said when nobody answers

THERE = Endpoint("somewhere", 1)


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (ConnectionRefusedError(111, "Connection refused"), "Connection refused"),
        # As the event loop has it.
        (ConnectionRefusedError(111, "Connect call failed ('h', 1)"), "Connection refused"),
        (ConnectionResetError(), "ConnectionResetError"),
        (ConnectionAbortedError("it ends"), "it ends"),
        (socket.gaierror(-2, "Name or service not known"), "Name or service not known"),
        (FileNotFoundError(2, "No such file or directory"), "No such file or directory"),
        (OSError("Multiple exceptions: a, b"), "Multiple exceptions: a, b"),
    ],
)
def test_an_error_says_who_does_not_answer(error: OSError, reason: str) -> None:
    told = explain(error, THERE)

    assert isinstance(told, ConnectionError)
    assert isinstance(told, ConnectionRefusedError) == isinstance(error, ConnectionRefusedError)
    assert str(told) == f"no stream manager answers on somewhere:1: {reason}"


def test_an_error_names_a_socket_by_its_path() -> None:
    told = explain(FileNotFoundError(2, "No such file or directory"), Endpoint("", 0, "/s"))

    assert str(told) == "no stream manager answers on unix:/s: No such file or directory"


def test_time_that_is_up_is_told_so() -> None:
    for error in (TimeoutError(), TimeoutError(110, "Connection timed out")):
        told = explain(error, THERE)

        assert isinstance(told, TimeoutError)
        assert str(told) == "no stream manager answers on somewhere:1: the time is up"


def test_a_certificate_that_is_not_trusted_is_told_so() -> None:
    error = ssl.SSLCertVerificationError(1, "certificate verify failed: self-signed certificate")

    told = explain(error, THERE)

    assert type(told) is ConnectionError
    assert str(told) == (
        "no secure connection to somewhere:1: certificate verify failed: self-signed certificate"
    )

"""How a client finds its server, its token and its TLS settings."""

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

from penstock.client.endpoint import Endpoint, EndpointOptions, connect_error
from penstock.discovery import LOCK_FILE, Address, write_address
from penstock.errors import SettingError
from tests.client.servers import KEY_USAGE
from tests.support import BrokerProcess, LocalBroker

HOST = "STREAM_MANAGER_SERVER_HOST"
PORT = "STREAM_MANAGER_SERVER_PORT"
TOKEN = "AWS_CONTAINER_AUTHORIZATION_TOKEN"


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The home directory of a machine without a broker and without a configuration."""
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    (tmp_path / "work").mkdir()
    monkeypatch.chdir(tmp_path / "work")
    return tmp_path / "home"


@pytest.fixture
def machine_root(home: Path) -> Path:
    """The default root."""
    root = home / ".penstock"
    root.mkdir(parents=True)
    return root


@contextmanager
def serving_root(
    root: Path, port: int = 4000, host: str = "127.0.0.1", **address: Any
) -> Iterator[None]:
    """Makes a root look like that of a running broker."""
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


def found(options: EndpointOptions | None = None, /, **environment: str) -> Endpoint:
    return (options or EndpointOptions()).find(environment)


def address_of(options: EndpointOptions | None = None, /, **environment: str) -> str:
    return str(found(options, **environment))


def setting_error(options: EndpointOptions | None = None, /, **environment: str) -> str:
    with pytest.raises(SettingError) as caught:
        found(options, **environment)
    return str(caught.value)


# The address


def test_default_is_the_usual_local_port() -> None:
    assert found() == Endpoint("127.0.0.1", 8088, None, None, "")


def test_passed_address_comes_first(machine_root: Path, tmp_path: Path) -> None:
    configure("[client]\nhost = 'configured'\nport = 1\nunix_socket = '/configured'\n")
    environment = {HOST: "variable", PORT: "2"}
    other = tmp_path / "other"
    other.mkdir()
    with serving_root(machine_root), serving_root(other, 5000):
        assert address_of(EndpointOptions("passed", 3, root=other), **environment) == "passed:3"
        assert (
            address_of(EndpointOptions(unix_socket="/passed", root=other), **environment)
            == "unix:/passed"
        )
        assert address_of(EndpointOptions("passed", root=other), **environment) == "passed:2"
        assert address_of(EndpointOptions(port=3, root=other), **environment) == "127.0.0.1:3"


def test_passed_root_comes_second(machine_root: Path, tmp_path: Path) -> None:
    configure("[client]\nhost = 'configured'\n")
    other = tmp_path / "other"
    other.mkdir()
    with serving_root(machine_root), serving_root(other, 5000):
        endpoint = found(EndpointOptions(root=other), **{HOST: "variable", PORT: "2"})

    assert (str(endpoint), endpoint.token) == ("127.0.0.1:5000", "token of 5000")


def test_environment_comes_third(machine_root: Path) -> None:
    configure("[client]\nhost = 'configured'\nport = 1\n")
    with serving_root(machine_root):
        assert address_of(**{HOST: "variable", PORT: "2"}) == "variable:2"
        # Host and port belong together: a missing one gets its default.
        assert address_of(**{HOST: "variable"}) == "variable:8088"
        assert address_of(**{PORT: "2"}) == "127.0.0.1:2"


def test_configuration_comes_fourth(machine_root: Path) -> None:
    with serving_root(machine_root):
        configure("[client]\nhost = 'configured'\nport = 1\n")
        assert address_of() == "configured:1"
        configure("[client]\nport = 1\n")
        assert address_of() == "127.0.0.1:1"
        configure("[client]\nhost = 'configured'\nunix_socket = '/configured'\n")
        assert address_of() == "unix:/configured"


def test_broker_of_this_machine_comes_last(machine_root: Path) -> None:
    configure("[client]\ntoken = 't'\n")
    with serving_root(machine_root):
        assert address_of() == "127.0.0.1:4000"
    assert address_of() == "127.0.0.1:8088"


@pytest.mark.parametrize("variable", ["STREAM_MANAGER_STORE_ROOT_DIR", "PENSTOCK_ROOT"])
def test_variable_sets_the_root(variable: str, machine_root: Path, tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.mkdir()
    with serving_root(machine_root), serving_root(other, 5000):
        assert address_of(**{variable: str(other)}) == "127.0.0.1:5000"
        assert address_of(**{variable: ""}) == "127.0.0.1:4000"


def test_configuration_sets_the_root(tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.mkdir()
    configure(f"root = '{other}'\n")
    with serving_root(other, 5000):
        assert address_of() == "127.0.0.1:5000"


def test_configuration_file_can_be_passed(tmp_path: Path) -> None:
    configure("[client]\nhost = 'here'\n")
    other = tmp_path / "other.toml"
    other.write_text("[client]\nhost = 'there'\n")

    assert address_of() == "here:8088"
    assert address_of(PENSTOCK_CONFIG=str(other)) == "there:8088"
    assert address_of(EndpointOptions(config=other)) == "there:8088"
    assert (
        address_of(EndpointOptions(config=str(other)), PENSTOCK_CONFIG="/nowhere") == "there:8088"
    )
    assert "does not exist" in setting_error(EndpointOptions(config="/nowhere"))


@pytest.mark.parametrize("empty", [{HOST: ""}, {PORT: ""}, {PORT: "0"}, {PORT: " "}])
def test_empty_variable_counts_as_not_set(empty: dict[str, str], machine_root: Path) -> None:
    with serving_root(machine_root):
        assert address_of(**empty) == "127.0.0.1:4000"
    configure("[client]\nport = 1\n")
    assert address_of(**empty) == "127.0.0.1:1"


def test_port_may_have_surrounding_spaces() -> None:
    assert address_of(**{PORT: " 9000\n"}) == "127.0.0.1:9000"


@pytest.mark.parametrize("port", ["x", "65536", "-1", "1.5", "²", "00"])
def test_invalid_port_variable_is_rejected(port: str) -> None:
    assert setting_error(**{PORT: port}).startswith(f"{PORT} is ")
    assert setting_error(**{PORT: port}).endswith(": expected a port, 1 to 65535")


def test_port_may_be_a_string() -> None:
    assert found(EndpointOptions(port="8089")).port == 8089


@pytest.mark.parametrize("port", [0, -1, 65_536, 1.5, "x", "-1"])
def test_invalid_port_is_rejected(port: Any) -> None:
    assert (
        setting_error(EndpointOptions(port=port))
        == f"port is {port!r}: expected a port, 1 to 65535"
    )


# A configured root


def test_unserved_root_falls_back_to_no_other_broker(tmp_path: Path) -> None:
    for environment in ({}, {HOST: "variable", PORT: "2"}):
        with pytest.raises(ConnectionRefusedError, match=f"no stream manager serves {tmp_path}"):
            found(EndpointOptions(root=tmp_path), **environment)


def test_address_of_a_killed_broker_is_ignored(tmp_path: Path) -> None:
    with serving_root(tmp_path):
        assert address_of(EndpointOptions(root=tmp_path)) == "127.0.0.1:4000"

    assert (tmp_path / "broker.json").exists()
    with pytest.raises(ConnectionRefusedError):
        found(EndpointOptions(root=tmp_path))
    # The token is not sent to another server on the same port.
    assert found(EndpointOptions(port=4000, root=tmp_path)).token == ""


@pytest.mark.parametrize("text", ["", "{}", "nonsense", '{"pid":1,"host":5,"port":1}'])
def test_invalid_address_file_is_ignored(machine_root: Path, text: str) -> None:
    with serving_root(machine_root):
        (machine_root / "broker.json").write_text(text)
        assert found() == Endpoint("127.0.0.1", 8088)


@pytest.mark.parametrize("root", ["/proc/nowhere", "/etc/hosts", "/dev/null"])
def test_path_that_is_not_a_root_is_not_served(root: str) -> None:
    with pytest.raises(ConnectionRefusedError):
        found(EndpointOptions(root=root))


@pytest.mark.parametrize("variable", ["STREAM_MANAGER_STORE_ROOT_DIR", "PENSTOCK_ROOT"])
def test_unserved_root_of_a_variable_or_file_is_an_error(variable: str, tmp_path: Path) -> None:
    for environment in ({variable: str(tmp_path)}, {}):
        with pytest.raises(ConnectionRefusedError, match=f"no stream manager serves {tmp_path}"):
            found(**environment)
        assert address_of(EndpointOptions(port=4000), **environment) == "127.0.0.1:4000"
        configure(f"root = '{tmp_path}'\n")


def test_running_broker_is_found_by_its_root(tmp_path: Path) -> None:
    with LocalBroker(tmp_path / "root") as broker:
        endpoint = found(EndpointOptions(root=tmp_path / "root"))

        root = tmp_path / "root"
        assert endpoint == Endpoint("127.0.0.1", broker.port, None, None, broker.token, root)


# The token


def test_token_is_passed_then_of_the_environment_then_configured(machine_root: Path) -> None:
    with serving_root(machine_root):
        assert found().token == "token of 4000"
        configure("[client]\ntoken = 'configured'\n")
        assert found().token == "configured"
        assert found(**{TOKEN: "variable"}).token == "variable"
        assert found(**{TOKEN: ""}).token == "configured"
        assert found(EndpointOptions(token="passed"), **{TOKEN: "variable"}).token == "passed"
        # An empty token counts as passed.
        assert found(EndpointOptions(token=""), **{TOKEN: "variable"}).token == ""


@pytest.mark.parametrize(
    "options",
    [
        EndpointOptions("127.0.0.1", 4000),
        EndpointOptions("localhost", 4000),
        EndpointOptions(port=4000),
        EndpointOptions(port=4001),
        EndpointOptions("localhost", 4001),
        EndpointOptions(unix_socket="/run/broker.sock"),
    ],
)
def test_token_of_a_root_is_sent_to_its_broker(
    options: EndpointOptions, machine_root: Path
) -> None:
    with serving_root(machine_root, 4000, local_port=4001, unix_socket="/run/broker.sock"):
        assert found(options).token == "token of 4000"


@pytest.mark.parametrize(
    "options",
    [
        EndpointOptions("192.0.2.1", 4000),
        EndpointOptions("example.org", 4000),
        EndpointOptions("::1", 4000),
        EndpointOptions("127.0.0.1", 4002),
        EndpointOptions("192.0.2.1", 4001),
        EndpointOptions("127.0.0.1"),
        EndpointOptions(unix_socket="/run/other.sock"),
    ],
)
def test_token_of_a_root_is_not_sent_to_other_servers(
    options: EndpointOptions, machine_root: Path
) -> None:
    with serving_root(machine_root, 4000, local_port=4001, unix_socket="/run/broker.sock"):
        assert found(options).token == ""
        assert found(options._replace(root=machine_root)).token == ""


def test_token_of_a_root_is_not_sent_to_a_configured_server(machine_root: Path) -> None:
    with serving_root(machine_root):
        assert found(**{HOST: "127.0.0.1", PORT: "4000"}).token == "token of 4000"
        assert found(**{HOST: "example.org", PORT: "4000"}).token == ""
        configure("[client]\nhost = 'example.org'\nport = 4000\n")
        assert found().token == ""


@pytest.mark.parametrize(
    ("listens_on", "host", "is_local"),
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
def test_local_broker_is_recognized_by_its_listen_address(
    listens_on: str, host: str, is_local: bool, machine_root: Path
) -> None:
    with serving_root(machine_root, host=listens_on):
        assert bool(found(EndpointOptions(host, 4000)).token) is is_local


def test_relative_socket_path_is_recognized(machine_root: Path) -> None:
    path = Path("broker.sock").absolute()
    with serving_root(machine_root, unix_socket=str(path)):
        assert found(EndpointOptions(unix_socket="broker.sock")).token == "token of 4000"


@pytest.mark.parametrize("token", [None, b"\xff\xfe"])
def test_unreadable_token_counts_as_empty(machine_root: Path, token: bytes | None) -> None:
    with serving_root(machine_root):
        (machine_root / "token").unlink()
        if token is None:
            # Not even root can read a directory as a file.
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
        ("color = 'h'", "there is no setting client.color"),
        ("port = 'x'\nprot = 1", "there is no setting client.prot; did you mean port?"),
    ],
)
def test_unknown_setting_suggests_the_nearest_one(text: str, message: str) -> None:
    path = configure(f"[client]\n{text}\n")

    assert setting_error() == f"{path}: {message}"


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
def test_invalid_setting_is_rejected(text: str, message: str) -> None:
    configure(f"[client]\n{text}\n")

    assert setting_error() == message


def test_client_setting_that_is_not_a_table_is_rejected() -> None:
    configure("client = 5\n")

    assert setting_error() == "client in penstock.toml is 5: expected object, got int"


def test_broker_settings_do_not_apply_to_clients() -> None:
    configure("port = 1\nhost = 'h'\ntls_key = '/nowhere'\nunix_socket = '/s'\n")

    assert found() == Endpoint("127.0.0.1", 8088)


# TLS


class CertificateChain:
    """Files with a broker's certificate, its authority's, both, and an invalid one."""

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
            authority = x509.AuthorityKeyIdentifier.from_issuer_public_key(issuer_key.public_key())
            builder = builder.add_extension(x509.SubjectAlternativeName([address]), critical=False)
            # Python 3.13 and newer refuse a certificate that does not name its issuer's key.
            builder = builder.add_extension(authority, critical=False)
        else:
            builder = builder.add_extension(
                x509.SubjectKeyIdentifier.from_public_key(key), critical=False
            ).add_extension(KEY_USAGE, critical=True)
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
def certificates(tmp_path_factory: pytest.TempPathFactory) -> CertificateChain:
    return CertificateChain(tmp_path_factory.mktemp("tls"))


def handshake_succeeds(client: ssl.SSLContext, certificate: tuple[Path, Path], name: str) -> bool:
    """Whether a client with this context trusts a server with this certificate."""
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


def test_passed_context_is_used_unchanged() -> None:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)

    assert found(EndpointOptions(tls=context)).tls is context


def test_tls_true_uses_the_system_certificates(certificates: CertificateChain) -> None:
    context = found(EndpointOptions("example.org", tls=True)).tls

    assert context is not None
    assert (context.verify_mode, context.check_hostname) == (ssl.CERT_REQUIRED, True)
    assert not handshake_succeeds(context, certificates.broker_files, "127.0.0.1")


@pytest.mark.parametrize("how", ["passed", "passed as text", "variable", "configured"])
def test_tls_file_adds_trusted_certificates(how: str, certificates: CertificateChain) -> None:
    file = certificates.authority
    environment = {"PENSTOCK_TLS_CA": str(file)} if how == "variable" else {}
    if how == "configured":
        configure(f"[client]\ntls_ca = '{file}'\n")
    passed: dict[str, Path | str] = {"passed": file, "passed as text": str(file)}

    context = found(EndpointOptions(tls=passed.get(how)), **environment).tls

    assert context is not None
    assert handshake_succeeds(context, certificates.broker_files, "127.0.0.1")
    assert not handshake_succeeds(context, certificates.broker_files, "example.org")


def test_passed_tls_option_overrides_the_environment(certificates: CertificateChain) -> None:
    environment = {"PENSTOCK_TLS_CA": str(certificates.authority)}

    assert found(EndpointOptions(tls=False), **environment).tls is None
    assert found(PENSTOCK_TLS_CA="").tls is None


@pytest.mark.parametrize("name", ["broken", "missing", "directory"])
def test_file_without_certificates_is_rejected(name: str, certificates: CertificateChain) -> None:
    path = {"broken": certificates.broken, "directory": certificates.broken.parent}.get(
        name, Path("missing.pem")
    )

    assert setting_error(EndpointOptions(tls=path)).startswith(
        f"{path} is not a PEM file with certificates: "
    )


def test_certificate_of_the_local_broker_is_pinned(
    machine_root: Path, certificates: CertificateChain
) -> None:
    own, other = certificates.broker_files, certificates.other_files
    with serving_root(machine_root, host="0.0.0.0", tls=True, tls_certificate=str(own[0])):
        endpoint = found()
        elsewhere = found(EndpointOptions("192.0.2.1", 4000))

    assert str(endpoint) == "127.0.0.1:4000"
    assert endpoint.tls is not None
    # Under any host name, but no other certificate, even of the same authority.
    assert handshake_succeeds(endpoint.tls, own, "any.example")
    assert not handshake_succeeds(endpoint.tls, other, "127.0.0.1")
    assert elsewhere.tls is None


def test_local_broker_without_a_readable_certificate_is_verified_normally(
    machine_root: Path, certificates: CertificateChain
) -> None:
    for file in (None, "/nowhere", str(certificates.broken)):
        with serving_root(machine_root, tls=True, tls_certificate=file):
            context = found().tls

        assert context is not None
        assert context.check_hostname
        assert not handshake_succeeds(context, certificates.broker_files, "127.0.0.1")


def test_local_listener_without_tls_is_preferred(machine_root: Path) -> None:
    with serving_root(machine_root, tls=True, local_port=4001, unix_socket="/s"):
        token = "token of 4000"
        assert found() == Endpoint("127.0.0.1", 4001, token=token, root=machine_root)
    with serving_root(machine_root, tls=True, unix_socket="/s"):
        assert found() == Endpoint("", 0, "/s", token=token, root=machine_root)


def test_requested_tls_skips_the_local_listener_without_tls(
    machine_root: Path, certificates: CertificateChain
) -> None:
    variable = {"PENSTOCK_TLS_CA": str(certificates.authority)}
    with serving_root(machine_root, tls=True, local_port=4001, unix_socket="/s"):
        for endpoint in (found(EndpointOptions(tls=True)), found(**variable)):
            assert str(endpoint) == "127.0.0.1:4000"
            assert endpoint.tls is not None
            assert endpoint.token == "token of 4000"


def test_unix_socket_uses_no_tls(certificates: CertificateChain) -> None:
    endpoint = found(
        EndpointOptions(unix_socket="/s", tls=True), PENSTOCK_TLS_CA=str(certificates.authority)
    )

    assert endpoint == Endpoint("", 0, "/s")


def test_tls_broker_is_found_by_its_root(tmp_path: Path, certificates: CertificateChain) -> None:
    certificate, key = certificates.broker_files
    with BrokerProcess(
        tmp_path / "root", PENSTOCK_TLS_CERTIFICATE=str(certificate), PENSTOCK_TLS_KEY=str(key)
    ) as broker:
        endpoint = found(EndpointOptions(root=broker.root))

        assert endpoint.tls is not None
        with (
            socket.create_connection((endpoint.host, endpoint.port)) as plain,
            endpoint.tls.wrap_socket(plain) as connection,
        ):
            assert connection.version()


# Connect errors

ENDPOINT = Endpoint("somewhere", 1)


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (ConnectionRefusedError(111, "Connection refused"), "Connection refused"),
        # The text of asyncio.
        (ConnectionRefusedError(111, "Connect call failed ('h', 1)"), "Connection refused"),
        (ConnectionResetError(), "ConnectionResetError"),
        (ConnectionAbortedError("it ends"), "it ends"),
        (socket.gaierror(-2, "Name or service not known"), "Name or service not known"),
        (FileNotFoundError(2, "No such file or directory"), "No such file or directory"),
        (OSError("Multiple exceptions: a, b"), "Multiple exceptions: a, b"),
    ],
)
def test_connect_error_names_the_endpoint_and_the_reason(error: OSError, reason: str) -> None:
    converted = connect_error(error, ENDPOINT)

    assert isinstance(converted, ConnectionError)
    assert isinstance(converted, ConnectionRefusedError) == isinstance(
        error, ConnectionRefusedError
    )
    assert str(converted) == f"no stream manager answers on somewhere:1: {reason}"


def test_connect_error_names_a_unix_socket_by_its_path() -> None:
    converted = connect_error(
        FileNotFoundError(2, "No such file or directory"), Endpoint("", 0, "/s")
    )

    assert str(converted) == "no stream manager answers on unix:/s: No such file or directory"


def test_timeout_stays_a_timeout_error() -> None:
    for error in (TimeoutError(), TimeoutError(110, "Connection timed out")):
        converted = connect_error(error, ENDPOINT)

        assert isinstance(converted, TimeoutError)
        assert str(converted) == "no stream manager answers on somewhere:1: timed out"


def test_untrusted_certificate_is_a_connection_error() -> None:
    error = ssl.SSLCertVerificationError(1, "certificate verify failed: self-signed certificate")

    converted = connect_error(error, ENDPOINT)

    assert type(converted) is ConnectionError
    assert str(converted) == (
        "TLS connection to somewhere:1 failed: certificate verify failed: self-signed certificate"
    )

"""`penstock doctor`: what it finds on machines that are well, and on those that are not."""

from __future__ import annotations

import datetime as dt
import json
import os
import socket
import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from penstock.cli.doctor import (
    MACHINE_CHECKS,
    SETTINGS_CHECKS,
    Route,
    State,
    find_credentials,
    find_java,
    java_version,
    judge_descriptors,
    judge_space,
    plan_routes,
    satisfies,
)
from penstock.model import (
    ExportDefinition,
    HTTPConfig,
    IoTAnalyticsConfig,
    IoTSiteWiseConfig,
    KinesisConfig,
    MessageStreamDefinition,
    S3ExportTaskExecutorConfig,
    StrategyOnFull,
)
from tests.support import BrokerProcess, create

from .command import Finished, penstock

Found = dict[str, Any]


class Report:
    """What the doctor said, by the names of its checks."""

    def __init__(self, finished: Finished) -> None:
        self.code = finished.code
        self.checks: list[Found] = json.loads(finished.output)
        assert finished.error == ""

    def __getitem__(self, name: str) -> Found:
        (check,) = [check for check in self.checks if check["name"] == name]
        return check

    def state(self, name: str) -> str:
        return str(self[name]["state"])

    @property
    def failed(self) -> list[str]:
        return [check["name"] for check in self.checks if check["state"] == "fail"]


def examine(root: Path, *words: str, **variables: Any) -> Report:
    # Nobody listens there, unless the broker of the root does.
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        port = str(unused.getsockname()[1])
    variables = {"STREAM_MANAGER_SERVER_PORT": port, "HOME": str(root.parent), **variables}
    return Report(penstock("doctor", "--root", str(root), "--json", *words, **variables))


@pytest.fixture(scope="module")
def listener() -> Iterator[socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        yield listener


@pytest.fixture(scope="module")
def broker(
    tmp_path_factory: pytest.TempPathFactory, listener: socket.socket
) -> Iterator[BrokerProcess]:
    exports: Found = {
        "http": [
            {"identifier": "here", "uri": f"http://127.0.0.1:{listener.getsockname()[1]}/in"},
            {"identifier": "nowhere", "uri": "http://127.0.0.1:1/in"},
            {"identifier": "paused", "uri": "http://127.0.0.1:2/in", "disabled": True},
        ],
        "kinesis": [{"identifier": "cloud", "kinesisStreamName": "all"}],
    }
    with BrokerProcess(tmp_path_factory.mktemp("doctor") / "root") as broker:
        with broker.connect() as client:
            create(client, "s", exportDefinition=exports)
            create(client, "t", exportDefinition={"http": exports["http"][:1]})
        yield broker


# As a whole


def test_a_new_machine_is_well(tmp_path: Path) -> None:
    report = examine(tmp_path / "root")

    assert report.failed == []
    assert report.code == 0
    assert [check["name"] for check in report.checks] == [
        *MACHINE_CHECKS,
        *SETTINGS_CHECKS,
        "exports",
    ]
    for name in ("python", "packages", "clock", "settings", "root", "port", "file descriptors"):
        assert report.state(name) == "ok", report[name]
    assert report.state("broker") == "warn"
    assert report["broker"]["mend"] == f"`penstock serve --root {tmp_path / 'root'}` starts one"
    for name in ("permissions", "store", "TLS", "Unix socket", "exports"):
        assert report.state(name) == "skip"
    assert not (tmp_path / "root").exists()


def test_people_get_a_line_for_each_and_how_to_mend_it(tmp_path: Path) -> None:
    tmp_path.chmod(0o755)
    finished = penstock("doctor", "--root", str(tmp_path))

    lines = finished.output.splitlines()
    index = lines.index(next(line for line in lines if line.startswith("warn  permissions")))
    assert lines[index].split(maxsplit=2)[2] == f"{tmp_path} has mode 755: others may look into it"
    assert lines[index + 1].split() == ["->", "chmod", "700", str(tmp_path)]
    assert lines[0].startswith("ok    python ")
    assert "\x1b" not in finished.output


def test_a_running_broker_is_well_but_for_where_it_exports_to(broker: BrokerProcess) -> None:
    report = examine(broker.root, AWS_CONTAINER_AUTHORIZATION_TOKEN=broker.token)

    assert report.code == 1
    assert report.failed == ["export"]
    assert report["broker"]["found"].startswith("penstock 0.")
    assert f"127.0.0.1:{broker.port}" in report["broker"]["found"]
    assert report["port"]["found"] == f"the broker of this root listens on 127.0.0.1:{broker.port}"
    assert report["store"]["found"] == "2 streams, 0 B"
    assert report.state("permissions") == "ok"


def test_settings_that_are_wrong_are_told_and_those_that_depend_on_them_left_out() -> None:
    report = Report(penstock("doctor", "--json", PENSTOCK_MAX_CONNECTIONS="many"))

    assert report.code == 1
    assert report.failed == ["settings"]
    assert report["settings"]["found"].startswith("PENSTOCK_MAX_CONNECTIONS is 'many': expected")
    assert {report.state(name) for name in SETTINGS_CHECKS} == {"skip"}


# The broker


def test_a_token_that_is_refused_fails(broker: BrokerProcess) -> None:
    report = examine(broker.root, AWS_CONTAINER_AUTHORIZATION_TOKEN="wrong")

    assert report.state("broker") == "fail"
    assert "the token is not known" in report["broker"]["found"]
    assert "AWS_CONTAINER_AUTHORIZATION_TOKEN" in report["broker"]["mend"]


def test_a_broker_that_was_asked_for_has_to_be_there(tmp_path: Path) -> None:
    report = examine(tmp_path / "root", "--port", "1")

    assert report.state("broker") == "fail"
    assert "127.0.0.1:1" in report["broker"]["found"]


# The root


def test_a_root_that_cannot_be_made_fails(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    report = examine(tmp_path / "file" / "root")

    assert report.state("root") == "fail"
    assert report["root"]["found"] == f"{tmp_path / 'file'} is not a directory"
    assert "--root" in report["root"]["mend"]


@pytest.mark.skipif(os.geteuid() == 0, reason="the superuser may write everywhere")
def test_a_root_that_may_not_be_written_fails(tmp_path: Path) -> None:
    tmp_path.chmod(0o500)

    assert examine(tmp_path).state("root") == "fail"
    assert examine(tmp_path / "root").state("root") == "fail"


def test_a_token_that_others_may_read_fails(tmp_path: Path) -> None:
    tmp_path.chmod(0o700)
    (tmp_path / "token").touch(0o644)
    report = examine(tmp_path)

    assert report.failed == ["permissions"]
    assert report["permissions"]["mend"] == f"chmod 600 {tmp_path / 'token'}"


def test_a_store_that_is_damaged_fails(tmp_path: Path) -> None:
    (tmp_path / "catalog.sqlite").write_bytes(b"this is no database" * 100)

    assert examine(tmp_path).state("store") == "fail"


def test_a_store_without_a_broker_is_looked_into(tmp_path: Path) -> None:
    broker = BrokerProcess(tmp_path / "root")
    with broker, broker.connect() as client:
        exports = {"http": [{"identifier": "e", "uri": "http://127.0.0.1:1/"}]}
        create(client, "huge", maxSize=1 << 60, exportDefinition=exports)

    report = examine(broker.root)

    assert report["store"]["found"] == "1 stream, 0 B"
    assert report.state("disk space") == "warn"
    assert "streams may still grow by 1 EiB" in report["disk space"]["found"]
    assert report["export"]["found"].startswith("127.0.0.1:1: not reachable")
    with sqlite3.connect(broker.root / "catalog.sqlite") as catalog:
        assert catalog.execute("SELECT count(*) FROM stream").fetchone() == (1,)
    catalog.close()


@pytest.mark.parametrize(
    ("free", "most", "stored", "state"),
    [
        (0, 0, 0, State.fail),
        (1 << 20, 0, 0, State.fail),
        (1 << 29, 0, 0, State.warn),
        (1 << 34, 1 << 33, 0, State.ok),
        (1 << 34, 1 << 35, 0, State.warn),
        (1 << 34, 1 << 35, 1 << 35, State.ok),
    ],
)
def test_the_disk_has_room_for_all_that_streams_may_hold(
    free: int, most: int, stored: int, state: State
) -> None:
    outcome = judge_space(free, most, stored)
    assert outcome.state is state
    assert bool(outcome.mend) == (state is not State.ok)


@pytest.mark.parametrize(
    ("hard", "connections", "state"),
    [(-1, 8192, State.ok), (20_000, 8192, State.ok), (4096, 8192, State.warn)],
)
def test_descriptors_suffice_for_the_connections(hard: int, connections: int, state: State) -> None:
    assert judge_descriptors(hard, connections).state is state


# Listeners


def test_a_port_that_somebody_else_has_fails(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        port = taken.getsockname()[1]
        report = examine(tmp_path / "root", STREAM_MANAGER_SERVER_PORT=str(port))

    assert report.state("port") == "fail"
    assert report["port"]["found"] == f"127.0.0.1:{port} is taken by another program"
    assert "STREAM_MANAGER_SERVER_PORT" in report["port"]["mend"]


def test_an_address_of_another_machine_fails(tmp_path: Path) -> None:
    certificate, key = make_certificate(tmp_path, days=90)
    report = examine(
        tmp_path / "root",
        PENSTOCK_HOST="192.0.2.1",
        PENSTOCK_TLS_CERTIFICATE=certificate,
        PENSTOCK_TLS_KEY=key,
    )

    assert report.state("port") == "fail"
    assert report["port"]["found"].startswith("192.0.2.1:")


def test_a_unix_socket_needs_a_path_that_can_be_used(tmp_path: Path) -> None:
    def state(path: Path) -> str:
        return examine(tmp_path / "root", PENSTOCK_UNIX_SOCKET=str(path)).state("Unix socket")

    (tmp_path / "file").touch()
    assert state(tmp_path / "new") == "ok"
    assert state(tmp_path / "file") == "fail"
    assert state(tmp_path / "missing" / "new") == "fail"
    assert state(tmp_path / ("x" * 108)) == "fail"
    with socket.socket(socket.AF_UNIX) as used:
        used.bind(str(tmp_path / "used"))
        used.listen()
        assert state(tmp_path / "used") == "fail"
    # It was left behind.
    assert state(tmp_path / "used") == "ok"


def make_certificate(directory: Path, days: int, name: str = "tls") -> tuple[str, str]:
    """The paths of one that is signed by itself and ends in so many days, and of its key."""
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "penstock test")])
    now = dt.datetime.now(dt.UTC)
    signed = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - dt.timedelta(days=100))
        .not_valid_after(now + dt.timedelta(days=days))
        .sign(key, hashes.SHA256())
    )
    certificate_path, key_path = directory / f"{name}.crt", directory / f"{name}.key"
    certificate_path.write_bytes(signed.public_bytes(serialization.Encoding.PEM))
    key_path.write_bytes(
        key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        )
    )
    return str(certificate_path), str(key_path)


@pytest.mark.parametrize(
    ("days", "state", "found"),
    [(90, "ok", "is valid until 2"), (3, "warn", "is valid until 2"), (-1, "fail", "expired")],
)
def test_a_certificate_is_valid_for_a_while(
    tmp_path: Path, days: int, state: str, found: str
) -> None:
    certificate, key = make_certificate(tmp_path, days)
    report = examine(tmp_path / "root", PENSTOCK_TLS_CERTIFICATE=certificate, PENSTOCK_TLS_KEY=key)

    assert report.state("TLS") == state
    assert found in report["TLS"]["found"]


def test_a_certificate_needs_its_own_key(tmp_path: Path) -> None:
    certificate, _ = make_certificate(tmp_path, 90)
    _, key = make_certificate(tmp_path, 90, "other")
    variables = {"PENSTOCK_TLS_CERTIFICATE": certificate, "PENSTOCK_TLS_KEY": key}

    assert examine(tmp_path / "root", **variables).state("TLS") == "fail"
    Path(key).write_text("no key")
    assert examine(tmp_path / "root", **variables).state("TLS") == "fail"


# Python and Java


@pytest.mark.parametrize(
    ("version", "specifier", "is_in"),
    [
        ("3.11.7", ">=3.11", True),
        ("3.9.18", ">=3.11", False),
        ("6.2.1", "<7,>=5.9", True),
        ("7.0", "<7,>=5.9", False),
        ("7", "<7,>=5.9", False),
        ("5.10.0rc1", "<7,>=5.9", True),
        ("1.2", "", True),
    ],
)
def test_versions_are_compared_by_their_numbers(version: str, specifier: str, is_in: bool) -> None:
    assert satisfies(version, specifier) is is_in


@pytest.mark.parametrize(
    ("said", "version"),
    [
        ('openjdk version "17.0.15" 2025-04-15', 17),
        ('java version "1.8.0_392"', 8),
        ('openjdk version "25" 2025-09-16', 25),
        ("command not found", None),
    ],
)
def test_java_says_its_version_in_two_ways(said: str, version: int | None) -> None:
    assert java_version(said) == version


def make_java(directory: Path, version: str) -> Path:
    """The home of a Java that says this version."""
    java = directory / "bin" / "java"
    java.parent.mkdir(parents=True)
    java.write_text(f"#!/bin/sh\necho 'openjdk version \"{version}\"' >&2\n")
    java.chmod(0o755)
    return directory


def test_java_home_comes_before_the_path(tmp_path: Path) -> None:
    home, other = make_java(tmp_path / "home", "21.0.1"), make_java(tmp_path / "other", "11.0.2")
    path = f"{other / 'bin'}:{os.environ['PATH']}"

    chosen = examine(tmp_path / "root", JAVA_HOME=str(home), PATH=path)["java"]
    old = examine(tmp_path / "root", PATH=path, JAVA_HOME="")["java"]
    missing = examine(tmp_path / "root", JAVA_HOME=str(tmp_path))["java"]

    assert (chosen["state"], chosen["found"][:3]) == ("ok", "21 ")
    assert (old["state"], old["found"][:3]) == ("warn", "11 ")
    assert "install Java 17 or newer" in old["mend"]
    assert missing["state"] == "warn"
    assert find_java({"PATH": ""}) == (None, "")


# Exports


def test_each_place_that_exports_go_to_is_tried_once(
    broker: BrokerProcess, listener: socket.socket
) -> None:
    endpoint = f"http://127.0.0.1:{listener.getsockname()[1]}"
    report = examine(
        broker.root,
        AWS_CONTAINER_AUTHORIZATION_TOKEN=broker.token,
        AWS_ENDPOINT_URL_KINESIS=endpoint,
        AWS_ACCESS_KEY_ID="id",
        AWS_SECRET_ACCESS_KEY="the secret",
    )

    place = endpoint.removeprefix("http://")
    assert [(c["state"], c["found"]) for c in report.checks if c["name"] == "export"] == [
        ("ok", f"{place}: reachable, for s/here, t/here"),
        ("fail", "127.0.0.1:1: not reachable: Connection refused, for s/nowhere"),
        ("ok", f"{place}: reachable, for s/cloud"),
    ]
    assert report.state("AWS credentials") == "ok"
    assert "the secret" not in json.dumps(report.checks)


def test_where_no_region_is_set_that_is_worth_a_warning(broker: BrokerProcess) -> None:
    report = examine(broker.root, AWS_CONTAINER_AUTHORIZATION_TOKEN=broker.token)

    (kinesis,) = [check for check in report.checks if check["found"].startswith("kinesis: ")]
    assert kinesis["state"] == "warn"
    assert kinesis["mend"] == "set AWS_REGION"
    assert report.state("AWS credentials") == "warn"


def definition(**exports: Any) -> MessageStreamDefinition:
    return MessageStreamDefinition(
        name="s",
        strategy_on_full=StrategyOnFull.RejectNewData,
        export_definition=ExportDefinition(**exports),
    )


ALL_AWS = definition(
    iot_analytics=[IoTAnalyticsConfig(identifier="a", iot_channel="c")],
    kinesis=[KinesisConfig(identifier="k", kinesis_stream_name="s")],
    iot_sitewise=[IoTSiteWiseConfig(identifier="w")],
    s3_task_executor=[S3ExportTaskExecutorConfig(identifier="3")],
)


def places(environment: dict[str, str]) -> list[str]:
    return [f"{route.host}:{route.port}" for route in plan_routes([ALL_AWS], environment)]


def test_services_are_where_the_region_or_the_environment_says() -> None:
    assert places({"AWS_DEFAULT_REGION": "eu-west-1"}) == [
        "iotanalytics.eu-west-1.amazonaws.com:443",
        "kinesis.eu-west-1.amazonaws.com:443",
        "data.iotsitewise.eu-west-1.amazonaws.com:443",
        "s3.eu-west-1.amazonaws.com:443",
    ]
    assert places({"AWS_REGION": "cn-north-1", "AWS_DEFAULT_REGION": "x"})[1] == (
        "kinesis.cn-north-1.amazonaws.com.cn:443"
    )
    assert places(
        {"AWS_ENDPOINT_URL": "http://emulator:4566", "AWS_ENDPOINT_URL_S3": "https://store"}
    ) == ["emulator:4566", "emulator:4566", "emulator:4566", "store:443"]


@pytest.mark.parametrize("uri", ["host:80/in", "ftp://host/", "http://", "http://host:port/"])
def test_an_address_that_makes_no_sense_fails(uri: str) -> None:
    (route,) = plan_routes([definition(http=[HTTPConfig(identifier="e", uri=uri)])], {})

    assert route.problem is not None
    assert route.problem.state is State.fail
    assert repr(uri) in route.problem.found


def test_an_export_that_is_paused_is_left_out() -> None:
    http = [
        HTTPConfig(identifier="on", uri="https://[::1]/"),
        HTTPConfig(identifier="off", uri="http://host/", disabled=True),
    ]

    assert plan_routes([definition(http=http)], {}) == {Route("http", "::1", 443): ["s/on"]}


def test_credentials_are_found_by_the_names_of_variables(tmp_path: Path) -> None:
    nothing = {"HOME": str(tmp_path)}
    assert find_credentials(nothing).state is State.warn
    assert find_credentials({**nothing, "AWS_ACCESS_KEY_ID": "half"}).state is State.warn
    for variables in (
        {"AWS_ACCESS_KEY_ID": "x", "AWS_SECRET_ACCESS_KEY": "y"},
        {"AWS_PROFILE": "x"},
        {"AWS_CONTAINER_CREDENTIALS_FULL_URI": "http://127.0.0.1/"},
    ):
        assert find_credentials({**nothing, **variables}).state is State.ok
    (tmp_path / ".aws").mkdir()
    (tmp_path / ".aws" / "credentials").touch()
    assert find_credentials(nothing).state is State.ok

"""The checks of the destinations of exports."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from penstock.cli.checks.check import CheckFinding, State
from penstock.cli.checks.destinations import (
    ROUTE_OF_KIND,
    Route,
    check_destinations,
    find_credentials,
    plan_routes,
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
from tests.support import LocalBroker, Reachable, create

from .examination import context


@pytest.fixture(scope="module")
def listener() -> Iterator[socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        yield listener


@pytest.fixture(scope="module")
def broker(
    tmp_path_factory: pytest.TempPathFactory, listener: socket.socket
) -> Iterator[Reachable]:
    exports: dict[str, Any] = {
        "http": [
            {"identifier": "here", "uri": f"http://127.0.0.1:{listener.getsockname()[1]}/in"},
            {"identifier": "nowhere", "uri": "http://127.0.0.1:1/in"},
            {"identifier": "paused", "uri": "http://127.0.0.1:2/in", "disabled": True},
        ],
        "kinesis": [{"identifier": "cloud", "kinesisStreamName": "all"}],
    }
    with LocalBroker(tmp_path_factory.mktemp("destinations") / "root") as broker:
        with broker.connect() as client:
            create(client, "s", exportDefinition=exports)
            create(client, "t", exportDefinition={"http": exports["http"][:1]})
        yield broker


def find(root: Path, **variables: Any) -> list[CheckFinding]:
    with context(root, **variables) as examined:
        return check_destinations(examined)


# Findings


def test_each_destination_is_tried_once(broker: Reachable, listener: socket.socket) -> None:
    place = f"127.0.0.1:{listener.getsockname()[1]}"
    *exports, credentials = find(
        broker.root,
        AWS_ENDPOINT_URL_KINESIS=f"http://{place}",
        AWS_ACCESS_KEY_ID="id",
        AWS_SECRET_ACCESS_KEY="the secret",
    )

    assert [(finding.state, finding.found) for finding in exports] == [
        (State.ok, f"{place}: reachable, for s/here, t/here"),
        (State.fail, "127.0.0.1:1: unreachable: Connection refused, for s/nowhere"),
        (State.ok, f"{place}: reachable, for s/cloud"),
    ]
    assert (credentials.name, credentials.state) == ("AWS credentials", State.ok)
    assert "the secret" not in str(credentials)


def test_missing_region_is_a_warning(broker: Reachable) -> None:
    *_, kinesis, credentials = find(broker.root)

    assert kinesis == CheckFinding(
        "export", State.warn, "kinesis: no region is set, for s/cloud", "set AWS_REGION"
    )
    assert credentials.state is State.warn


def test_working_export_needs_no_variables_in_this_shell(broker: Reachable) -> None:
    with context(broker.root) as examined:
        examined.contact = examined.contact._replace(working=frozenset({"s/cloud"}))
        *_, kinesis, credentials = check_destinations(examined)

    assert (kinesis.state, credentials.state) == (State.ok, State.ok)
    assert kinesis.found == "kinesis: works with the variables of the pipeline, for s/cloud"


def test_destinations_come_from_the_store_without_a_broker(tmp_path: Path) -> None:
    root = tmp_path / "root"
    exports = {"http": [{"identifier": "e", "uri": "http://127.0.0.1:1/"}]}
    with LocalBroker(root) as broker, broker.connect() as client:
        create(client, "s", exportDefinition=exports)

    (finding,) = find(root)

    assert finding.found.startswith("127.0.0.1:1: unreachable")


def test_check_is_skipped_without_exports(tmp_path: Path) -> None:
    (unknown,) = find(tmp_path)
    with LocalBroker(tmp_path / "root") as broker:
        (none,) = find(broker.root)

    assert unknown == CheckFinding(
        "exports", State.skip, "unknown: there is no broker and no store"
    )
    assert none == CheckFinding("exports", State.skip, "no stream has exports")


# Routes


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


def test_endpoints_follow_region_and_environment() -> None:
    assert places({"AWS_DEFAULT_REGION": "eu-west-1"}) == [
        "kinesis.eu-west-1.amazonaws.com:443",
        "data.iotsitewise.eu-west-1.amazonaws.com:443",
        "s3.eu-west-1.amazonaws.com:443",
    ]
    assert places({"AWS_REGION": "cn-north-1", "AWS_DEFAULT_REGION": "x"})[0] == (
        "kinesis.cn-north-1.amazonaws.com.cn:443"
    )
    assert places(
        {"AWS_ENDPOINT_URL": "http://emulator:4566", "AWS_ENDPOINT_URL_S3": "https://store"}
    ) == ["emulator:4566", "emulator:4566", "store:443"]


@pytest.mark.parametrize("uri", ["host:80/in", "ftp://host/", "http://", "http://host:port/"])
def test_malformed_url_fails(uri: str) -> None:
    (route,) = plan_routes([definition(http=[HTTPConfig(identifier="e", uri=uri)])], {})

    assert route.problem is not None
    assert route.problem.state is State.fail
    assert repr(uri) in route.problem.found


def test_paused_export_has_no_route() -> None:
    http = [
        HTTPConfig(identifier="on", uri="https://[::1]/"),
        HTTPConfig(identifier="off", uri="http://host/", disabled=True),
    ]

    assert plan_routes([definition(http=http)], {}) == {Route("http", "::1", 443): ["s/on"]}


def test_export_of_an_unknown_kind_is_not_checked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delitem(ROUTE_OF_KIND, "kinesis")
    exports = {"kinesis": [{"identifier": "e", "kinesisStreamName": "n"}]}
    with LocalBroker(tmp_path / "root") as broker:
        with broker.connect() as client:
            create(client, "s", exportDefinition=exports)
        finding, *_ = find(broker.root)

    assert finding == CheckFinding(
        "export", State.skip, "kinesis: not checked: the address is unknown, for s/e"
    )


# Credentials


def test_credentials_are_found_in_variables_and_files(tmp_path: Path) -> None:
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

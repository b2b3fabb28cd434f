"""A program for the AWS Python SDK moves to Penstock by changing its import.

Each SDK is described in its own environment (`describe_sdk.py`) and compared with Penstock: names,
parameters, defaults, objects, validation and errors. Tables list the intended differences; any
other difference fails.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import socket
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from typing import Any

import pytest

import penstock
from tests.support import TIMEOUT_S, BrokerProcess, Json, clean_environment

from . import describe_sdk
from .harness import GREENGRASSSDK_1_6, HERE, STREAM_MANAGER, Sdk, unique_name

PACKAGES = {STREAM_MANAGER: "stream_manager", GREENGRASSSDK_1_6: "greengrasssdk.stream_manager"}

# Penstock has the documented default where the SDK has None with the same meaning.
DEFAULTS: dict[str, Json] = {
    "MessageStreamDefinition": {
        "persistence": penstock.Persistence.File.value,
        "flush_on_write": False,
        "export_definition": {},
    },
    "MessageStreamInfo": {"export_statuses": []},
    # The server's answer for an export before its first message.
    "MessageStreamInfo.exportStatuses": {
        "last_exported_sequence_number": -1,
        "error_message": "",
        "exported_bytes_from_stream": 0,
        "exported_messages_count": 0,
    },
}

# Parameters that Penstock adds, with their defaults. They follow those of the SDK.
EXTENSIONS: dict[str, Json] = {}

CLIENT_DEFAULTS = {
    # The default is of the environment, of penstock.toml, of this machine's broker, or 127.0.0.1.
    ("__init__", "host"): "None",
}

PRIVATE_MODULES = {"utilinternal"}

# Methods whose parameter names do not matter.
UNNAMED = {"__exit__"}

ACCEPTED = {
    "Variant.integer_value too small": "SiteWise accepts negative integers",
    "MessageStreamInfo.exportStatuses.last_exported_sequence_number missing": "it has a default",
    **dict.fromkeys(
        [
            "AssetPropertyValue.quality not an enum",
            "HTTPConfig.export_format not an enum",
            "MessageStreamDefinition.persistence not an enum",
            "MessageStreamDefinition.strategy_on_full not an enum",
            "StatusConfig.status_level not an enum",
            "StatusMessage.event_type not an enum",
            "StatusMessage.status not an enum",
            "StatusMessage.status_level not an enum",
        ],
        "an enum's value is accepted",
    ),
}

REJECTED = {
    "MessageStreamDefinition.name 'größe'": "the server accepts only ASCII letters",
    **dict.fromkeys(
        [
            "MessageStreamInfo.exportStatuses.export_config_identifier missing",
            "MessageStreamInfo.storageStatus.newest_sequence_number missing",
            "MessageStreamInfo.storageStatus.oldest_sequence_number missing",
            "MessageStreamInfo.storageStatus.total_bytes missing",
        ],
        "the server always sends it",
    ),
}

# Errors of another class than the SDK's.
RAISED = {
    **dict.fromkeys(
        [
            "append with a closed client",
            "create with a closed client",
            "list with a closed client",
        ],
        "ClientException",  # a subclass of StreamManagerException, which the SDK raises
    ),
    # The SDK's validation fails with a TypeError.
    **dict.fromkeys(
        [
            "append by a name that is numeric",
            "append a number",
            "create with a text for the size",
            "delete by a name that is numeric",
            "describe by a name that is numeric",
            "read by a name that is numeric",
            "read with a text for a number",
        ],
        "ValidationException",
    ),
}


@pytest.fixture(scope="module", params=PACKAGES, ids=[sdk.name for sdk in PACKAGES])
def sdk(request: pytest.FixtureRequest) -> Sdk:
    """A Python SDK with protocol 1.1.0."""
    sdk: Sdk = request.param
    return sdk


@pytest.fixture(scope="module")
def theirs(sdk: Sdk) -> Json:
    return description(sdk)


@cache
def description(sdk: Sdk) -> Json:
    return run_script(sdk)


def run_script(sdk: Sdk, *arguments: str, stdin: str = "", **environment: str) -> Json:
    python, _ = sdk.command()
    done = subprocess.run(
        [python, str(HERE / "describe_sdk.py"), PACKAGES[sdk], *arguments],
        input=stdin,
        capture_output=True,
        text=True,
        check=False,
        timeout=TIMEOUT_S,
        env=clean_environment(**environment),
    )
    assert done.returncode == 0, done.stderr
    answer: Json = json.loads(done.stdout)
    return answer


def in_module(name: str) -> Any:
    return importlib.import_module(f"penstock.{name}")


# Names and classes


def test_every_name_can_be_imported_from_penstock(theirs: Json) -> None:
    missing = [name for name in theirs["names"] if not hasattr(penstock, name)]

    assert "StreamManagerClient" in theirs["names"]
    assert not missing


@pytest.mark.parametrize(("module", "key"), [("data", "model"), ("exceptions", "exception names")])
def test_every_name_can_be_imported_from_its_module(theirs: Json, module: str, key: str) -> None:
    missing = [name for name in theirs[key] if not hasattr(in_module(module), name)]

    assert len(theirs[key]) > 15
    assert not missing


def test_every_module_can_be_imported(theirs: Json) -> None:
    modules = set(theirs["submodules"]) - PRIVATE_MODULES

    assert {"data", "exceptions", "util", "streammanagerclient"} <= modules
    for module in modules:
        in_module(module)
    assert in_module("streammanagerclient").StreamManagerClient is penstock.StreamManagerClient


def test_importing_the_package_makes_its_modules_available(theirs: Json) -> None:
    modules = sorted(set(theirs["submodules"]) - PRIVATE_MODULES)
    program = "".join(f"stream_manager.{module}\n" for module in modules)

    # A new interpreter has imported none of them.
    subprocess.run(
        [sys.executable, "-c", f"import penstock as stream_manager\n{program}"], check=True
    )


def test_modules_and_package_have_the_same_objects() -> None:
    for module in ("data", "exceptions", "util"):
        for name in getattr(in_module(module), "__all__", ["Util"]):
            ours = getattr(in_module(module), name)
            assert getattr(penstock, name, ours) is ours


def test_enums_have_the_same_members(theirs: Json) -> None:
    for name, enum in theirs["enums"].items():
        ours = describe_sdk.describe_enum(getattr(in_module("data"), name))
        if name == "ResponseStatusCode":
            # An error never has the status Success, and the methods are for the wire.
            ours |= {"truths": enum["truths"], "methods": enum["methods"]}
        assert ours == enum, name


def test_classes_have_the_same_parameters_in_the_same_order(theirs: Json) -> None:
    for name, ours in described_classes().items():
        expected = [*theirs["classes"][name]["parameters"], *EXTENSIONS.get(name, {})]
        assert ours["parameters"] == expected, name


def test_classes_have_the_same_defaults(theirs: Json) -> None:
    for name, ours in described_classes().items():
        expected = {
            **theirs["classes"][name]["defaults"],
            **DEFAULTS.get(name, {}),
            **EXTENSIONS.get(name, {}),
        }
        assert ours["defaults"] == expected, name


def test_defaults_differ_only_from_none(theirs: Json) -> None:
    for name, fields in DEFAULTS.items():
        for field in fields:
            assert theirs["classes"][name]["defaults"][field] is None, (name, field)


def test_classes_have_the_same_attributes(theirs: Json) -> None:
    for name, ours in described_classes().items():
        missing = set(theirs["classes"][name]["attributes"]) - set(ours["attributes"])
        assert not missing, name


def test_every_class_of_the_model_is_covered(theirs: Json) -> None:
    covered = {*theirs["enums"], *described_classes(), "ResponseStatusCode"}

    assert set(theirs["model"]) <= covered


@cache
def described_classes() -> dict[str, Json]:
    return {
        name: describe_sdk.describe_class(type(sample))
        for name, sample in describe_sdk.samples(penstock).items()
    }


def test_exceptions_are_the_same(theirs: Json) -> None:
    for name, exception in theirs["exceptions"].items():
        ours = describe_sdk.describe_exception(getattr(in_module("exceptions"), name))
        assert ours == exception, name


def test_client_has_the_same_methods_and_parameters(theirs: Json) -> None:
    assert_methods(penstock.StreamManagerClient, theirs["client"])


def test_asyncio_client_has_the_same_methods_and_parameters(theirs: Json) -> None:
    methods = {
        name: parameters
        for name, parameters in theirs["client"].items()
        if name not in ("__enter__", "__exit__")
    }
    assert_methods(penstock.AsyncStreamManagerClient, methods)


def test_util_has_the_same_functions(theirs: Json) -> None:
    assert_methods(penstock.Util, theirs["util"])


def assert_methods(kind: type, theirs: dict[str, list[Json]]) -> None:
    ours = describe_sdk.describe_methods(kind)
    for method, parameters in theirs.items():
        expected = [
            {**parameter, "default": CLIENT_DEFAULTS.get((method, name), parameter["default"])}
            for parameter in parameters
            for name in [parameter["name"]]
        ]
        # Penstock may have more keyword-only parameters.
        known = [parameter for parameter in ours[method] if parameter["kind"] != "KEYWORD_ONLY"]
        if method in UNNAMED:
            assert len(known) == len(expected)
        else:
            assert known == expected, method


def test_client_has_the_same_attributes(
    broker: BrokerProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    use_broker(monkeypatch, broker)

    with penstock.StreamManagerClient() as client:
        assert (client.host, client.port) == ("127.0.0.1", broker.port)
        assert (client.connect_timeout, client.request_timeout) == (3, 60)
        assert client.logger.name == "StreamManagerClient"
        assert client.connected
    assert not client.connected


# Objects


def test_objects_are_equal_however_they_are_made(theirs: Json) -> None:
    for name, sample in describe_sdk.samples(penstock).items():
        expected = theirs["samples"][name]["plain"]
        described = describe_sdk.describe_sample(sample)
        for how, ours in described.items():
            assert ours == expected, (name, how)


def test_objects_have_the_same_json(theirs: Json) -> None:
    assert describe_sdk.json_messages(penstock) == theirs["messages"]


# Validation


def test_fields_accept_and_reject_the_same_values(theirs: Json) -> None:
    ours = {name: describe_sdk.try_limit(penstock, case) for name, case in theirs["limits"].items()}

    assert_outcomes(ours, theirs["limit outcomes"])


def test_patterns_accept_and_reject_the_same_texts(theirs: Json) -> None:
    ours = {
        name: describe_sdk.try_limit(penstock, case)
        for name, case in describe_sdk.pattern_cases().items()
    }

    assert_outcomes(ours, theirs["pattern outcomes"])


def test_nested_objects_are_validated_in_the_same_way(theirs: Json) -> None:
    ours = {
        name: describe_sdk.outcome_of_checking(penstock, value)
        for name, value in describe_sdk.nested_cases(penstock).items()
    }

    assert_outcomes(ours, theirs["nested outcomes"])


def assert_outcomes(ours: dict[str, str], theirs: dict[str, str]) -> None:
    """Checks that both accept the same values, except for the tables.

    Penstock rejects the others with a ValidationException.
    """
    expected: dict[str, str] = {}
    for name, outcome in theirs.items():
        expected[name] = "accepted" if outcome == "accepted" else "ValidationException"
        if name in ACCEPTED:
            assert expected[name] == "ValidationException", name
            expected[name] = "accepted"
        if name in REJECTED:
            assert expected[name] == "accepted", name
            expected[name] = "ValidationException"
    assert ours == expected


def test_tables_of_differences_name_existing_cases(theirs: Json) -> None:
    known = {*theirs["limit outcomes"], *theirs["pattern outcomes"], *theirs["nested outcomes"]}

    assert known >= {*ACCEPTED, *REJECTED}


# Errors


@contextlib.contextmanager
def addresses() -> Iterator[Json]:
    """Yields a closed port, the port of a silent server, and a prefix for stream names."""
    with socket.create_server(("127.0.0.1", 0)) as silent, socket.socket() as closed:
        # A bound socket that does not listen, so that no other process can get the port.
        closed.bind(("127.0.0.1", 0))
        yield {
            "closed": closed.getsockname()[1],
            "silent": silent.getsockname()[1],
            "prefix": unique_name(),
        }


def environment_of(broker: BrokerProcess) -> dict[str, str]:
    return {
        "STREAM_MANAGER_SERVER_PORT": str(broker.port),
        "AWS_CONTAINER_AUTHORIZATION_TOKEN": broker.token,
    }


def use_broker(monkeypatch: pytest.MonkeyPatch, broker: BrokerProcess) -> None:
    for name, value in environment_of(broker).items():
        monkeypatch.setenv(name, value)


def test_wrong_calls_raise_the_same_errors(
    broker: BrokerProcess, sdk: Sdk, monkeypatch: pytest.MonkeyPatch
) -> None:
    with addresses() as targets:
        theirs = run_script(sdk, "calls", stdin=json.dumps(targets), **environment_of(broker))
    use_broker(monkeypatch, broker)
    with addresses() as targets:
        ours = describe_sdk.WrongCalls(penstock, targets).outcomes()

    assert raised(ours) == {**raised(theirs), **RAISED}
    for name, outcome in theirs.items():
        if outcome and outcome["status"] is not None:
            # An error of the server has the same attributes.
            assert ours[name] == outcome, name
        if name in RAISED and raised(theirs)[name] != "TypeError":
            # Another class, which the same `except` clause catches.
            assert raised(theirs)[name] in ours[name]["classes"], name


def raised(outcomes: dict[str, Json]) -> dict[str, str | None]:
    return {name: next(iter(it.get("classes", ())), None) for name, it in outcomes.items()}

"""A program written for the AWS Python SDK moves to Penstock by changing its import.

Each SDK describes itself in its own environment (`describe_sdk.py`), and Penstock is held against
that: names, parameters, defaults, what objects say, what is refused and what is raised. Where the
two differ on purpose, a table says where and why; whatever else differs fails.
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

# What programs read has the documented default in it, where the SDK has None and means the same.
DEFAULTS: dict[str, Json] = {
    "MessageStreamDefinition": {
        "persistence": penstock.Persistence.File.value,
        "flush_on_write": False,
        "export_definition": {},
    },
    "MessageStreamInfo": {"export_statuses": []},
    # What the server says of an export that has done nothing yet.
    "MessageStreamInfo.exportStatuses": {
        "last_exported_sequence_number": -1,
        "error_message": "",
        "exported_bytes_from_stream": 0,
        "exported_messages_count": 0,
    },
}

CLIENT_DEFAULTS = {
    # Looked for in the environment, in penstock.toml and on this machine; 127.0.0.1 after that.
    ("__init__", "host"): "None",
}

PRIVATE_MODULES = {"utilinternal"}

# Names that Python passes itself.
UNNAMED = {"__exit__"}

TAKEN = {
    "Variant.integer_value too small": "SiteWise takes negative integers",
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
        "the value of a choice stands for it",
    ),
}

REFUSED = {
    "MessageStreamDefinition.name 'größe'": "the server takes ASCII letters only",
    **dict.fromkeys(
        [
            "MessageStreamInfo.exportStatuses.export_config_identifier missing",
            "MessageStreamInfo.storageStatus.newest_sequence_number missing",
            "MessageStreamInfo.storageStatus.oldest_sequence_number missing",
            "MessageStreamInfo.storageStatus.total_bytes missing",
        ],
        "it comes from the server, which always says it",
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
        "ClientException",  # a StreamManagerException, as the SDK's is
    ),
    # A TypeError in the SDK, out of the middle of its checks.
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
    """One of the SDKs that speak the protocol of today."""
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


# What the package is


def test_every_name_can_be_imported_from_penstock(theirs: Json) -> None:
    missing = [name for name in theirs["names"] if not hasattr(penstock, name)]

    assert "StreamManagerClient" in theirs["names"]
    assert not missing


@pytest.mark.parametrize(("module", "key"), [("data", "model"), ("exceptions", "exception names")])
def test_every_name_can_be_imported_from_the_module_that_has_it(
    theirs: Json, module: str, key: str
) -> None:
    missing = [name for name in theirs[key] if not hasattr(in_module(module), name)]

    assert len(theirs[key]) > 15
    assert not missing


def test_every_module_can_be_imported(theirs: Json) -> None:
    modules = set(theirs["submodules"]) - PRIVATE_MODULES

    assert {"data", "exceptions", "util", "streammanagerclient"} <= modules
    for module in modules:
        in_module(module)
    assert in_module("streammanagerclient").StreamManagerClient is penstock.StreamManagerClient


def test_every_module_comes_with_the_package(theirs: Json) -> None:
    modules = sorted(set(theirs["submodules"]) - PRIVATE_MODULES)
    program = "".join(f"stream_manager.{module}\n" for module in modules)

    # In an interpreter where nothing else has imported them.
    subprocess.run(
        [sys.executable, "-c", f"import penstock as stream_manager\n{program}"], check=True
    )


def test_the_names_of_modules_are_the_same_objects() -> None:
    for module in ("data", "exceptions", "util"):
        for name in getattr(in_module(module), "__all__", ["Util"]):
            ours = getattr(in_module(module), name)
            assert getattr(penstock, name, ours) is ours


def test_the_enums_have_the_same_members(theirs: Json) -> None:
    for name, enum in theirs["enums"].items():
        ours = describe_sdk.describe_enum(getattr(in_module("data"), name))
        if name == "ResponseStatusCode":
            # It stands in an error, where Success never does; the methods are for the wire.
            ours |= {"truths": enum["truths"], "methods": enum["methods"]}
        assert ours == enum, name


def test_the_classes_have_the_same_parameters_in_the_same_order(theirs: Json) -> None:
    for name, ours in described_classes().items():
        assert ours["parameters"] == theirs["classes"][name]["parameters"], name


def test_the_classes_have_the_same_defaults(theirs: Json) -> None:
    for name, ours in described_classes().items():
        expected = {**theirs["classes"][name]["defaults"], **DEFAULTS.get(name, {})}
        assert ours["defaults"] == expected, name


def test_the_defaults_that_differ_were_none(theirs: Json) -> None:
    for name, fields in DEFAULTS.items():
        for field in fields:
            assert theirs["classes"][name]["defaults"][field] is None, (name, field)


def test_the_classes_have_the_same_attributes(theirs: Json) -> None:
    for name, ours in described_classes().items():
        missing = set(theirs["classes"][name]["attributes"]) - set(ours["attributes"])
        assert not missing, name


def test_every_class_of_the_model_was_looked_at(theirs: Json) -> None:
    looked_at = {*theirs["enums"], *described_classes(), "ResponseStatusCode"}

    assert set(theirs["model"]) <= looked_at


@cache
def described_classes() -> dict[str, Json]:
    return {
        name: describe_sdk.describe_class(type(sample))
        for name, sample in describe_sdk.samples(penstock).items()
    }


def test_the_exceptions_are_the_same(theirs: Json) -> None:
    for name, exception in theirs["exceptions"].items():
        ours = describe_sdk.describe_exception(getattr(in_module("exceptions"), name))
        assert ours == exception, name


def test_the_client_has_the_same_methods_with_the_same_parameters(theirs: Json) -> None:
    assert_methods(penstock.StreamManagerClient, theirs["client"])


def test_the_client_for_asyncio_has_them_too(theirs: Json) -> None:
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
        # More may be asked for by name; it is no concern of a program that does not know it.
        known = [parameter for parameter in ours[method] if parameter["kind"] != "KEYWORD_ONLY"]
        if method in UNNAMED:
            assert len(known) == len(expected)
        else:
            assert known == expected, method


def test_a_client_has_the_same_attributes(
    broker: BrokerProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    use_broker(monkeypatch, broker)

    with penstock.StreamManagerClient() as client:
        assert (client.host, client.port) == ("127.0.0.1", broker.port)
        assert (client.connect_timeout, client.request_timeout) == (3, 60)
        assert client.logger.name == "StreamManagerClient"
        assert client.connected
    assert not client.connected


# What objects say


def test_objects_say_the_same_however_they_were_made(theirs: Json) -> None:
    for name, sample in describe_sdk.samples(penstock).items():
        expected = theirs["samples"][name]["plain"]
        described = describe_sdk.describe_sample(sample)
        for how, ours in described.items():
            assert ours == expected, (name, how)


def test_objects_are_the_same_messages_in_json(theirs: Json) -> None:
    assert describe_sdk.json_messages(penstock) == theirs["messages"]


# What is refused


def test_each_field_takes_and_refuses_the_same_values(theirs: Json) -> None:
    ours = {name: describe_sdk.try_limit(penstock, case) for name, case in theirs["limits"].items()}

    assert_outcomes(ours, theirs["limit outcomes"])


def test_each_pattern_takes_and_refuses_the_same_texts(theirs: Json) -> None:
    ours = {
        name: describe_sdk.try_limit(penstock, case)
        for name, case in describe_sdk.pattern_cases().items()
    }

    assert_outcomes(ours, theirs["pattern outcomes"])


def test_objects_in_objects_are_checked_in_the_same_way(theirs: Json) -> None:
    ours = {
        name: describe_sdk.outcome_of_checking(penstock, value)
        for name, value in describe_sdk.nested_cases(penstock).items()
    }

    assert_outcomes(ours, theirs["nested outcomes"])


def assert_outcomes(ours: dict[str, str], theirs: dict[str, str]) -> None:
    """The same is taken, and what is not ends with a ValidationException, but for the tables."""
    expected: dict[str, str] = {}
    for name, outcome in theirs.items():
        expected[name] = "taken" if outcome == "taken" else "ValidationException"
        if name in TAKEN:
            assert expected[name] == "ValidationException", name
            expected[name] = "taken"
        if name in REFUSED:
            assert expected[name] == "taken", name
            expected[name] = "ValidationException"
    assert ours == expected


def test_what_is_taken_or_refused_beyond_the_sdk_is_there(theirs: Json) -> None:
    known = {*theirs["limit outcomes"], *theirs["pattern outcomes"], *theirs["nested outcomes"]}

    assert known >= {*TAKEN, *REFUSED}


# What is raised


@contextlib.contextmanager
def addresses() -> Iterator[Json]:
    """A port where nobody listens, one where nobody answers, and a name for streams."""
    with socket.create_server(("127.0.0.1", 0)) as silent, socket.socket() as closed:
        # Bound and not listening: nobody else can get it meanwhile.
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
    with addresses() as places:
        theirs = run_script(sdk, "calls", stdin=json.dumps(places), **environment_of(broker))
    use_broker(monkeypatch, broker)
    with addresses() as places:
        ours = describe_sdk.WrongCalls(penstock, places).outcomes()

    assert raised(ours) == {**raised(theirs), **RAISED}
    for name, outcome in theirs.items():
        if outcome and outcome["status"] is not None:
            # An error that the server answered with, in all that it carries.
            assert ours[name] == outcome, name
        if name in RAISED and raised(theirs)[name] != "TypeError":
            # Of another class, but caught by the same clause.
            assert raised(theirs)[name] in ours[name]["classes"], name


def raised(outcomes: dict[str, Json]) -> dict[str, str | None]:
    return {name: next(iter(it.get("classes", ())), None) for name, it in outcomes.items()}

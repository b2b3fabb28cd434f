"""Describes a stream manager's SDK in JSON: its names, its objects, and the values it rejects.

    python describe_sdk.py stream_manager          names, classes, limits
    python describe_sdk.py stream_manager calls    errors of its client, with the broker of the
                                                   environment and the addresses on standard input

The tests call the same functions with Penstock and compare the results. The script runs in the
environment of the SDK, and imports only the SDK and the standard library.
"""

from __future__ import annotations

import base64
import enum
import importlib
import inspect
import json
import os
import sys
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any

Json = dict[str, Any]

# Types of the wire, which programs do not use.
INTERNAL = ("MessageFrame", "Operation", "TraceableRequest", "UnknownOperationError", "VersionInfo")
INTERNAL_ENDINGS = ("Request", "Response")


# Names and classes


def public_names(module: ModuleType) -> list[str]:
    """Returns the names of `from … import *`, without modules."""
    return [
        name
        for name, value in vars(module).items()
        if not name.startswith("_") and not inspect.ismodule(value)
    ]


def submodules(sdk: ModuleType) -> list[str]:
    return [name for name, value in vars(sdk).items() if inspect.ismodule(value)]


def model_names(sdk: ModuleType) -> list[str]:
    data = importlib.import_module(f"{sdk.__name__}.data")
    return [
        name
        for name, value in vars(data).items()
        if inspect.isclass(value)
        and value.__module__ == data.__name__
        and name not in INTERNAL
        and not name.endswith(INTERNAL_ENDINGS)
    ]


def exception_names(sdk: ModuleType) -> list[str]:
    return public_names(importlib.import_module(f"{sdk.__name__}.exceptions"))


def describe_enum(kind: Any) -> Json:
    return {
        "members": {member.name: member.value for member in kind},
        "texts": [str(member) for member in kind],
        "formatted": [f"{member}" for member in kind],
        "truths": [bool(member) for member in kind],
        "plain": [plain(member) for member in kind],
        "methods": [name for name in ("as_dict", "from_dict") if hasattr(kind, name)],
    }


def describe_class(kind: Any) -> Json:
    """Returns the parameters in order, their defaults, and the public attributes."""
    parameters = list(inspect.signature(kind).parameters)
    empty = kind()
    return {
        "parameters": parameters,
        "defaults": {name: plain(getattr(empty, name)) for name in parameters},
        "attributes": [name for name in dir(kind) if not name.startswith("_")],
    }


def describe_exception(kind: Any) -> Json:
    empty, full = kind(), kind("text", 7, "r")
    return {
        "bases": [base.__name__ for base in kind.__mro__],
        "parameters": describe_function(kind.__init__),
        "empty": [str(empty), empty.message, empty.request_id],
        "full": [str(full), full.message, full.status, full.request_id],
    }


def describe_function(function: Any) -> list[Json]:
    """Returns name, kind and default of each parameter."""
    return [
        {"name": name, "kind": parameter.kind.name, "default": repr(parameter.default)}
        for name, parameter in inspect.signature(function).parameters.items()
    ]


def describe_methods(kind: Any) -> dict[str, list[Json]]:
    return {
        name: describe_function(value)
        for name, value in inspect.getmembers(kind, inspect.isfunction)
        if not name.startswith("_") or name in ("__init__", "__enter__", "__exit__")
    }


def plain(value: Any) -> Any:
    """Converts a value to JSON types: objects with `as_dict`, bytes to base64."""
    if hasattr(value, "as_dict"):
        return plain(value.as_dict())
    if isinstance(value, bytes):
        return {"base64": base64.b64encode(value).decode()}
    if isinstance(value, dict):
        return {key: plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(item) for item in value]
    return value


# Objects


def samples(sdk: ModuleType) -> dict[str, Any]:
    """Returns an object of each model class, with all fields set."""
    data = importlib.import_module(f"{sdk.__name__}.data")
    info = data.MessageStreamInfo
    batches = {
        "batch_size": 5,
        "batch_interval_millis": 60_000,
        "priority": 3,
        "start_sequence_number": 4,
        "disabled": True,
    }
    task = data.S3ExportTaskDefinition(
        input_url="file:///data/a.bin",
        bucket="a-bucket",
        key="a/!{timestamp:yyyy/MM}/b",
        user_metadata={"site": "north", "größe": "3"},
    )
    status_config = data.StatusConfig(
        status_level=data.StatusLevel.TRACE, status_stream_name="status"
    )
    context = data.StatusContext(
        s3_export_task_definition=task,
        export_identifier="export",
        stream_name="a stream",
        sequence_number=12,
    )
    value = data.AssetPropertyValue(
        value=data.Variant(double_value=1.5),
        timestamp=data.TimeInNanos(time_in_seconds=1_700_000_000, offset_in_nanos=5),
        quality=data.Quality.UNCERTAIN,
    )
    http = data.HTTPConfig(
        identifier="h",
        uri="http://localhost/",
        export_format=data.ExportFormat.JSON_BATCHED,
        **batches,
    )
    analytics = data.IoTAnalyticsConfig(
        identifier="a", iot_channel="channel", iot_msg_id_prefix="prefix", **batches
    )
    kinesis = data.KinesisConfig(identifier="k", kinesis_stream_name="name", **batches)
    sitewise = data.IoTSiteWiseConfig(identifier="s", **batches)
    s3 = data.S3ExportTaskExecutorConfig(
        identifier="3",
        size_threshold_for_multipart_upload_bytes=5_242_880,
        priority=10,
        disabled=False,
        status_config=status_config,
    )
    exports = data.ExportDefinition(
        http=[http],
        iot_analytics=[analytics],
        kinesis=[kinesis, data.KinesisConfig("k2", "second")],
        iot_sitewise=[sitewise],
        s3_task_executor=[s3],
    )
    definition = data.MessageStreamDefinition(
        name="a stream",
        max_size=4096,
        stream_segment_size=2048,
        time_to_live_millis=60_000,
        strategy_on_full=data.StrategyOnFull.OverwriteOldestData,
        persistence=data.Persistence.Memory,
        flush_on_write=True,
        export_definition=exports,
    )
    storage = info.storageStatus(
        oldest_sequence_number=3, newest_sequence_number=9, total_bytes=1000
    )
    export = info.exportStatuses(
        export_config_identifier="k",
        last_exported_sequence_number=8,
        last_export_time=1_700_000_000_000,
        error_message="no",
        exported_bytes_from_stream=900,
        exported_messages_count=5,
    )
    return {
        "AssetPropertyValue": value,
        "ExportDefinition": exports,
        "HTTPConfig": http,
        "IoTAnalyticsConfig": analytics,
        "IoTSiteWiseConfig": sitewise,
        "KinesisConfig": kinesis,
        "Message": data.Message(
            stream_name="a stream", sequence_number=7, ingest_time=1_700, payload=b"\x00\xff"
        ),
        "MessageStreamDefinition": definition,
        "MessageStreamInfo": info(
            definition=definition, storage_status=storage, export_statuses=[export]
        ),
        "MessageStreamInfo.exportStatuses": export,
        "MessageStreamInfo.storageStatus": storage,
        "PutAssetPropertyValueEntry": data.PutAssetPropertyValueEntry(
            entry_id="e-1",
            asset_id="asset",
            property_id="property",
            property_alias="/turbine/größe",
            property_values=[value],
        ),
        "ReadMessagesOptions": data.ReadMessagesOptions(
            desired_start_sequence_number=1,
            min_message_count=2,
            max_message_count=3,
            read_timeout_millis=4,
        ),
        "S3ExportTaskDefinition": task,
        "S3ExportTaskExecutorConfig": s3,
        "StatusConfig": status_config,
        "StatusContext": context,
        "StatusMessage": data.StatusMessage(
            event_type=data.EventType.S3Task,
            status_level=data.StatusLevel.WARN,
            status=data.Status.InProgress,
            status_context=context,
            message="half of it",
            timestamp_epoch_ms=1_700_000_000_000,
        ),
        "TimeInNanos": value.timestamp,
        "Variant": data.Variant(
            string_value="text", integer_value=1, double_value=0.5, boolean_value=False
        ),
    }


def describe_sample(sample: Any) -> Json:
    """Returns the object as JSON, and copies of it made in each possible way."""
    kind: Any = type(sample)
    names = list(inspect.signature(kind).parameters)
    assigned = kind()
    for name in names:
        setattr(assigned, name, getattr(sample, name))
    return {
        "plain": plain(sample),
        "by position": plain(kind(*(getattr(sample, name) for name in names))),
        "by name": plain(kind(**{name: getattr(sample, name) for name in names})),
        "by assignment": plain(assigned),
        "by its map": plain(kind.from_dict(sample.as_dict())),
    }


def json_messages(sdk: ModuleType) -> dict[str, str]:
    """Returns objects as JSON payloads."""
    data = importlib.import_module(f"{sdk.__name__}.data")
    filled = samples(sdk)
    moment = data.TimeInNanos(time_in_seconds=1_700_000_000)

    def entry(**value: Any) -> Any:
        values = [data.AssetPropertyValue(value=data.Variant(**value), timestamp=moment)]
        return data.PutAssetPropertyValueEntry(entry_id="e", property_values=values)

    objects = {
        "an entry": filled["PutAssetPropertyValueEntry"],
        "an entry with little": entry(integer_value=0),
        "an entry with a whole number": entry(double_value=2.0),
        "an entry with a text": entry(string_value='ä "quoted" \\ \U0001f4a7'),
        "an entry with a truth": entry(boolean_value=False),
        "an entry with many values": data.PutAssetPropertyValueEntry(
            "e", property_values=[filled["AssetPropertyValue"]] * 10
        ),
        "a task": filled["S3ExportTaskDefinition"],
        "a task with little": data.S3ExportTaskDefinition("file:///a", "abc", "k"),
        "a task with empty metadata": data.S3ExportTaskDefinition("file:///a", "abc", "k", {}),
        "a status": filled["StatusMessage"],
        "a status with little": data.StatusMessage(
            event_type=data.EventType.S3Task, status=data.Status.Success
        ),
        "a definition": filled["MessageStreamDefinition"],
        "an export definition with empty lists": data.ExportDefinition(http=[], kinesis=[]),
    }
    to_json = sdk.Util.validate_and_serialize_to_json_bytes
    return {name: to_json(value).decode() for name, value in objects.items()}


# Validation


def limit_cases(sdk: ModuleType) -> dict[str, Json]:
    """Returns values for each field: at its limits, beyond them, missing, and of wrong types.

    They come from the validation tables of the AWS SDK, so that each limit is covered. Messages
    are skipped: they have bytes, which JSON does not have, and no SDK validates them.
    """
    return {
        f"{name}.{field} {case}": {"class": name, "field": field, "value": value}
        for name, sample in samples(sdk).items()
        if name != "Message"
        for field in type(sample)._types_map
        for case, value in _values_for(
            type(sample)._validations_map.get(field, {}), type(sample)._types_map[field]
        )
    }


def _values_for(rules: Json, types: Json) -> Iterator[tuple[str, Any]]:
    yield "missing", None
    yield "of a wrong type", 5 if types["type"] in (str, dict, list) else "text"
    if "minLength" in rules:
        yield "too short", "a" * (rules["minLength"] - 1)
        yield "as short as can be", "a" * rules["minLength"]
    if "maxLength" in rules:
        yield "too long", "a" * (rules["maxLength"] + 1)
        yield "as long as can be", "a" * rules["maxLength"]
    if "minimum" in rules:
        yield "too small", rules["minimum"] - 1
        yield "as small as can be", rules["minimum"]
    if "maximum" in rules:
        yield "too large", rules["maximum"] + 1
        yield "as large as can be", rules["maximum"]
    if types["subtype"]:
        yield "with an item of a wrong type", [5]
    if issubclass(types["type"], enum.Enum):
        yield "not one of the choices", 99
        yield "not an enum", next(iter(types["type"])).value


def try_limit(sdk: ModuleType, case: Json) -> str:
    """Validates a sample with this value: returns `accepted`, or the class of the error."""
    sample = samples(sdk)[case["class"]]
    kind = type(sample)
    fields = {name: getattr(sample, name) for name in inspect.signature(kind).parameters}
    return outcome_of_checking(sdk, kind(**{**fields, case["field"]: case["value"]}))


def pattern_cases() -> dict[str, Json]:
    """Returns texts that match a pattern, and texts that do not."""
    texts = {
        ("S3ExportTaskDefinition", "bucket"): [
            *("abc", "a.b", "a-b", "a1b.c2d", "1ab", "BucketName", "aBc", "a_b", "-ab", "ab-"),
            *("a..b", ".ab", "ab.", "192.168.0.1", "1.2.3", "192.168.0.a", "a b", "abc\n", "äbc"),
        ],
        ("S3ExportTaskDefinition", "key"): [
            *("a", "a/b.c_d-e", "!{timestamp:yyyy/MM/dd}", "a!{timestamp:yyyy}b", "!", "ä", "a\n"),
            *("a b", "a%b", "a{b", "!{}", "!{timestamp:}", "!{time1:yyyy}", "!{timestamp:yyyy-MM}"),
            *("a[b]", 'a"b', "a'b", "a>b", "a<b", "a~b", "a#b", "a^b", "a?b", "a|b", "a`b", "a\\b"),
        ],
        ("PutAssetPropertyValueEntry", "entry_id"): ["aZ09_-", "a b", "a.b", "ä", "a\n", ""],
        ("PutAssetPropertyValueEntry", "property_alias"): [
            *("/a/b c", "größe", "\x00", "a\nb", "a\x1fb", "a\x7fb", "a\x80b", "a\n"),
        ],
        ("Variant", "string_value"): ["a b", "größe", "a\tb", "a\x7f", "a\n"],
        ("MessageStreamDefinition", "name"): [
            *("aZ09_ ,.-", "a/b", "a:b", "a\n", "a\tb", "größe", "a;b", "*"),
        ],
        ("StatusConfig", "status_stream_name"): ["a b", "a/b", "a\n"],
        ("KinesisConfig", "identifier"): ["a b", "a/b", "a\n"],
    }
    return {
        f"{name}.{field} {text!r}": {"class": name, "field": field, "value": text}
        for (name, field), several in texts.items()
        for text in several
    }


def nested_cases(sdk: ModuleType) -> dict[str, Any]:
    """Returns valid objects that contain invalid ones."""
    data = importlib.import_module(f"{sdk.__name__}.data")
    moment = data.TimeInNanos(time_in_seconds=1)
    too_early = data.TimeInNanos(time_in_seconds=0)
    good = data.AssetPropertyValue(value=data.Variant(double_value=0.5), timestamp=moment)
    entry, variant, value = (
        data.PutAssetPropertyValueEntry,
        data.Variant,
        data.AssetPropertyValue,
    )
    return {
        "no values": entry("e", property_values=[]),
        "ten values": entry("e", property_values=[good] * 10),
        "eleven values": entry("e", property_values=[good] * 11),
        "a value of another time": entry(
            "e", property_values=[good, value(variant(double_value=0.5), too_early)]
        ),
        "a value without a time": entry("e", property_values=[value(variant(double_value=0.5))]),
        "an empty text in a value": value(variant(string_value=""), moment),
        "a large integer in a value": value(variant(integer_value=2**31), moment),
        "an empty value": value(variant(), moment),
        "a bad bucket in a status": data.StatusMessage(
            event_type=data.EventType.S3Task,
            status=data.Status.Failure,
            status_context=data.StatusContext(data.S3ExportTaskDefinition("u", "B", "k")),
        ),
        "a bad identifier in an export": data.ExportDefinition(
            kinesis=[data.KinesisConfig("a/b", "n")]
        ),
        "a bad priority in a definition": data.MessageStreamDefinition(
            name="s",
            strategy_on_full=data.StrategyOnFull.RejectNewData,
            export_definition=data.ExportDefinition(
                iot_sitewise=[data.IoTSiteWiseConfig("i", priority=11)]
            ),
        ),
        "nothing at all": entry(),
    }


def outcome_of_checking(sdk: ModuleType, value: Any) -> str:
    try:
        sdk.Util.validate_and_serialize_to_json_bytes(value)
    except Exception as error:  # noqa: BLE001 - any error is an outcome
        return type(error).__name__
    return "accepted"


# Errors of the client

Step = Callable[[], object]


class WrongCalls:
    """Wrong calls to a broker, and the errors that they raise."""

    def __init__(self, sdk: ModuleType, addresses: Json) -> None:
        """addresses: a closed port, the port of a silent server, a prefix for stream names."""
        self._sdk = sdk
        self._addresses = addresses
        self._client = sdk.StreamManagerClient(request_timeout=10)
        self._name = f"{addresses['prefix']}-stream"

    def outcomes(self) -> dict[str, Json]:
        self._client.create_message_stream(self._definition(self._name))
        self._client.append_message(self._name, b"the only one")
        steps = {
            **self._on_streams(),
            **self._on_definitions(),
            **self._on_messages(),
            **self._on_names(),
            **self._on_connecting(),
        }
        outcomes = {name: outcome_of(step) for name, step in steps.items()}
        self._client.delete_message_stream(self._name)
        return {**outcomes, **self._after_closing()}

    def _definition(self, name: str, **fields: Any) -> Any:
        strategy = self._sdk.StrategyOnFull.RejectNewData
        return self._sdk.MessageStreamDefinition(
            **{"name": name, "strategy_on_full": strategy, **fields}
        )

    def _on_streams(self) -> dict[str, Step]:
        sdk, client, name = self._sdk, self._client, self._name
        missing = f"{name}-missing"
        return {
            "create one that exists": lambda: client.create_message_stream(self._definition(name)),
            "describe a missing one": lambda: client.describe_message_stream(missing),
            "delete a missing one": lambda: client.delete_message_stream(missing),
            "update a missing one": lambda: client.update_message_stream(self._definition(missing)),
            "append to a missing one": lambda: client.append_message(missing, b"x"),
            "read a missing one": lambda: client.read_messages(missing),
            "append to a full one": self._fill_a_stream,
            "change the persistence": lambda: client.update_message_stream(
                self._definition(name, persistence=sdk.Persistence.Memory)
            ),
        }

    def _fill_a_stream(self) -> None:
        name = f"{self._name}-full"
        self._client.create_message_stream(
            self._definition(name, max_size=1024, stream_segment_size=1024)
        )
        try:
            for _ in range(2):
                self._client.append_message(name, bytes(800))
        finally:
            self._client.delete_message_stream(name)

    def _on_definitions(self) -> dict[str, Step]:
        sdk, client, name = self._sdk, self._client, self._name

        def create(**fields: Any) -> Step:
            definition = self._definition(**{"name": f"{name}-refused", **fields})
            return lambda: client.create_message_stream(definition)

        twice = sdk.ExportDefinition(kinesis=[sdk.KinesisConfig("same", "n")] * 2)
        return {
            "create nothing": lambda: client.create_message_stream(None),
            "update nothing": lambda: client.update_message_stream(None),
            "create from a map": lambda: client.create_message_stream(
                {"name": name, "strategyOnFull": 0}
            ),
            "create without a name": create(name=None),
            "create without a strategy": create(strategy_on_full=None),
            "create with a bad name": create(name="a/b"),
            "create with a small size": create(max_size=1023),
            "create with a short time to live": create(time_to_live_millis=59_999),
            "create with a text for the size": create(max_size="large"),
            "create with an export that has no identifier": create(
                export_definition=sdk.ExportDefinition(kinesis=[sdk.KinesisConfig()])
            ),
            "create with two exports of one name": create(export_definition=twice),
        }

    def _on_messages(self) -> dict[str, Step]:
        sdk, client, name = self._sdk, self._client, self._name

        def read(**options: Any) -> Step:
            return lambda: client.read_messages(name, sdk.ReadMessagesOptions(**options))

        return {
            "append nothing": lambda: client.append_message(name, None),
            "append an empty message": lambda: client.append_message(name, b""),
            "append a text": lambda: client.append_message(name, "text"),
            "append a number": lambda: client.append_message(name, 5),
            "read after the end": read(desired_start_sequence_number=1),
            "read after the end with a timeout": read(
                desired_start_sequence_number=1, read_timeout_millis=20
            ),
            "read more than there is": read(min_message_count=2, max_message_count=2),
            "read less than the minimum": read(min_message_count=3, max_message_count=2),
            "read no message": read(min_message_count=0),
            "read at most none": read(max_message_count=0),
            "read from before the beginning": read(desired_start_sequence_number=-1),
            "read for less than no time": read(read_timeout_millis=-1),
            "read for longer than the client waits": read(read_timeout_millis=10_001),
            "read with a text for a number": read(min_message_count="two"),
            "read with a map": lambda: client.read_messages(name, {"minMessageCount": 1}),
        }

    def _on_names(self) -> dict[str, Step]:
        client = self._client
        names = {"bad": "a/b", "empty": "", "long": "a" * 256, "missing": None, "numeric": 5}
        calls: dict[str, Callable[[Any], object]] = {
            "describe": client.describe_message_stream,
            "delete": client.delete_message_stream,
            "read": client.read_messages,
            "append": lambda name: client.append_message(name, b"x"),
        }

        def step(call: Callable[[Any], object], name: object) -> Step:
            return lambda: call(name)

        return {
            f"{operation} by a name that is {kind}": step(call, name)
            for operation, call in calls.items()
            for kind, name in names.items()
        }

    def _on_connecting(self) -> dict[str, Step]:
        connect = self._sdk.StreamManagerClient

        def with_token(token: str) -> None:
            variable = "AWS_CONTAINER_AUTHORIZATION_TOKEN"
            right = os.environ[variable]
            os.environ[variable] = token
            try:
                connect().close()
            finally:
                os.environ[variable] = right

        def connect_to_silent_server() -> None:
            connect(port=self._addresses["silent"], request_timeout=0.1)

        return {
            "connect with a wrong token": lambda: with_token("not the token"),
            "connect to a closed port": lambda: connect(port=self._addresses["closed"]),
            "connect to a silent server": connect_to_silent_server,
        }

    def _after_closing(self) -> dict[str, Json]:
        client = self._client
        client.close()
        steps: dict[str, Step] = {
            "close it twice": client.close,
            "list with a closed client": client.list_streams,
            "append with a closed client": lambda: client.append_message(self._name, b"x"),
            "create with a closed client": lambda: client.create_message_stream(
                self._definition(self._name)
            ),
        }
        return {name: outcome_of(step) for name, step in steps.items()}


def outcome_of(step: Step) -> Json:
    """Returns the classes of the raised error and its attributes; empty without an error."""
    try:
        step()
    except Exception as error:  # noqa: BLE001 - any error is an outcome
        status = getattr(error, "status", None)
        return {
            "classes": [kind.__name__ for kind in type(error).__mro__],
            "status": status.name if status is not None else None,
            "has request id": getattr(error, "request_id", None) is not None,
            "message is text": getattr(error, "message", str(error)) == str(error),
        }
    return {}


def describe(sdk: ModuleType) -> Json:
    data = importlib.import_module(f"{sdk.__name__}.data")
    exceptions = importlib.import_module(f"{sdk.__name__}.exceptions")
    filled = samples(sdk)
    limits = limit_cases(sdk)
    patterns = pattern_cases()
    kinds = {name: getattr(data, name) for name in model_names(sdk)}
    enums = {name: kind for name, kind in kinds.items() if issubclass(kind, enum.Enum)}
    return {
        "names": public_names(sdk),
        "submodules": submodules(sdk),
        "model": list(kinds),
        "exception names": exception_names(sdk),
        "enums": {name: describe_enum(kind) for name, kind in enums.items()},
        "classes": {name: describe_class(type(sample)) for name, sample in filled.items()},
        "exceptions": {
            name: describe_exception(getattr(exceptions, name)) for name in exception_names(sdk)
        },
        "client": describe_methods(sdk.StreamManagerClient),
        "util": describe_methods(sdk.Util),
        "samples": {name: describe_sample(sample) for name, sample in filled.items()},
        "messages": json_messages(sdk),
        "limits": limits,
        "limit outcomes": {name: try_limit(sdk, case) for name, case in limits.items()},
        "pattern outcomes": {name: try_limit(sdk, case) for name, case in patterns.items()},
        "nested outcomes": {
            name: outcome_of_checking(sdk, value) for name, value in nested_cases(sdk).items()
        },
    }


def main() -> None:
    sdk = importlib.import_module(sys.argv[1])
    if sys.argv[2:] == ["calls"]:
        outcome: Json = WrongCalls(sdk, json.load(sys.stdin)).outcomes()
    else:
        outcome = describe(sdk)
    json.dump(outcome, sys.stdout)


if __name__ == "__main__":
    main()

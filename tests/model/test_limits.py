"""Every limit of the model, tested with values just outside and just inside."""

from __future__ import annotations

import re
from typing import Any, NamedTuple

import pytest

from penstock.errors import InvalidRequestException, ResponseStatusCode
from penstock.model import (
    MessageStreamDefinition,
    PutAssetPropertyValueEntry,
    ReadMessagesOptions,
    S3ExportTaskDefinition,
    from_wire,
)

from .samples import EXPORTS, definition, entry, s3_task, with_export

INT64_MAX = 2**63 - 1
MILLIS_MAX = 9_223_372_036_854
NAME_LETTERS = "abcXYZ019_ ,.-"


class Limit(NamedTuple):
    kind: type
    path: str
    good: list[Any]
    bad: list[tuple[Any, str]]


class Case(NamedTuple):
    kind: type
    value: Any
    path: str
    shown: Any
    allowed: str


def put(kind: type, path: str, value: Any) -> Any:
    """A valid map of this kind with one value replaced."""
    base: Any
    if kind is MessageStreamDefinition:
        group = re.match(r"exportDefinition\.(\w+)\[0\]", path)
        base = with_export(group[1]) if group else definition()
    elif kind is PutAssetPropertyValueEntry:
        base = entry()
    elif kind is S3ExportTaskDefinition:
        base = s3_task()
    else:
        base = {}
    place = base
    *steps, last = re.findall(r"\w+", path)
    for step in steps:
        place = place[int(step)] if step.isdigit() else place.setdefault(step, {})
    place[last] = value
    return base


def at_least(low: int) -> str:
    return f"expected int >= {low}"


def at_most(high: int) -> str:
    return f"expected int <= {high}"


def between(low: int, high: int) -> tuple[list[Any], list[tuple[Any, str]]]:
    return [low, high, float(low)], [(low - 1, at_least(low)), (high + 1, at_most(high))]


def named(longest: int = 255) -> tuple[list[Any], list[tuple[Any, str]]]:
    pattern = "expected letters, digits, spaces or any of _ , . -"
    return ["a", ".", "..", NAME_LETTERS, "x" * longest], [
        ("", "expected str of length >= 1"),
        ("x" * (longest + 1), f"expected str of length <= {longest}"),
        *((bad, pattern) for bad in ("a/b", "ü", "a\n", "a\0", "名", "a:b", "*", "\t")),
    ]


def not_empty() -> tuple[list[Any], list[tuple[Any, str]]]:
    return ["a", "http://ü/"], [("", "expected str of length >= 1"), (5, "expected str")]


def one_of(*members: str) -> tuple[list[Any], list[tuple[Any, str]]]:
    allowed = "expected one of " + ", ".join(f"{n} ({name})" for n, name in enumerate(members))
    return [*range(len(members))], [(len(members), allowed), (-1, allowed), ("x", "expected int")]


def yes_or_no() -> tuple[list[Any], list[tuple[Any, str]]]:
    return [True, False], [(1, "expected bool"), ("true", "expected bool")]


BATCHED = {"http": 500, "iotAnalytics": 100, "kinesis": 500, "IotSitewise": 10}

LIMITS = [
    Limit(MessageStreamDefinition, "name", *named()),
    Limit(MessageStreamDefinition, "maxSize", *between(1024, INT64_MAX)),
    Limit(MessageStreamDefinition, "streamSegmentSize", *between(1024, 2**31 - 1)),
    Limit(MessageStreamDefinition, "timeToLiveMillis", *between(60_000, MILLIS_MAX)),
    Limit(
        MessageStreamDefinition,
        "strategyOnFull",
        *one_of("RejectNewData", "OverwriteOldestData"),
    ),
    Limit(MessageStreamDefinition, "persistence", *one_of("File", "Memory")),
    Limit(MessageStreamDefinition, "flushOnWrite", *yes_or_no()),
    *(
        Limit(MessageStreamDefinition, f"exportDefinition.{group}[0].{name}", good, bad)
        for group in EXPORTS
        for name, (good, bad) in {
            "identifier": named(),
            "priority": between(1, 10),
            "disabled": yes_or_no(),
        }.items()
    ),
    *(
        Limit(MessageStreamDefinition, f"exportDefinition.{group}[0].{name}", good, bad)
        for group, largest in BATCHED.items()
        for name, (good, bad) in {
            "batchSize": between(1, largest),
            "batchIntervalMillis": between(60_000, MILLIS_MAX),
            "startSequenceNumber": between(0, INT64_MAX),
        }.items()
    ),
    Limit(MessageStreamDefinition, "exportDefinition.http[0].uri", *not_empty()),
    Limit(
        MessageStreamDefinition,
        "exportDefinition.http[0].exportFormat",
        *one_of("RAW_NOT_BATCHED", "JSON_BATCHED"),
    ),
    Limit(MessageStreamDefinition, "exportDefinition.iotAnalytics[0].iotChannel", *not_empty()),
    Limit(
        MessageStreamDefinition,
        "exportDefinition.iotAnalytics[0].iotMsgIdPrefix",
        ["", "x" * 32],
        [("x" * 33, "expected str of length <= 32")],
    ),
    Limit(MessageStreamDefinition, "exportDefinition.kinesis[0].kinesisStreamName", *not_empty()),
    Limit(
        MessageStreamDefinition,
        "exportDefinition.s3TaskExecutor[0].sizeThresholdForMultipartUploadBytes",
        *between(5_242_880, INT64_MAX),
    ),
    Limit(
        MessageStreamDefinition,
        "exportDefinition.s3TaskExecutor[0].statusConfig.statusLevel",
        *one_of("ERROR", "WARN", "INFO", "DEBUG", "TRACE"),
    ),
    Limit(
        MessageStreamDefinition,
        "exportDefinition.s3TaskExecutor[0].statusConfig.statusStreamName",
        *named(),
    ),
    Limit(ReadMessagesOptions, "desiredStartSequenceNumber", *between(0, INT64_MAX)),
    Limit(ReadMessagesOptions, "minMessageCount", *between(1, 2**31 - 1)),
    Limit(ReadMessagesOptions, "maxMessageCount", *between(1, 2**31 - 1)),
    Limit(ReadMessagesOptions, "readTimeoutMillis", *between(0, MILLIS_MAX)),
    Limit(
        S3ExportTaskDefinition,
        "bucket",
        ["abc", "a.b-c.9", "x" * 63],
        [
            ("ab", "expected str of length >= 3"),
            ("x" * 64, "expected str of length <= 63"),
            *(
                (bad, "expected str matching regex")
                for bad in ("Abc", "a_b", "-abc", "abc-", "a..b", ".abc", "192.168.0.1", "abc\n")
            ),
        ],
    ),
    Limit(
        S3ExportTaskDefinition,
        "key",
        ["a", "a/b.c", "x" * 1024, "!{timestamp:yyyy/MM/dd}/x", "ü", "a!b$c"],
        [
            ("", "expected str of length >= 1"),
            ("x" * 1025, "expected str of length <= 1024"),
            *(
                (f"a{bad}", "expected str matching regex")
                for bad in [*"\\{} %`[]\"'><~#^?|", "!{timestamp}", "!{a:b c}", "!{1:a}"]
            ),
        ],
    ),
    Limit(
        PutAssetPropertyValueEntry,
        "entryId",
        ["a", "A-z_0", "x" * 64],
        [
            ("", "expected str of length >= 1"),
            ("x" * 65, "expected str of length <= 64"),
            ("a b", "expected str matching regex"),
            ("a\n", "expected str matching regex"),
        ],
    ),
    Limit(
        PutAssetPropertyValueEntry,
        "propertyAlias",
        ["/a/ü", "x" * 2048],
        [
            ("", "expected str of length >= 1"),
            ("x" * 2049, "expected str of length <= 2048"),
            ("a\x07", "expected str matching regex"),
        ],
    ),
    Limit(
        PutAssetPropertyValueEntry,
        "propertyValues",
        [entry()["propertyValues"] * 10],
        [
            ([], "expected array of length >= 1"),
            (entry()["propertyValues"] * 11, "expected array of length <= 10"),
        ],
    ),
    Limit(
        PutAssetPropertyValueEntry,
        "propertyValues[0].value.integerValue",
        *between(-(2**31), 2**31 - 1),
    ),
    Limit(
        PutAssetPropertyValueEntry,
        "propertyValues[0].value.stringValue",
        ["a", "x" * 1024],
        [("", "length >= 1"), ("x" * 1025, "length <= 1024"), ("\x1f", "matching regex")],
    ),
    Limit(
        PutAssetPropertyValueEntry,
        "propertyValues[0].timestamp.timeInSeconds",
        *between(1, 31_556_889_864_403_199),
    ),
    Limit(
        PutAssetPropertyValueEntry,
        "propertyValues[0].timestamp.offsetInNanos",
        *between(0, 999_999_999),
    ),
    Limit(
        PutAssetPropertyValueEntry,
        "propertyValues[0].quality",
        ["GOOD", "BAD", "UNCERTAIN"],
        [("good", "expected one of GOOD, BAD, UNCERTAIN"), (0, "expected str")],
    ),
]


def value_id(value: Any) -> str:
    text = repr(value)
    return text if len(text) < 20 else f"{text[:20]}..."


@pytest.mark.parametrize(
    "case",
    [
        pytest.param(
            Case(limit.kind, put(limit.kind, limit.path, bad), limit.path, bad, allowed),
            id=f"{limit.path}-{value_id(bad)}",
        )
        for limit in LIMITS
        for bad, allowed in limit.bad
    ],
)
def test_value_outside_a_limit_is_rejected_with_path_and_limit(case: Case) -> None:
    with pytest.raises(InvalidRequestException) as caught:
        from_wire(case.value, case.kind)

    message = caught.value.message
    assert message.startswith(f"{case.path} is ")
    assert case.allowed in message
    assert len(message) < 400
    if not isinstance(case.shown, (str, list)):
        assert f" is {case.shown!r}: " in message
    assert caught.value.status is ResponseStatusCode.InvalidRequest


@pytest.mark.parametrize(
    ("kind", "path", "good"),
    [
        pytest.param(limit.kind, limit.path, good, id=f"{limit.path}-{value_id(good)}")
        for limit in LIMITS
        for good in limit.good
    ],
)
def test_value_at_the_limit_is_accepted(kind: type, path: str, good: Any) -> None:
    from_wire(put(kind, path, good), kind)


def test_s3_export_has_no_batches_and_no_start() -> None:
    ignored = {"batchSize": 0, "batchIntervalMillis": 0, "startSequenceNumber": -1}

    from_wire(with_export("s3TaskExecutor", **ignored), MessageStreamDefinition)

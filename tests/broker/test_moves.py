"""Moves of exports by updates, and definitions after a rewind."""

from __future__ import annotations

import re

import msgspec
import pytest

from penstock.broker.moves import change_export, find_moves, rewound, start_of
from penstock.errors import InvalidRequestException, ResourceNotFoundException
from penstock.model import (
    ExportConfig,
    ExportDefinition,
    HTTPConfig,
    KinesisConfig,
    MessageStreamDefinition,
    S3ExportTaskExecutorConfig,
    StrategyOnFull,
)


def define(*configs: ExportConfig) -> MessageStreamDefinition:
    return MessageStreamDefinition(
        name="s",
        strategy_on_full=StrategyOnFull.OverwriteOldestData,
        export_definition=ExportDefinition(
            kinesis=[each for each in configs if isinstance(each, KinesisConfig)],
            http=[each for each in configs if isinstance(each, HTTPConfig)],
            s3_task_executor=[
                each for each in configs if isinstance(each, S3ExportTaskExecutorConfig)
            ],
        ),
    )


def kinesis(start: int | None) -> KinesisConfig:
    return KinesisConfig("e", "x", start_sequence_number=start)


def test_start_defaults_to_0_and_s3_executors_have_none() -> None:
    assert start_of(kinesis(None)) == 0
    assert start_of(kinesis(7)) == 7
    assert start_of(S3ExportTaskExecutorConfig("e")) is None


@pytest.mark.parametrize(
    ("before", "after", "moves"),
    [
        (None, None, {}),
        (None, 0, {}),
        (0, None, {}),
        (7, 7, {}),
        (None, 7, {"e": 7}),
        (7, 3, {"e": 3}),
        (7, None, {"e": 0}),
    ],
)
def test_update_moves_an_export_whose_start_changes(
    before: int | None, after: int | None, moves: dict[str, int]
) -> None:
    other = HTTPConfig("other", "http://x", start_sequence_number=4)
    assert find_moves(define(kinesis(before), other), define(kinesis(after), other)) == moves


def test_update_does_not_move_new_exports_and_s3_executors() -> None:
    executor = S3ExportTaskExecutorConfig("e")
    assert find_moves(define(), define(kinesis(7))) == {}
    assert find_moves(define(kinesis(7)), define(executor)) == {}
    assert find_moves(define(executor), define(executor)) == {}
    assert find_moves(define(executor), define(kinesis(7))) == {"e": 7}


@pytest.mark.parametrize(
    ("start", "number", "after"),
    [(None, 0, None), (None, 9, None), (7, 9, 7), (7, 7, 7), (7, 3, 3), (7, 0, 0)],
)
def test_rewind_lowers_a_start_above_the_number(
    start: int | None, number: int, after: int | None
) -> None:
    definition = define(kinesis(start))
    changed = rewound(definition, "e", number, 9)
    assert changed == define(kinesis(after))
    # Exports detect a change by the identity of the object.
    assert changed is not definition


def test_rewind_does_not_change_s3_executors() -> None:
    definition = define(S3ExportTaskExecutorConfig("e"))
    assert rewound(definition, "e", 3, 9) == definition


@pytest.mark.parametrize("number", [-1, 10])
def test_rewind_outside_of_the_stream_is_rejected(number: int) -> None:
    message = f"sequenceNumber is {number}: expected 0 to 9"
    with pytest.raises(InvalidRequestException, match=re.escape(message)):
        rewound(define(kinesis(None)), "e", number, 9)


def test_unknown_export_is_rejected_with_the_known_exports() -> None:
    with pytest.raises(ResourceNotFoundException, match=r"'s' has no export 'f': it has 'e'"):
        rewound(define(kinesis(None)), "f", 0, 9)
    with pytest.raises(ResourceNotFoundException, match=r"'s' has no export 'f': it has none"):
        change_export(define(), "f", lambda export: export)


def test_change_export_changes_one_export() -> None:
    other = KinesisConfig("other", "x")
    changed = change_export(
        define(kinesis(7), other),
        "e",
        lambda export: msgspec.structs.replace(export, disabled=True),
    )
    assert changed == define(msgspec.structs.replace(kinesis(7), disabled=True), other)

"""`penstock bench`: how fast a broker is from here, on a stream that is gone afterwards."""

from __future__ import annotations

import os
import time
import uuid
from collections.abc import Callable
from typing import NamedTuple

import click

from penstock.cli.main import json_option
from penstock.cli.output import echo_json, echo_table
from penstock.cli.target import Target, target_options
from penstock.client.blocking import StreamManagerClient
from penstock.model import (
    MessageStreamDefinition,
    Persistence,
    ReadMessagesOptions,
    StrategyOnFull,
)

_MESSAGES_A_READ = 1000
# One at a time takes so much longer that a part of the messages has to do.
_SHARE_OF_ONE_AT_A_TIME = 10


class Figure(NamedTuple):
    name: str
    messages: int
    seconds: float

    @property
    def rate(self) -> float:
        return self.messages / self.seconds


@click.command()
@click.option(
    "--messages",
    type=click.IntRange(_MESSAGES_A_READ, 10_000_000),
    default=100_000,
    show_default=True,
    help="How many are appended and read; a tenth of them one at a time.",
)
@click.option(
    "--size",
    type=click.IntRange(1, 1024 * 1024),
    default=256,
    show_default=True,
    help="Bytes in each.",
)
@click.option("--memory", is_flag=True, help="A stream in memory instead of one in files.")
@click.option("--flush-on-write", is_flag=True, help="Wait for the disk before each answer.")
@target_options
@json_option
def bench(
    messages: int, size: int, memory: bool, flush_on_write: bool, target: Target, as_json: bool
) -> None:
    """Measure appends and reads of a broker, over one connection.

    It makes a stream of its own and deletes it at the end. Beside other systems Penstock is
    measured with `make bench`.
    """
    name = f"bench-{uuid.uuid4()}"
    with target.connect() as client:
        client.create_message_stream(
            MessageStreamDefinition(
                name=name,
                max_size=max(4 * messages * size, 1024 * 1024),
                strategy_on_full=StrategyOnFull.OverwriteOldestData,
                persistence=Persistence.Memory if memory else Persistence.File,
                flush_on_write=flush_on_write,
            )
        )
        try:
            figures = _measure(client, name, messages, size)
        finally:
            client.delete_message_stream(name)
    if as_json:
        echo_json(
            {
                "messageBytes": size,
                "figures": [{**figure._asdict(), "rate": round(figure.rate)} for figure in figures],
            }
        )
        return
    echo_table(
        (f"{size}-byte messages", "messages", "seconds", "messages/s", "MB/s"),
        [
            (
                figure.name,
                f"{figure.messages:,}",
                f"{figure.seconds:.2f}",
                f"{figure.rate:,.0f}",
                f"{figure.rate * size / 1e6:,.1f}",
            )
            for figure in figures
        ],
    )


def _measure(client: StreamManagerClient, name: str, messages: int, size: int) -> list[Figure]:
    payload = os.urandom(size)
    few = messages // _SHARE_OF_ONE_AT_A_TIME

    def append_one_at_a_time() -> None:
        for _ in range(few):
            client.append_message(name, payload)

    def append_many() -> None:
        client.append_messages(name, (payload for _ in range(messages)))

    def read() -> None:
        start = client.describe_message_stream(name).storage_status.oldest_sequence_number
        for first in range(start, start + messages, _MESSAGES_A_READ):
            client.read_messages(name, ReadMessagesOptions(first, max_message_count=1000))

    return [
        _time("append, one at a time", few, append_one_at_a_time),
        _time("append, many at a time", messages, append_many),
        _time(f"read, {_MESSAGES_A_READ:,} at a time", messages, read),
    ]


def _time(name: str, messages: int, work: Callable[[], None]) -> Figure:
    started = time.perf_counter()
    work()
    return Figure(name, messages, time.perf_counter() - started)

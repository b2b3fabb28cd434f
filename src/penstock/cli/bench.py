"""`penstock bench`: measure the throughput of a broker on a temporary stream."""

from __future__ import annotations

import os
import time
import uuid
from collections.abc import Callable
from typing import NamedTuple

import click

from penstock.cli.main import json_option
from penstock.cli.output import echo_json, echo_table
from penstock.cli.target import BrokerTarget, target_options
from penstock.client.blocking import StreamManagerClient
from penstock.model import (
    MessageStreamDefinition,
    Persistence,
    ReadMessagesOptions,
    StrategyOnFull,
)

_MESSAGES_PER_READ = 1000
# Single appends are much slower, so the benchmark appends only a tenth of the messages singly.
_SINGLE_APPENDS_DIVISOR = 10


class Throughput(NamedTuple):
    name: str
    messages: int
    seconds: float

    @property
    def rate(self) -> float:
        return self.messages / self.seconds


@click.command()
@click.option(
    "--messages",
    type=click.IntRange(_MESSAGES_PER_READ, 10_000_000),
    default=100_000,
    show_default=True,
    help="Messages to append and read; a tenth of them is appended one at a time.",
)
@click.option(
    "--size",
    type=click.IntRange(1, 1024 * 1024),
    default=256,
    show_default=True,
    help="Bytes per message.",
)
@click.option("--memory", is_flag=True, help="Use a stream in memory, not in files.")
@click.option("--flush-on-write", is_flag=True, help="Sync each append to the disk.")
@target_options
@json_option
def bench(
    messages: int,
    size: int,
    memory: bool,
    flush_on_write: bool,
    target: BrokerTarget,
    as_json: bool,
) -> None:
    """Measure append and read throughput over one connection.

    It creates a temporary stream and deletes it at the end. To compare Penstock with other systems,
    run `make bench` in a clone of the repository.
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


def _measure(client: StreamManagerClient, name: str, messages: int, size: int) -> list[Throughput]:
    payload = os.urandom(size)
    few = messages // _SINGLE_APPENDS_DIVISOR

    def append_one_at_a_time() -> None:
        for _ in range(few):
            client.append_message(name, payload)

    def append_many() -> None:
        client.append_messages(name, (payload for _ in range(messages)))

    def read() -> None:
        start = client.describe_message_stream(name).storage_status.oldest_sequence_number
        for first in range(start, start + messages, _MESSAGES_PER_READ):
            client.read_messages(name, ReadMessagesOptions(first, max_message_count=1000))

    return [
        _time("append, one at a time", few, append_one_at_a_time),
        _time("append, many at a time", messages, append_many),
        _time(f"read, {_MESSAGES_PER_READ:,} at a time", messages, read),
    ]


def _time(name: str, messages: int, work: Callable[[], None]) -> Throughput:
    started = time.perf_counter()
    work()
    return Throughput(name, messages, time.perf_counter() - started)

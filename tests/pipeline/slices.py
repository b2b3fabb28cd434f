"""Streams with exports over HTTP, and work that a real broker leases."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import Any

from penstock import ExportDefinition, HTTPConfig, MessageStreamDefinition, StrategyOnFull
from penstock.client.internal import InternalClient
from penstock.model.export_definition import CONFIG_OF_KIND, ExportConfig
from penstock.model.exporting import (
    AnyWork,
    CommittedReports,
    DeliveryReport,
    MessageSlice,
    TaskSlice,
)
from penstock.pipeline.destinations.destination import DestinationSettings


class RecordingClient(InternalClient):
    """A client that keeps the reports that it has sent."""

    def _begin(self) -> None:
        super()._begin()
        self.reports: list[DeliveryReport] = []
        # Called after a report was answered.
        self.on_report: Callable[[DeliveryReport], object] = lambda _: None

    def commit_exports(self, reports: Sequence[DeliveryReport]) -> CommittedReports:
        answer = super().commit_exports(reports)
        self.reports += reports
        for report in reports:
            self.on_report(report)
        return answer


_numbers = itertools.count()
_KINDS = {config: kind for kind, config in CONFIG_OF_KIND.items()}

PIPELINE = "p"
# Exports make no pauses between calls.
NO_PAUSE = DestinationSettings(kinesis_inter_call_delay_ms=0)


def new_name() -> str:
    return f"stream-{next(_numbers)}"


def create(client: InternalClient, config: ExportConfig, **fields: Any) -> str:
    """Creates a stream with one export, and returns its name."""
    name = new_name()
    configs: dict[str, Any] = {_KINDS[type(config)]: [config]}
    client.create_message_stream(
        MessageStreamDefinition(
            name,
            strategy_on_full=StrategyOnFull.OverwriteOldestData,
            export_definition=ExportDefinition(**configs),
            **fields,
        )
    )
    return name


def create_http(
    client: InternalClient, uri: str, payloads: Sequence[bytes] = (), **fields: Any
) -> str:
    """Creates a stream with one export over HTTP and these messages."""
    name = create(client, HTTPConfig("to-http", uri, **fields))
    if payloads:
        client.append_messages(name, payloads)
    return name


def plan(
    client: InternalClient, task: str = "1", pipeline: str = PIPELINE, **options: Any
) -> list[AnyWork]:
    """Leases work for a task that holds no other leases."""
    return client.plan_exports(pipeline, task, lease_millis=60_000, **options).work


def plan_slice(client: InternalClient, task: str = "1", **options: Any) -> MessageSlice:
    (work,) = plan(client, task, wait_millis=20_000, **options)
    assert isinstance(work, MessageSlice)
    return work


def plan_tasks(client: InternalClient, task: str = "1") -> TaskSlice:
    found = plan_slice(client, task)
    assert isinstance(found, TaskSlice)
    return found


def lost_messages(client: InternalClient, name: str) -> int:
    """The number of messages that the only export of a stream could not read."""
    (stream,) = [each for each in client.statistics().streams if each.name == name]
    (export,) = stream.exports
    return export.lost_messages


def last_exported(client: InternalClient, name: str) -> int:
    (status,) = client.describe_message_stream(name).export_statuses
    return status.last_exported_sequence_number


def error_of(client: InternalClient, name: str) -> str:
    (status,) = client.describe_message_stream(name).export_statuses
    return status.error_message or ""

"""Harnesses of all destinations, for the tests that they share.

The destination is real where possible: boto3 and urllib3 call a sandbox over HTTP, and a channel is
a directory.
"""

from __future__ import annotations

import json
import time
from abc import ABC, abstractmethod
from collections.abc import Mapping
from itertools import count
from pathlib import Path
from typing import Any

import pyarrow.dataset as ds

from penstock.model import (
    ExportConfig,
    ExportFormat,
    HTTPConfig,
    IoTAnalyticsConfig,
    IoTSiteWiseConfig,
    KinesisConfig,
)
from penstock.pipeline.delivery import DeliveryTotals, MessageDelivery, StopSignal
from penstock.pipeline.destinations import import_destination
from penstock.pipeline.destinations.channel import ChannelDestination, Files
from penstock.pipeline.destinations.destination import (
    Destination,
    DestinationSettings,
    ExportContext,
    Messages,
)
from penstock.sandbox.local_sandbox import Sandbox
from tests.support import TIMEOUT_S

_names = count()

STREAM = "turbine"
NO_PAUSE = DestinationSettings(kinesis_inter_call_delay_ms=0)


def make_export(
    config: ExportConfig, settings: DestinationSettings = NO_PAUSE, timeout: float = TIMEOUT_S
) -> ExportContext:
    return ExportContext(STREAM, "0af1", config, settings, None, timeout)


def deliver(
    destination: Destination, messages: Messages, end: int | None = None, *, stops: bool = False
) -> DeliveryTotals:
    """Runs a delivery to its end. With `stops` it is stopped after its first call."""
    stop = StopSignal()
    end = messages.numbers[-1] + 1 if end is None else end
    delivery = MessageDelivery(
        destination, messages, end, stop, stop.stop if stops else lambda: None
    )
    delivery.run()
    return delivery.totals()


class Harness(ABC):
    """One destination under test, with a unique name in the sandbox."""

    kind: str
    # The maximum number of messages in a call; None: no limit.
    max_messages: int | None
    # The service in the sandbox; None if the sandbox is not used.
    service: str | None
    # A payload that is always skipped, and a part of the reason.
    bad: tuple[bytes, str] | None = None
    can_fail_partly = False

    def __init__(self, sandbox: Sandbox, directory: Path) -> None:
        self.sandbox = sandbox
        self.directory = directory
        self.name = f"test{next(_names)}"

    @abstractmethod
    def config(self, batch_size: int | None = None) -> ExportConfig: ...

    @abstractmethod
    def arrived(self) -> list[int]:
        """The numbers of arrived messages, in the order of their arrival."""

    def payload(self, number: int) -> bytes:
        return str(number).encode()

    def open(self, batch_size: int | None = None, timeout: float = TIMEOUT_S) -> Destination:
        return import_destination(self.kind)(make_export(self.config(batch_size), timeout=timeout))

    def messages(self, numbers: range, bad: Mapping[int, bytes] | None = None) -> Messages:
        now = int(time.time() * 1000)
        payloads = [(bad or {}).get(number) or self.payload(number) for number in numbers]
        return Messages(STREAM, numbers[0], numbers, [now] * len(numbers), payloads)

    def fail_once(self) -> None:
        """Makes the next call fail as a whole."""
        assert self.service is not None
        self.sandbox.set_fault(self.service, status=503, for_calls=1)

    def fail_partly(self) -> None:
        """Makes every third message of the next call fail."""
        assert self.service is not None
        self.sandbox.set_fault(self.service, refuse_every=3, for_calls=1)


class KinesisHarness(Harness):
    kind = service = "kinesis"
    max_messages = 500
    bad = (bytes(1024 * 1024), "the maximum of a Kinesis record is 1048576")
    can_fail_partly = True

    def config(self, batch_size: int | None = None) -> ExportConfig:
        return KinesisConfig(identifier="e", kinesis_stream_name=self.name, batch_size=batch_size)

    def arrived(self) -> list[int]:
        return [int(payload) for payload in self.sandbox.payloads("kinesis", self.name)]


class SiteWiseHarness(Harness):
    kind = "iot_sitewise"
    service = "iotsitewise"
    max_messages = 10
    bad = (b"{", "not JSON")
    can_fail_partly = True

    def config(self, batch_size: int | None = None) -> ExportConfig:
        return IoTSiteWiseConfig(identifier="e", batch_size=batch_size)

    def payload(self, number: int) -> bytes:
        return json.dumps(self.entry(number)).encode()

    def entry(self, number: int, **fields: Any) -> dict[str, Any]:
        value = {
            "value": {"integerValue": -number},
            "timestamp": {"timeInSeconds": int(time.time()) - 10_000 + number},
        }
        return {
            "entryId": f"e-{number}",
            "propertyAlias": self.name,
            "propertyValues": [value],
        } | fields

    def arrived(self) -> list[int]:
        records = self.sandbox.records("iotsitewise", self.name)
        return [int(record["entryId"].removeprefix("e-")) for record in records]


class RawHttpHarness(Harness):
    kind = service = "http"
    max_messages = 1

    def config(self, batch_size: int | None = None) -> ExportConfig:
        return HTTPConfig(
            identifier="e", uri=self.sandbox.http_url(self.name), batch_size=batch_size
        )

    def arrived(self) -> list[int]:
        return [int(payload) for payload in self.sandbox.payloads("http", self.name)]


class JsonHttpHarness(Harness):
    kind = service = "http"
    max_messages = 500

    def config(self, batch_size: int | None = None) -> ExportConfig:
        return HTTPConfig(
            identifier="e",
            uri=self.sandbox.http_url(self.name),
            batch_size=batch_size,
            export_format=ExportFormat.JSON_BATCHED,
        )

    def arrived(self) -> list[int]:
        bodies = self.sandbox.payloads("http", self.name)
        return [message["sequenceNumber"] for body in bodies for message in json.loads(body)]


class _FailingFiles(Files):
    fails = False

    def rename(self, path: Path, target: Path) -> None:
        if self.fails:
            self.fails = False
            raise OSError(28, "No space left on device")
        super().rename(path, target)


class ChannelHarness(Harness):
    kind = "iot_analytics"
    service = None
    max_messages = None

    def __init__(self, sandbox: Sandbox, directory: Path) -> None:
        super().__init__(sandbox, directory)
        self._files = _FailingFiles()

    def config(self, batch_size: int | None = None) -> ExportConfig:
        return IoTAnalyticsConfig(identifier="e", iot_channel=self.name, batch_size=batch_size)

    def open(self, batch_size: int | None = None, timeout: float = TIMEOUT_S) -> Destination:
        settings = DestinationSettings(channels=str(self.directory))
        export = make_export(self.config(batch_size), settings, timeout)
        return ChannelDestination(export, self._files)

    def arrived(self) -> list[int]:
        rows = ds.dataset(self.directory / self.name, partitioning="hive").to_table()
        return [int(payload) for payload in rows["payload"].to_pylist() if payload]

    def fail_once(self) -> None:
        self._files.fails = True


HARNESSES = (KinesisHarness, SiteWiseHarness, RawHttpHarness, JsonHttpHarness, ChannelHarness)

"""Messages that arrived at the destinations: records of the sandbox, objects, channels."""

from __future__ import annotations

import base64
import hashlib
import json
from abc import ABC, abstractmethod
from collections.abc import Callable
from pathlib import Path
from typing import Any

import boto3
import pyarrow.parquet as pq
from botocore.config import Config
from botocore.exceptions import BotoCoreError, ClientError

from penstock.sandbox.client import SandboxClient
from penstock.sandbox.service import REGION
from penstock.spark.channels import list_parts
from soak.messages import MessageId, identify
from soak.sensors import identify_entry

_TIMEOUT_SECONDS = 30.0

Json = dict[str, Any]


def _one_message(record: Json) -> list[bytes]:
    return [base64.b64decode(record["data"])]


def _batch_of_messages(record: Json) -> list[bytes]:
    batch = json.loads(base64.b64decode(record["data"]))
    return [base64.b64decode(message["payload"]) for message in batch]


class Collector(ABC):
    """Collects the records of one resource of a service, in several pulls."""

    def __init__(self, cloud: SandboxClient, service: str, name: str) -> None:
        self.cloud = cloud
        self.service = service
        self.name = name
        self._next = 0

    def pull(self) -> int:
        """Collects new records; returns their number."""
        records = self.cloud.records(self.service, self.name, self._next)
        for record in records:
            # Raises OSError if an object cannot be read. The next pull retries it.
            self.add(record)
            self._next += 1
        return len(records)

    def reset(self) -> None:
        """Starts from the first record, after a restart of the sandbox has emptied it."""
        self._next = 0

    @abstractmethod
    def add(self, record: Json) -> None: ...


class Arrivals(Collector):
    """Messages that arrived at one resource of a service, across restarts of the sandbox."""

    def __init__(self, cloud: SandboxClient, service: str, name: str) -> None:
        super().__init__(cloud, service, name)
        self._unpack: Callable[[Json], list[bytes]] = (
            _batch_of_messages if service == "http" else _one_message
        )
        self.messages: list[MessageId | None] = []

    def add(self, record: Json) -> None:
        self.messages += [identify(payload) for payload in self._unpack(record)]


class Objects(Collector):
    """Digests of the objects that were written to a bucket, across restarts of the sandbox."""

    def __init__(self, cloud: SandboxClient, bucket: str) -> None:
        super().__init__(cloud, "s3", bucket)
        session = boto3.Session("sandbox", "sandbox", region_name=REGION)
        self._s3 = session.client(
            "s3",
            endpoint_url=cloud.url,
            config=Config(
                s3={"addressing_style": "path"},
                read_timeout=_TIMEOUT_SECONDS,
                retries={"max_attempts": 1},
            ),
        )
        self.digests: dict[str, str] = {}

    def add(self, record: Json) -> None:
        key = record["key"]
        try:
            content = self._s3.get_object(Bucket=self.name, Key=key)["Body"].read()
        except (BotoCoreError, ClientError) as error:
            raise OSError(f"{key}: {error}") from None
        self.digests[key] = hashlib.sha256(content).hexdigest()


class Entries(Collector):
    """Entries that arrived at one property of IoT SiteWise."""

    def __init__(self, cloud: SandboxClient, alias: str) -> None:
        super().__init__(cloud, "iotsitewise", alias)
        self.messages: list[MessageId | None] = []

    def add(self, record: Json) -> None:
        self.messages.append(identify_entry(record))


def read_channel(channels: Path, name: str) -> dict[str, list[MessageId | None]]:
    """Reads the messages of a channel in the order of its files, by stream."""
    found: dict[str, list[MessageId | None]] = {}
    for part in list_parts(channels, name):
        table = pq.read_table(part.path, columns=["stream", "payload"])
        for stream, payload in zip(*(column.to_pylist() for column in table.columns), strict=True):
            found.setdefault(stream, []).append(identify(payload))
    return found

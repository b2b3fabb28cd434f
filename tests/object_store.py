"""An object store for tests: SeaweedFS, which checks signatures, digests and parts."""

from __future__ import annotations

import contextlib
import json
import socket
import subprocess
import sysconfig
import urllib.error
import urllib.request
from pathlib import Path
from typing import TYPE_CHECKING, Self

import boto3
import pytest
from botocore.config import Config

from tests.support import TIMEOUT_S, clean_environment, wait_until

if TYPE_CHECKING:
    from mypy_boto3_s3 import S3Client

# The package contains an executable, not a module.
WEED = Path(sysconfig.get_path("scripts")) / "weed"

REGION = "eu-west-1"
LOG_TAIL_LINES = 40

# The servers of SeaweedFS. Each has an HTTP port and a gRPC port. The default ports may be taken.
SERVERS = ("master", "volume", "filer", "s3", "admin")
# SeaweedFS always creates its Unix sockets here, and does not remove all of them.
SOCKETS = Path("/tmp")

WRITER = ("AKIDWRITER", "what-only-the-writer-knows")
READER = ("AKIDREADER", "what-only-the-reader-knows")
IDENTITIES = {
    "identities": [
        {
            "name": name,
            "credentials": [{"accessKey": access_key, "secretKey": secret_key}],
            "actions": actions,
        }
        for name, (access_key, secret_key), actions in (
            ("writer", WRITER, ["Admin"]),
            ("reader", READER, ["Read", "List"]),
        )
    ]
}


class ObjectStore:
    """`weed mini` on the loopback interface, with a full-access and a read-only identity.

    A second `start` serves the same directory on the same ports.
    """

    def __init__(self, directory: Path) -> None:
        self.process: subprocess.Popen[bytes] | None = None
        self._directory = directory
        self._log = directory / "weed.log"
        self._ports = _find_free_ports()

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        # An orderly stop is slow, and the stored objects are not needed.
        if self.process is not None:
            self.kill()
        self._clear_up()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._ports['s3.port']}"

    @property
    def variables(self) -> dict[str, str]:
        """The environment of a program with full access."""
        return self._make_variables(*WRITER)

    @property
    def reader_variables(self) -> dict[str, str]:
        """The environment of a program with read-only access."""
        return self._make_variables(*READER)

    @property
    def log(self) -> str:
        return self._log.read_text() if self._log.exists() else ""

    def client(self, config: Config | None = None) -> S3Client:
        """Creates a client with full access and without retries."""
        access_key, secret_key = WRITER
        once = Config(retries={"total_max_attempts": 1})
        return boto3.client(
            "s3",
            endpoint_url=self.url,
            region_name=REGION,
            aws_access_key_id=access_key,
            aws_secret_access_key=secret_key,
            config=once.merge(config) if config else once,
        )

    def start(self) -> None:
        """Starts the process, and waits until it serves requests."""
        data = self._directory / "data"
        data.mkdir(parents=True, exist_ok=True)
        identities = self._directory / "identities.json"
        identities.write_text(json.dumps(IDENTITIES))
        with self._log.open("ab") as log:
            self.process = subprocess.Popen(
                [
                    str(WEED),
                    "-logtostderr",
                    "mini",
                    f"-dir={data}",
                    "-ip=127.0.0.1",
                    "-ip.bind=127.0.0.1",
                    *(f"-{name}={port}" for name, port in self._ports.items()),
                    "-s3.port.iceberg=0",
                    "-s3.port.lance=0",
                    f"-s3.config={identities}",
                    "-s3.autoCreateBucket=false",
                    "-webdav=false",
                    "-admin.ui=false",
                    "-master.telemetry=false",
                    # A volume is a file. The first write to a bucket creates several.
                    "-master.volumeSizeLimitMB=64",
                    "-volume.preStopSeconds=0",
                ],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=clean_environment(),
            )
        try:
            wait_until(self._is_serving, "the object store answers")
        except BaseException as error:
            self.kill()
            error.add_note("\n".join(self.log.splitlines()[-LOG_TAIL_LINES:]))
            raise

    def kill(self) -> None:
        """kill -9."""
        assert self.process is not None
        process, self.process = self.process, None
        process.kill()
        process.wait(TIMEOUT_S)

    def _clear_up(self) -> None:
        for port in self._ports.values():
            for left_behind in SOCKETS.glob(f"seaweedfs-*-{port}.sock"):
                left_behind.unlink()

    def _make_variables(self, access_key: str, secret_key: str) -> dict[str, str]:
        return {
            "AWS_ENDPOINT_URL_S3": self.url,
            "AWS_ACCESS_KEY_ID": access_key,
            "AWS_SECRET_ACCESS_KEY": secret_key,
            "AWS_REGION": REGION,
            "AWS_DEFAULT_REGION": REGION,
        }

    def _is_serving(self) -> bool:
        assert self.process is not None
        if (code := self.process.poll()) is not None:
            pytest.fail(f"the object store ended with {code}")
        try:
            with urllib.request.urlopen(f"{self.url}/healthz", timeout=TIMEOUT_S):
                return True
        except (urllib.error.URLError, ConnectionError):
            return False


def _find_free_ports() -> dict[str, int]:
    """Returns a free port for each port option."""
    flags = [f"{server}.{port}" for server in SERVERS for port in ("port", "port.grpc")]
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in flags]
        for one in sockets:
            one.bind(("127.0.0.1", 0))
        return {flag: one.getsockname()[1] for flag, one in zip(flags, sockets, strict=True)}

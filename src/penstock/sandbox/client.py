"""What a test or a demo asks of a sandbox that runs: faults, calls, records."""

from __future__ import annotations

import base64
import json
import re
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Mapping
from typing import Any

from penstock.sandbox.service import REGION

Json = dict[str, Any]

_TIMEOUT_S = 30.0

# Whatever proxy is set up is not for this machine.
_OPENER = urllib.request.build_opener(urllib.request.ProxyHandler({}))


class SandboxError(Exception):
    """What a sandbox cannot do, in one line."""


class SandboxClient:
    """The control API of the sandbox at a URL, for any number of threads; and its buckets."""

    def __init__(self, url: str) -> None:
        self.url = url.rstrip("/")

    @property
    def variables(self) -> dict[str, str]:
        """What the AWS SDKs need in their environment to find this sandbox."""
        return {
            "AWS_ENDPOINT_URL": self.url,
            "AWS_ACCESS_KEY_ID": "sandbox",
            "AWS_SECRET_ACCESS_KEY": "sandbox",
            "AWS_REGION": REGION,
            "AWS_DEFAULT_REGION": REGION,
            # SiteWise would be looked for at a host whose name begins with `data.`.
            "AWS_DISABLE_HOST_PREFIX_INJECTION": "true",
        }

    def http_url(self, name: str) -> str:
        """Where the sandbox keeps what is posted, under a name."""
        return f"{self.url}/_sandbox/http/{urllib.parse.quote(name)}"

    def set_fault(self, service: str, **switches: Any) -> None:
        """Turns on a fault: `set_fault("kinesis", throttle=True, for_calls=3)`.

        The fields are those of the control API, in its spelling or in Python's.
        """
        fault = {_camel(field): value for field, value in switches.items()}
        self._ask("PUT", "faults", body={"service": service, **fault})

    def clear_faults(self, service: str | None = None, name: str | None = None) -> None:
        self._ask("DELETE", "faults", {"service": service, "name": name})

    def faults(self) -> list[Json]:
        faults: list[Json] = self._ask("GET", "faults")["faults"]
        return faults

    def calls(self, service: str | None = None, name: str | None = None) -> list[Json]:
        """The latest calls, the oldest of them first."""
        calls: list[Json] = self._ask("GET", "calls", {"service": service, "name": name})["calls"]
        return calls

    def totals(self) -> dict[str, Json]:
        """Of all calls since the start or the last reset, by service."""
        totals: dict[str, Json] = self._ask("GET", "calls", {"service": "none"})["totals"]
        return totals

    def reset_calls(self) -> None:
        self._ask("DELETE", "calls")

    def names(self, service: str) -> list[str]:
        """The streams, channels, properties or HTTP sinks under which records may have come."""
        names: list[str] = self._ask("GET", "records", {"service": service})["names"]
        return names

    def records(self, service: str, name: str, first: int = 0) -> list[Json]:
        """All that arrived and is still there, in the order in which it came."""
        records: list[Json] = []
        while True:
            query = {"service": service, "name": name, "from": str(first)}
            page = self._ask("GET", "records", query)
            records += page["records"]
            first = page["next"]
            if first == page["end"]:
                return records

    def payloads(self, service: str, name: str, first: int = 0) -> list[bytes]:
        """The data alone, of services whose records have data."""
        records = self.records(service, name, first)
        return [base64.b64decode(record["data"]) for record in records]

    def create_bucket(self, name: str) -> None:
        """Makes an S3 bucket unless it is there; SandboxError with S3's code if it cannot be."""
        request = urllib.request.Request(  # noqa: S310 - whoever made this object chose the URL
            f"{self.url}/{urllib.parse.quote(name)}", method="PUT"
        )
        try:
            _OPENER.open(request, timeout=_TIMEOUT_S).close()
        except urllib.error.HTTPError as error:
            with error:
                code = re.search(rb"<Code>(\w+)</Code>", error.read())
            outcome = code[1].decode() if code else str(error.code)
            if outcome != "BucketAlreadyOwnedByYou":
                raise SandboxError(f"bucket {name!r}: {outcome}") from None

    def is_healthy(self) -> bool:
        try:
            return bool(self._ask("GET", "health")["status"] == "ok")
        except OSError:
            return False

    def _ask(
        self,
        method: str,
        what: str,
        query: Mapping[str, str | None] | None = None,
        body: Json | None = None,
    ) -> Json:
        fields = {name: value for name, value in (query or {}).items() if value is not None}
        request = urllib.request.Request(  # noqa: S310 - whoever made this object chose the URL
            f"{self.url}/_sandbox/{what}?{urllib.parse.urlencode(fields)}",
            method=method,
            data=None if body is None else json.dumps(body).encode(),
        )
        try:
            with _OPENER.open(request, timeout=_TIMEOUT_S) as response:
                answer: Json = json.load(response)
                return answer
        except urllib.error.HTTPError as error:
            with error:
                raise SandboxError(json.load(error)["error"]) from None


def _camel(field: str) -> str:
    return re.sub(r"_(\w)", lambda letter: letter[1].upper(), field)

"""A client of a running sandbox, for tests and the demo: faults, calls, records."""

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

# Without a proxy: the sandbox is on this machine.
_OPENER = urllib.request.build_opener(urllib.request.ProxyHandler({}))


class SandboxError(Exception):
    """An error of a sandbox, in one line."""


class SandboxClient:
    """The control API and the buckets of the sandbox at a URL. Thread-safe."""

    def __init__(self, url: str) -> None:
        self.url = url.rstrip("/")

    @property
    def variables(self) -> dict[str, str]:
        """The environment variables with which the AWS SDKs use this sandbox."""
        return {
            "AWS_ENDPOINT_URL": self.url,
            "AWS_ACCESS_KEY_ID": "sandbox",
            "AWS_SECRET_ACCESS_KEY": "sandbox",
            "AWS_REGION": REGION,
            "AWS_DEFAULT_REGION": REGION,
            # SDKs would prefix the host of SiteWise with `data.`.
            "AWS_DISABLE_HOST_PREFIX_INJECTION": "true",
        }

    def http_url(self, name: str) -> str:
        """The URL of the HTTP sink with this name."""
        return f"{self.url}/_sandbox/http/{urllib.parse.quote(name)}"

    def set_fault(self, service: str, **fields: Any) -> None:
        """Turns on a fault: `set_fault("kinesis", throttle=True, for_calls=3)`.

        Takes the fields of the control API, in camel case or in snake case.
        """
        fault = {_camel(field): value for field, value in fields.items()}
        self._request("PUT", "faults", body={"service": service, **fault})

    def clear_faults(self, service: str | None = None, name: str | None = None) -> None:
        self._request("DELETE", "faults", {"service": service, "name": name})

    def faults(self) -> list[Json]:
        faults: list[Json] = self._request("GET", "faults")["faults"]
        return faults

    def calls(self, service: str | None = None, name: str | None = None) -> list[Json]:
        """Returns the latest calls, oldest first."""
        calls: list[Json] = self._request("GET", "calls", {"service": service, "name": name})[
            "calls"
        ]
        return calls

    def totals(self) -> dict[str, Json]:
        """Returns totals of all calls since the start or the last reset, by service."""
        totals: dict[str, Json] = self._request("GET", "calls", {"service": "none"})["totals"]
        return totals

    def reset_calls(self) -> None:
        self._request("DELETE", "calls")

    def names(self, service: str) -> list[str]:
        """Returns the streams, channels, properties or HTTP sinks of a service."""
        names: list[str] = self._request("GET", "records", {"service": service})["names"]
        return names

    def records(self, service: str, name: str, first: int = 0) -> list[Json]:
        """Returns all stored records from the number `first` on, in order of arrival."""
        records: list[Json] = []
        while True:
            query = {"service": service, "name": name, "from": str(first)}
            page = self._request("GET", "records", query)
            records += page["records"]
            first = page["next"]
            if first == page["end"]:
                return records

    def payloads(self, service: str, name: str, first: int = 0) -> list[bytes]:
        """Returns the data of the records, for services whose records have data."""
        records = self.records(service, name, first)
        return [base64.b64decode(record["data"]) for record in records]

    def create_bucket(self, name: str) -> None:
        """Creates an S3 bucket unless it exists. Raises SandboxError with S3's error code."""
        request = urllib.request.Request(  # noqa: S310 - the caller chose the URL
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
            return bool(self._request("GET", "health")["status"] == "ok")
        except OSError:
            return False

    def _request(
        self,
        method: str,
        resource: str,
        query: Mapping[str, str | None] | None = None,
        body: Json | None = None,
    ) -> Json:
        fields = {name: value for name, value in (query or {}).items() if value is not None}
        request = urllib.request.Request(  # noqa: S310 - the caller chose the URL
            f"{self.url}/_sandbox/{resource}?{urllib.parse.urlencode(fields)}",
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

"""IoT SiteWise: values of properties, put and read back.

What it checks stands here a second time, apart from the model: a sandbox that shared the checks of
the exporter could not find out that they are wrong.
"""

from __future__ import annotations

import base64
from collections.abc import Callable, Mapping
from datetime import datetime
from typing import Annotated, Any, Literal, NamedTuple

import msgspec
from msgspec import Meta

from penstock.sandbox.service import (
    RecordingService,
    ServiceCall,
    ServiceError,
    ServiceRequest,
    ServiceResponse,
    json_answer,
    read_json,
    unknown,
)

_ENTRIES_PER_CALL = 10
_VALUES_PER_ENTRY = 10
_PAST_SECONDS = 7 * 24 * 3600
_FUTURE_SECONDS = 10 * 60
_HISTORY_RESULTS = 100
_INVALID = "InvalidRequestException"

_Id = Annotated[
    str, Meta(pattern=r"\A[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}\Z")
]


class _Null(msgspec.Struct, rename="camel"):
    value_type: Literal["D", "B", "S", "I", "U"]


class _Variant(msgspec.Struct, rename="camel", omit_defaults=True):
    string_value: str | None = None
    integer_value: Annotated[int, Meta(ge=-(2**31), le=2**31 - 1)] | None = None
    double_value: float | None = None
    boolean_value: bool | None = None
    null_value: _Null | None = None


class _Time(msgspec.Struct, rename="camel", frozen=True):
    time_in_seconds: Annotated[int, Meta(ge=1, le=9_223_372_036_854_774)]
    offset_in_nanos: Annotated[int, Meta(ge=0, le=999_999_999)] = 0


class _StoredValue(msgspec.Struct, rename="camel"):
    value: _Variant
    timestamp: _Time
    quality: Literal["GOOD", "BAD", "UNCERTAIN"] = "GOOD"


class PropertyEntry(msgspec.Struct, rename="camel", omit_defaults=True):
    """Values of one property; when it is kept, those that were accepted, and when it came."""

    entry_id: Annotated[str, Meta(min_length=1, max_length=64, pattern=r"\A[a-zA-Z0-9_-]+\Z")]
    property_values: Annotated[list[_StoredValue], Meta(min_length=1, max_length=_VALUES_PER_ENTRY)]
    asset_id: _Id | None = None
    property_id: _Id | None = None
    property_alias: (
        Annotated[str, Meta(min_length=1, max_length=2048, pattern=r"\A[^\x00-\x1F\x7F]+\Z")] | None
    ) = None
    time: float = 0.0

    @property
    def name(self) -> str:
        return _property_name(self.property_alias, self.asset_id, self.property_id)


class _PutValues(msgspec.Struct, rename="camel"):
    entries: Annotated[list[PropertyEntry], Meta(min_length=1, max_length=_ENTRIES_PER_CALL)]
    enable_partial_entry_processing: bool = False


class _Problem(NamedTuple):
    code: str
    message: str


class SiteWise(RecordingService[PropertyEntry]):
    name = "iotsitewise"
    throttled = (429, "ThrottlingException")
    refusal = "ThrottlingException"

    def read(self, request: ServiceRequest) -> ServiceCall:
        if (request.method, request.path) == ("POST", "/properties"):
            return self._read_put(request.body)
        if (request.method, request.path) == ("GET", "/properties/history"):
            return self._read_query("GetAssetPropertyValueHistory", request, self._history)
        if (request.method, request.path) == ("GET", "/properties/latest"):
            return self._read_query("GetAssetPropertyValue", request, self._latest)
        raise unknown(request)

    def _read_put(self, body: bytes) -> ServiceCall:
        put = read_json(body, _PutValues, _INVALID)
        _check(put)
        names = tuple(entry.name for entry in put.entries)
        return ServiceCall(
            "BatchPutAssetPropertyValue",
            tuple(dict.fromkeys(names)),
            names,
            lambda refused: self._put(put, refused, len(body)),
        )

    def _put(self, put: _PutValues, refused: Mapping[int, str], size: int) -> ServiceResponse:
        now = self.clock()
        seen: set[tuple[str, _Time]] = set()
        error_entries = []
        stored = 0
        for place, entry in enumerate(put.entries):
            if place in refused:
                problem = _Problem(refused[place] or self.refusal, "a fault of the sandbox")
                problems = {problem: [value.timestamp for value in entry.property_values]}
                accepted: list[_StoredValue] = []
            else:
                problems, accepted = _judge(entry, seen, now)
            if problems:
                error_entries.append(_error_entry(entry, problems))
                if not put.enable_partial_entry_processing:
                    accepted = []
            if accepted:
                kept = msgspec.structs.replace(entry, property_values=accepted, time=now * 1000)
                self.buffers.add(entry.name, kept, size // len(put.entries))
                stored += 1
        return json_answer(
            {"errorEntries": error_entries}, stored=stored, refused=len(error_entries)
        )

    def _read_query(
        self,
        operation: str,
        request: ServiceRequest,
        perform: Callable[[str, Mapping[str, str]], dict[str, Any]],
    ) -> ServiceCall:
        query = request.query
        name = _property_name(
            query.get("propertyAlias"), query.get("assetId"), query.get("propertyId")
        )
        return ServiceCall(operation, (name,), (), lambda _: json_answer(perform(name, query)))

    def _values(self, name: str) -> list[_StoredValue]:
        """In the order of their timestamps; a later one replaces that of the same quality."""
        entries = self.buffers.all(name)
        if not entries:
            raise ServiceError(
                404, "ResourceNotFoundException", f"nothing arrived for property {name}"
            )
        values = {
            (_nanos(value.timestamp), value.quality): value
            for entry in entries
            for value in entry.property_values
        }
        return [values[key] for key in sorted(values)]

    def _latest(self, name: str, _: Mapping[str, str]) -> dict[str, Any]:
        return {"propertyValue": self._values(name)[-1]}

    def _history(self, name: str, query: Mapping[str, str]) -> dict[str, Any]:
        after = _nanos_of_date(query.get("startDate"), 0)
        until = _nanos_of_date(query.get("endDate"), int(self.clock() + _FUTURE_SECONDS) * 10**9)
        values = [v for v in self._values(name) if after < _nanos(v.timestamp) <= until]
        if "qualities" in query:
            values = [value for value in values if value.quality == query["qualities"]]
        if query.get("timeOrdering") == "DESCENDING":
            values.reverse()
        try:
            start = int(base64.b64decode(query.get("nextToken", ""), validate=True) or b"0")
            end = start + int(query.get("maxResults", _HISTORY_RESULTS))
        except ValueError as error:
            raise ServiceError(400, _INVALID, str(error)) from None
        answer: dict[str, Any] = {"assetPropertyValueHistory": values[start:end]}
        if end < len(values):
            answer["nextToken"] = base64.b64encode(str(end).encode()).decode()
        return answer


def _property_name(alias: str | None, asset: str | None, property_id: str | None) -> str:
    """The alias, or both identifiers: what faults and records call the property."""
    if alias is not None and asset is None and property_id is None:
        return alias
    if alias is None and asset is not None and property_id is not None:
        return f"{asset}/{property_id}"
    raise ServiceError(
        400, _INVALID, "a property is named by propertyAlias, or by assetId and propertyId"
    )


def _check(put: _PutValues) -> None:
    ids = [entry.entry_id for entry in put.entries]
    if len(set(ids)) < len(ids):
        raise ServiceError(400, _INVALID, "entryId: has to be unique within a call")
    for entry in put.entries:
        for value in entry.property_values:
            if len(msgspec.to_builtins(value.value)) != 1:
                raise ServiceError(
                    400, _INVALID, f"entry {entry.entry_id}: a value has exactly one type"
                )


def _judge(
    entry: PropertyEntry, seen: set[tuple[str, _Time]], now: float
) -> tuple[dict[_Problem, list[_Time]], list[_StoredValue]]:
    problems: dict[_Problem, list[_Time]] = {}
    accepted = []
    for value in entry.property_values:
        problem = None
        if not now - _PAST_SECONDS <= value.timestamp.time_in_seconds <= now + _FUTURE_SECONDS:
            problem = _Problem(
                "TimestampOutOfRangeException",
                "Timestamps must not be more than 7 days in the past or 10 minutes in the future",
            )
        elif (entry.name, value.timestamp) in seen:
            problem = _Problem(
                "ConflictingOperationException",
                "There is another value for the same property and timestamp in this call",
            )
        if problem is None:
            seen.add((entry.name, value.timestamp))
            accepted.append(value)
        else:
            problems.setdefault(problem, []).append(value.timestamp)
    return problems, accepted


def _error_entry(entry: PropertyEntry, problems: dict[_Problem, list[_Time]]) -> dict[str, Any]:
    return {
        "entryId": entry.entry_id,
        "errors": [
            {"errorCode": code, "errorMessage": message, "timestamps": timestamps}
            for (code, message), timestamps in problems.items()
        ],
    }


def _nanos(timestamp: _Time) -> int:
    return timestamp.time_in_seconds * 10**9 + timestamp.offset_in_nanos


def _nanos_of_date(text: str | None, default: int) -> int:
    if text is None:
        return default
    try:
        return int(datetime.fromisoformat(text).timestamp() * 1000) * 10**6
    except ValueError:
        raise ServiceError(400, _INVALID, f"{text!r} is not a date") from None

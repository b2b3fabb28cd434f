"""IoT SiteWise: puts and reads values of properties.

The checks of the model are repeated on purpose: with shared code, the sandbox could not detect
errors of the exporter.
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
    unknown_operation,
)

_MAX_ENTRIES_PER_CALL = 10
_MAX_VALUES_PER_ENTRY = 10
_MAX_PAST_SECONDS = 7 * 24 * 3600
_MAX_FUTURE_SECONDS = 10 * 60
_DEFAULT_HISTORY_RESULTS = 100
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
    """Values of one property. A stored entry has the accepted values and the time of arrival."""

    entry_id: Annotated[str, Meta(min_length=1, max_length=64, pattern=r"\A[a-zA-Z0-9_-]+\Z")]
    property_values: Annotated[
        list[_StoredValue], Meta(min_length=1, max_length=_MAX_VALUES_PER_ENTRY)
    ]
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
    entries: Annotated[list[PropertyEntry], Meta(min_length=1, max_length=_MAX_ENTRIES_PER_CALL)]
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
        raise unknown_operation(request)

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
        for index, entry in enumerate(put.entries):
            if index in refused:
                problem = _Problem(refused[index] or self.refusal, "injected fault")
                problems = {problem: [value.timestamp for value in entry.property_values]}
                accepted: list[_StoredValue] = []
            else:
                problems, accepted = _validate_entry(entry, seen, now)
            if problems:
                error_entries.append(_error_entry(entry, problems))
                if not put.enable_partial_entry_processing:
                    accepted = []
            if accepted:
                stored_entry = msgspec.structs.replace(
                    entry, property_values=accepted, time=now * 1000
                )
                self.buffers.add(entry.name, stored_entry, size // len(put.entries))
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
        """Returns values by timestamp. The latest of the same timestamp and quality wins."""
        entries = self.buffers.all(name)
        if not entries:
            raise ServiceError(
                404, "ResourceNotFoundException", f"the property {name} has no values"
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
        until = _nanos_of_date(
            query.get("endDate"), int(self.clock() + _MAX_FUTURE_SECONDS) * 10**9
        )
        values = [v for v in self._values(name) if after < _nanos(v.timestamp) <= until]
        if "qualities" in query:
            values = [value for value in values if value.quality == query["qualities"]]
        if query.get("timeOrdering") == "DESCENDING":
            values.reverse()
        try:
            start = int(base64.b64decode(query.get("nextToken", ""), validate=True) or b"0")
            end = start + int(query.get("maxResults", _DEFAULT_HISTORY_RESULTS))
        except ValueError as error:
            raise ServiceError(400, _INVALID, str(error)) from None
        answer: dict[str, Any] = {"assetPropertyValueHistory": values[start:end]}
        if end < len(values):
            answer["nextToken"] = base64.b64encode(str(end).encode()).decode()
        return answer


def _property_name(alias: str | None, asset: str | None, property_id: str | None) -> str:
    """The name of a property for faults and records: the alias, or both identifiers."""
    if alias is not None and asset is None and property_id is None:
        return alias
    if alias is None and asset is not None and property_id is not None:
        return f"{asset}/{property_id}"
    raise ServiceError(400, _INVALID, "a property needs propertyAlias, or assetId and propertyId")


def _check(put: _PutValues) -> None:
    ids = [entry.entry_id for entry in put.entries]
    if len(set(ids)) < len(ids):
        raise ServiceError(400, _INVALID, "entryId: must be unique within a call")
    for entry in put.entries:
        for value in entry.property_values:
            if len(msgspec.to_builtins(value.value)) != 1:
                raise ServiceError(
                    400, _INVALID, f"entry {entry.entry_id}: a value must have exactly one type"
                )


def _validate_entry(
    entry: PropertyEntry, seen: set[tuple[str, _Time]], now: float
) -> tuple[dict[_Problem, list[_Time]], list[_StoredValue]]:
    problems: dict[_Problem, list[_Time]] = {}
    accepted = []
    for value in entry.property_values:
        problem = None
        if (
            not now - _MAX_PAST_SECONDS
            <= value.timestamp.time_in_seconds
            <= now + _MAX_FUTURE_SECONDS
        ):
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

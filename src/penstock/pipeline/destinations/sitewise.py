"""IoT SiteWise: BatchPutAssetPropertyValue, each message one entry as JSON.

An entry goes out as the program wrote it: fields that are not known here are SiteWise's business.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence
from typing import Annotated, Any, NamedTuple

import msgspec
from msgspec import Meta

from penstock.errors import InvalidRequestException
from penstock.model import IoTSiteWiseConfig, TimeInNanos, from_wire
from penstock.pipeline.destinations import aws
from penstock.pipeline.destinations.destination import (
    Answer,
    Call,
    Destination,
    Export,
    Messages,
    UnavailableError,
)

_SERVICE = "iotsitewise"
_OPERATION = "BatchPutAssetPropertyValue"
_MOST_ENTRIES = 10

# Of an entry with one of these errors nothing will ever become. One with any other may arrive when
# it is sent again: some pass, and others the user can do something about.
_FINAL_ERRORS = ("InvalidRequest", "TimestampOutOfRange")


class _Value(msgspec.Struct, rename="camel"):
    # Whether it is one is for SiteWise to say, which has learned new ones since its SDKs were made.
    value: dict[str, Any]
    timestamp: TimeInNanos


class _Entry(msgspec.Struct, rename="camel"):
    """PutAssetPropertyValueEntry, as far as it matters here."""

    entry_id: Annotated[str, Meta(min_length=1, max_length=64, pattern=r"\A[a-zA-Z0-9_-]+\Z")]
    property_values: Annotated[list[_Value], Meta(min_length=1, max_length=10)]
    asset_id: str | None = None
    property_id: str | None = None
    property_alias: str | None = None


class _Sent(NamedTuple):
    # By the id of its entry.
    numbers: dict[str, int]
    body: bytes


class _Error(msgspec.Struct, rename="camel"):
    error_code: str = ""
    error_message: str = ""


class _ErrorEntry(msgspec.Struct, rename="camel"):
    entry_id: str
    errors: list[_Error] = []


class _Answered(msgspec.Struct, rename="camel"):
    # Not optional: what has none is no answer of SiteWise, and nothing may have arrived.
    error_entries: list[_ErrorEntry]


_decode_answered = msgspec.json.Decoder(_Answered).decode


class SiteWiseDestination(Destination):
    def __init__(self, export: Export) -> None:
        assert isinstance(export.config, IoTSiteWiseConfig)
        self._patience = export.patience
        self._most_entries = min(export.config.batch_size or _MOST_ENTRIES, _MOST_ENTRIES)

    def prepare(self, messages: Messages, start: int, limit: int) -> Call:
        skipped: dict[int, str] = {}
        numbers: dict[str, int] = {}
        payloads: list[bytes] = []
        taken: set[Hashable] = set()
        stop = start
        end = min(start + limit, len(messages.numbers))
        while stop < end and len(payloads) < self._most_entries:
            number, payload = messages.numbers[stop], messages.payloads[stop]
            try:
                entry = _parse_entry(payload)
            except ValueError as error:
                skipped[number] = str(error)
            else:
                values = set(_name_values(entry))
                if entry.entry_id in numbers or not taken.isdisjoint(values):
                    # SiteWise refuses both if they come together. One after the other is fine.
                    break
                taken |= values
                numbers[entry.entry_id] = number
                payloads.append(payload)
            stop += 1
        if not payloads:
            return Call(start, stop, skipped, None, 0)
        body = b'{"entries":[%s]}' % b",".join(payloads)
        return Call(start, stop, skipped, _Sent(numbers, body), len(body))

    def send(self, call: Call) -> Answer:
        numbers, body = call.content
        text = aws.call(_SERVICE, _OPERATION, body, self._patience)
        try:
            answer = _decode_answered(text)
        except msgspec.MsgspecError as error:
            raise UnavailableError(f"{_SERVICE} {_OPERATION}: not an answer: {error}") from None
        failed: dict[int, str] = {}
        refused: dict[int, str] = {}
        for entry in answer.error_entries:
            if entry.entry_id not in numbers:
                raise UnavailableError(
                    f"{_SERVICE} {_OPERATION}: an error of an entry that was not sent"
                )
            is_final, reason = _judge(entry.errors)
            (refused if is_final else failed)[numbers[entry.entry_id]] = reason
        return Answer(failed, refused)

    def close(self) -> None:
        """Nothing: connections are those of the process."""


def _parse_entry(payload: bytes) -> _Entry:
    """ValueError, with the reason, for what SiteWise can never take."""
    try:
        plain = msgspec.json.decode(payload)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise ValueError(f"not JSON: {error}") from None
    if not isinstance(plain, dict):
        raise ValueError("not a SiteWise entry: expected a JSON object")  # noqa: TRY004
    try:
        entry = from_wire(plain, _Entry)
    except InvalidRequestException as error:
        raise ValueError(f"not a SiteWise entry: {error}") from None
    if not entry.property_alias and not (entry.asset_id and entry.property_id):
        raise ValueError("not a SiteWise entry: no propertyAlias, nor both assetId and propertyId")
    return entry


def _name_values(entry: _Entry) -> Iterator[Hashable]:
    """What no other entry of a call may have: each of its timestamps of its property."""
    for value in entry.property_values:
        moment = value.timestamp.time_in_seconds, value.timestamp.offset_in_nanos or 0
        yield entry.property_alias or (entry.asset_id, entry.property_id), moment


def _judge(errors: Sequence[_Error]) -> tuple[bool, str]:
    """Whether an entry will never arrive, and why.

    Errors may be of some of its values only. It is sent again as a whole if that may help one of
    them: SiteWise replaces a value by the same one.
    """
    lasting = [error for error in errors if not error.error_code.startswith(_FINAL_ERRORS)]
    error = next(iter(lasting or errors), _Error(error_message="an error that is not named"))
    text = f"{_SERVICE} {_OPERATION}: {error.error_code}: {error.error_message}"
    return bool(errors) and not lasting, text

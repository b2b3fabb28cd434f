"""IoT SiteWise: BatchPutAssetPropertyValue, each message one entry or several, as JSON.

A message is an entry, a list of entries, or an object `{"entries": [...]}`. An entry is sent as the
program wrote it: SiteWise may know fields that are not known here.

Every entry is delivered and judged by itself, and its message is settled when all of them are:

- Entries that fail for a passing reason are retried, and only these, as long as the delivery lasts.
  The next delivery sends the whole message again: SiteWise replaces a value by the same one.
- If an entry is refused for good, the others are sent nevertheless. The message is skipped, with a
  reason that names the entry by its place, such as `entries[2]`.

Messages share a call as long as their entries fit in one. A message that needs several calls does
not share them; all of them are made within one `send`.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from itertools import chain
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
    RefusedError,
)

_SERVICE = "iotsitewise"
_OPERATION = "BatchPutAssetPropertyValue"
_MAX_ENTRIES = 10
# The calls of a message are one `send`: after a crash all of them are repeated.
_MAX_MESSAGE_ENTRIES = 200

# An entry with one of these errors will never be accepted. All other errors may pass, or the user
# may remove their cause.
_FINAL_ERRORS = ("InvalidRequest", "TimestampOutOfRange")


class _Value(msgspec.Struct, rename="camel"):
    # SiteWise checks it: there are new types of values since its SDKs were made.
    value: dict[str, Any]
    timestamp: TimeInNanos


class _Fields(msgspec.Struct, rename="camel"):
    """PutAssetPropertyValueEntry, as far as it matters here."""

    entry_id: Annotated[str, Meta(min_length=1, max_length=64, pattern=r"\A[a-zA-Z0-9_-]+\Z")]
    property_values: Annotated[list[_Value], Meta(min_length=1, max_length=10)]
    asset_id: str | None = None
    property_id: str | None = None
    property_alias: str | None = None


class _Entry(NamedTuple):
    # The sequence number of its message.
    number: int
    # Its place in the message, for reasons; empty if the message is the entry.
    place: str
    entry_id: str
    # No other entry of a call may have one of these: its id, and the property and time of a value.
    claims: set[Hashable]
    text: msgspec.Raw


class _Message(NamedTuple):
    """A message that is not settled."""

    # By place: entries that have not arrived, and may.
    pending: dict[str, _Entry]
    # By place: why an entry has not arrived. If it is not pending, it never will.
    reasons: dict[str, str]

    def describe(self) -> str:
        """The reasons why it is pending or refused, each once, with the places of its entries."""
        places: dict[str, list[str]] = {}
        for place, reason in self.reasons.items():
            if place in self.pending or not self.pending:
                places.setdefault(reason, []).append(place)
        return "; ".join(
            f"{reason} ({', '.join(found)})" if any(found) else reason
            for reason, found in places.items()
        )


class _Error(msgspec.Struct, rename="camel"):
    error_code: str = ""
    error_message: str = ""


class _ErrorEntry(msgspec.Struct, rename="camel"):
    entry_id: str
    errors: list[_Error] = []


class _Result(msgspec.Struct, rename="camel"):
    # Required: an answer without it is not from SiteWise, and nothing may have arrived.
    error_entries: list[_ErrorEntry]


_decode_result = msgspec.json.Decoder(_Result).decode


class SiteWiseDestination(Destination):
    def __init__(self, export: Export) -> None:
        assert isinstance(export.config, IoTSiteWiseConfig)
        self._timeout = export.timeout
        self._max_messages = min(export.config.batch_size or _MAX_ENTRIES, _MAX_ENTRIES)
        # By sequence number.
        self._messages: dict[int, _Message] = {}

    def prepare(self, messages: Messages, start: int, limit: int) -> Call:
        skipped: dict[int, str] = {}
        numbers: list[int] = []
        # The entries of each call of the API. If there are several, they are of one message.
        batches: list[list[_Entry]] = []
        stop = start
        end = min(start + limit, len(messages.numbers))
        while stop < end and len(numbers) < self._max_messages:
            number = messages.numbers[stop]
            message = self._messages.get(number) or _read_message(number, messages.payloads[stop])
            if message.pending:
                packed = _pack(chain(*batches, message.pending.values()))
                if numbers and len(packed) > 1:
                    break
                batches = packed
                numbers.append(number)
                self._messages[number] = message
            else:
                skipped[number] = message.describe()
            stop += 1
        if not numbers:
            return Call(start, stop, skipped)
        size = sum(len(_encode_body(batch)) for batch in batches)
        return Call(start, stop, skipped, numbers, batches, size)

    def send(self, call: Call) -> Answer:
        failed_values: set[Hashable] = set()
        waiting = [*reversed(call.content)]
        while waiting:
            # A value that replaces one that has failed must not arrive before it.
            batch = [entry for entry in waiting.pop() if failed_values.isdisjoint(entry.claims)]
            if not batch:
                continue
            try:
                failed, refused = self._put(batch)
            except RefusedError as refusal:
                # Of several messages the delivery finds the one that is invalid.
                if len(call.numbers) > 1:
                    raise
                if len(batch) > 1:
                    waiting += [[entry] for entry in reversed(batch)]
                    continue
                failed, refused = {}, {batch[0].entry_id: str(refusal)}
            for entry in batch:
                message = self._messages[entry.number]
                if entry.entry_id in failed:
                    failed_values |= entry.claims - {entry.entry_id}
                    message.reasons[entry.place] = failed[entry.entry_id]
                    continue
                del message.pending[entry.place]
                message.reasons.pop(entry.place, None)
                if entry.entry_id in refused:
                    message.reasons[entry.place] = refused[entry.entry_id]
        return self._settle(call.numbers)

    def _put(self, batch: Iterable[_Entry]) -> tuple[dict[str, str], dict[str, str]]:
        """Makes one call. Why entries failed that may arrive, and others that never will, by id."""
        failed: dict[str, str] = {}
        refused: dict[str, str] = {}
        with aws.sorting_errors(_SERVICE, _OPERATION):
            body = _encode_body(batch)
            result = _decode_result(aws.call(_SERVICE, _OPERATION, body, self._timeout))
            sent = {entry.entry_id for entry in batch}
            for entry in result.error_entries:
                if entry.entry_id not in sent:
                    raise ValueError("an error of an entry that was not sent")
                # Errors may concern some of its values only. The entry is retried as a whole if
                # that may help one of them: SiteWise replaces a value by the same one.
                errors = entry.errors or [_Error(error_message="an error that is not named")]
                passing = [each for each in errors if not each.error_code.startswith(_FINAL_ERRORS)]
                error = (passing or errors)[0]
                (failed if passing else refused)[entry.entry_id] = (
                    f"{_SERVICE} {_OPERATION}: {error.error_code}: {error.error_message}"
                )
        return failed, refused

    def _settle(self, numbers: Iterable[int]) -> Answer:
        failed: dict[int, str] = {}
        refused: dict[int, str] = {}
        for number in numbers:
            message = self._messages[number]
            if message.pending:
                failed[number] = message.describe()
                continue
            del self._messages[number]
            if message.reasons:
                refused[number] = message.describe()
        return Answer(failed, refused)


def _read_message(number: int, payload: bytes) -> _Message:
    """Its entries; those that SiteWise can never accept are refused already."""
    message = _Message({}, {})
    try:
        entries = _split(payload)
    except ValueError as error:
        message.reasons[""] = str(error)
        return message
    for place, (plain, text) in entries.items():
        try:
            entry_id, claims = _read_entry(plain)
        except (InvalidRequestException, ValueError) as error:
            message.reasons[place] = f"not a SiteWise entry: {error}"
        else:
            message.pending[place] = _Entry(number, place, entry_id, claims, text)
    return message


def _split(payload: bytes) -> dict[str, tuple[Any, msgspec.Raw]]:
    """The entries of a message by their places, decoded and as they were written."""
    try:
        plain = msgspec.json.decode(payload)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"not JSON: {error}") from None
    text = msgspec.Raw(payload)
    if isinstance(plain, dict) and "entries" in plain:
        plain = plain["entries"]
        text = msgspec.json.decode(payload, type=dict[str, msgspec.Raw])["entries"]
    elif not isinstance(plain, list):
        return {"": (plain, text)}
    if not isinstance(plain, list) or not plain:
        raise ValueError("not SiteWise entries: expected a list with one entry or more")
    if len(plain) > _MAX_MESSAGE_ENTRIES:
        raise ValueError(
            f"{len(plain)} SiteWise entries: a message has {_MAX_MESSAGE_ENTRIES} at most"
        )
    pairs = zip(plain, msgspec.json.decode(text, type=list[msgspec.Raw]), strict=True)
    return {f"entries[{place}]": pair for place, pair in enumerate(pairs)}


def _read_entry(plain: Any) -> tuple[str, set[Hashable]]:
    """The id of an entry, and its claims."""
    if not isinstance(plain, dict):
        raise ValueError("expected a JSON object")  # noqa: TRY004
    fields = from_wire(plain, _Fields)
    if not fields.property_alias and not (fields.asset_id and fields.property_id):
        raise ValueError("no propertyAlias, nor both assetId and propertyId")
    named = fields.property_alias or (fields.asset_id, fields.property_id)
    times = [value.timestamp for value in fields.property_values]
    values = {(named, time.time_in_seconds, time.offset_in_nanos or 0) for time in times}
    return fields.entry_id, {fields.entry_id, *values}


def _pack(entries: Iterable[_Entry]) -> list[list[_Entry]]:
    """The entries of each call, in their order.

    SiteWise refuses entries with the same claim in one call, and accepts them in several.
    """
    batches: list[list[_Entry]] = []
    claims: set[Hashable] = set()
    for entry in entries:
        is_full = not batches or len(batches[-1]) == _MAX_ENTRIES
        if is_full or not claims.isdisjoint(entry.claims):
            batches.append([])
            claims = set()
        batches[-1].append(entry)
        claims |= entry.claims
    return batches


def _encode_body(batch: Iterable[_Entry]) -> bytes:
    return msgspec.json.encode({"entries": [entry.text for entry in batch]})

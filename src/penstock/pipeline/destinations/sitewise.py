"""IoT SiteWise: BatchPutAssetPropertyValue, each message one entry or several, as JSON.

A message is an entry, a list of entries, or an object `{"entries": [...]}`. An entry goes out as
the program wrote it: fields that are not known here are SiteWise's business.

Every entry is delivered and judged by itself, and its message is settled when all of them are:

- Entries that fail for a passing reason are retried, and only these, as long as the delivery lasts.
  The next delivery sends the whole message again: SiteWise replaces a value by the same one.
- If an entry is refused for good, the others are sent nevertheless. The message is skipped, with a
  reason that names the entry by its place, such as `entries[2]`.

Messages share a call as long as their entries fit in one. A message that needs several calls has
them to itself, all within one `send`.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
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
    UnavailableError,
)

_SERVICE = "iotsitewise"
_OPERATION = "BatchPutAssetPropertyValue"
_MAX_ENTRIES = 10
# The calls of a message are one `send`: after a crash all of them are repeated.
_MAX_MESSAGE_ENTRIES = 200

# Of an entry with one of these errors nothing will ever become. One with any other may arrive when
# it is sent again: some pass, and others the user can do something about.
_FINAL_ERRORS = ("InvalidRequest", "TimestampOutOfRange")


class _Value(msgspec.Struct, rename="camel"):
    # Whether it is one is for SiteWise to say, which has learned new ones since its SDKs were made.
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
    # What no other entry of a call may have: its id, and each of its timestamps of its property.
    claims: set[Hashable]
    text: msgspec.Raw


class _Message(NamedTuple):
    """What is left of a message."""

    # By place: entries that have not arrived yet.
    pending: dict[str, _Entry]
    # By place: why an entry never will.
    refused: dict[str, str]


class _Sent(NamedTuple):
    # By sequence number.
    messages: dict[int, _Message]
    # The entries of each call of the API. If there are several, they are of one message.
    batches: Sequence[Sequence[_Entry]]


class _List(msgspec.Struct):
    """A message with several entries, each as it was written."""

    entries: list[msgspec.Raw]


class _Verdict(NamedTuple):
    """Why an entry was not accepted, and whether it never will be."""

    is_final: bool
    reason: str


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
        self._timeout = export.timeout
        self._max_messages = min(export.config.batch_size or _MAX_ENTRIES, _MAX_ENTRIES)
        # By sequence number: messages with entries that have failed.
        self._failed: dict[int, _Message] = {}

    def prepare(self, messages: Messages, start: int, limit: int) -> Call:
        skipped: dict[int, str] = {}
        taken: dict[int, _Message] = {}
        batches: list[list[_Entry]] = []
        stop = start
        end = min(start + limit, len(messages.numbers))
        while stop < end and len(taken) < self._max_messages:
            number = messages.numbers[stop]
            message = self._failed.get(number) or _read_message(number, messages.payloads[stop])
            if message.pending:
                entries = [entry for batch in batches for entry in batch]
                packed = _pack([*entries, *message.pending.values()])
                if taken and len(packed) > 1:
                    break
                batches = packed
                taken[number] = message
            else:
                skipped[number] = _describe(message.refused)
            stop += 1
        if not taken:
            return Call(start, stop, skipped, None, 0)
        size = sum(len(_encode_body(batch)) for batch in batches)
        return Call(start, stop, skipped, _Sent(taken, batches), size)

    def send(self, call: Call) -> Answer:
        messages, batches = call.content
        failures: dict[int, dict[str, str]] = {}
        for entry, verdict in self._put_all(batches, is_one_message=len(messages) == 1):
            message = messages[entry.number]
            if verdict is not None and not verdict.is_final:
                failures.setdefault(entry.number, {})[entry.place] = verdict.reason
                continue
            del message.pending[entry.place]
            if verdict is not None:
                message.refused[entry.place] = verdict.reason
        failed: dict[int, str] = {}
        refused: dict[int, str] = {}
        for number, message in messages.items():
            if number in failures:
                self._failed[number] = message
                failed[number] = _describe(failures[number])
                continue
            self._failed.pop(number, None)
            if message.refused:
                refused[number] = _describe(message.refused)
        return Answer(failed, refused)

    def _put_all(
        self, batches: Sequence[Sequence[_Entry]], *, is_one_message: bool
    ) -> Iterator[tuple[_Entry, _Verdict | None]]:
        """Makes all calls; gives each entry with the verdict on it, None if it has arrived."""
        failed_values: set[Hashable] = set()
        waiting = [*reversed(batches)]
        while waiting:
            # A value that replaces one that has failed must not arrive before it.
            batch = [entry for entry in waiting.pop() if failed_values.isdisjoint(entry.claims)]
            if not batch:
                continue
            try:
                verdicts = self._put(batch)
            except RefusedError as refusal:
                # Of several messages the delivery finds the one that is invalid.
                if not is_one_message:
                    raise
                if len(batch) > 1:
                    waiting += [[entry] for entry in reversed(batch)]
                    continue
                verdicts = {batch[0].entry_id: _Verdict(True, str(refusal))}
            for entry in batch:
                verdict = verdicts.get(entry.entry_id)
                if verdict is not None and not verdict.is_final:
                    failed_values |= entry.claims - {entry.entry_id}
                yield entry, verdict

    def _put(self, batch: Sequence[_Entry]) -> dict[str, _Verdict]:
        """The errors of one call, by the id of the entry."""
        text = aws.call(_SERVICE, _OPERATION, _encode_body(batch), self._timeout)
        try:
            answer = _decode_answered(text)
        except msgspec.MsgspecError as error:
            raise UnavailableError(f"{_SERVICE} {_OPERATION}: not an answer: {error}") from None
        verdicts = {entry.entry_id: _judge(entry.errors) for entry in answer.error_entries}
        if not verdicts.keys() <= {entry.entry_id for entry in batch}:
            raise UnavailableError(
                f"{_SERVICE} {_OPERATION}: an error of an entry that was not sent"
            )
        return verdicts

    def close(self) -> None:
        """Nothing: connections are those of the process."""


def _read_message(number: int, payload: bytes) -> _Message:
    """Its entries; those that SiteWise can never take are refused already."""
    message = _Message({}, {})
    try:
        entries = _split(payload)
    except ValueError as error:
        message.refused[""] = str(error)
        return message
    for place, (plain, text) in entries.items():
        try:
            fields = _check_entry(plain)
        except ValueError as error:
            message.refused[place] = str(error)
        else:
            claims = {fields.entry_id, *_name_values(fields)}
            message.pending[place] = _Entry(number, place, fields.entry_id, claims, text)
    return message


def _split(payload: bytes) -> dict[str, tuple[Any, msgspec.Raw]]:
    """The entries of a message by their places, decoded and as they were written."""
    try:
        plain = msgspec.json.decode(payload)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise ValueError(f"not JSON: {error}") from None
    is_wrapped = isinstance(plain, dict) and "entries" in plain
    entries = plain["entries"] if is_wrapped else plain
    if not is_wrapped and not isinstance(plain, list):
        return {"": (plain, msgspec.Raw(payload))}
    if not isinstance(entries, list) or not entries:
        raise ValueError("not SiteWise entries: expected a list with one entry or more")
    if len(entries) > _MAX_MESSAGE_ENTRIES:
        raise ValueError(
            f"{len(entries)} SiteWise entries: a message has {_MAX_MESSAGE_ENTRIES} at most"
        )
    if is_wrapped:
        texts = msgspec.json.decode(payload, type=_List).entries
    else:
        texts = msgspec.json.decode(payload, type=list[msgspec.Raw])
    return {
        f"entries[{place}]": pair for place, pair in enumerate(zip(entries, texts, strict=True))
    }


def _check_entry(plain: Any) -> _Fields:
    """ValueError, with the reason, for what SiteWise can never take."""
    if not isinstance(plain, dict):
        raise ValueError("not a SiteWise entry: expected a JSON object")  # noqa: TRY004
    try:
        entry = from_wire(plain, _Fields)
    except InvalidRequestException as error:
        raise ValueError(f"not a SiteWise entry: {error}") from None
    if not entry.property_alias and not (entry.asset_id and entry.property_id):
        raise ValueError("not a SiteWise entry: no propertyAlias, nor both assetId and propertyId")
    return entry


def _name_values(entry: _Fields) -> Iterator[Hashable]:
    for value in entry.property_values:
        moment = value.timestamp.time_in_seconds, value.timestamp.offset_in_nanos or 0
        yield entry.property_alias or (entry.asset_id, entry.property_id), moment


def _pack(entries: Iterable[_Entry]) -> list[list[_Entry]]:
    """The entries of each call, in their order.

    SiteWise refuses entries with the same claim if they come together. One after the other is fine.
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


def _describe(reasons: Mapping[str, str]) -> str:
    """The reasons of entries, each of them once, followed by the places that it holds for."""
    places: dict[str, list[str]] = {}
    for place, reason in reasons.items():
        places.setdefault(reason, []).append(place)
    return "; ".join(
        f"{reason} ({', '.join(found)})" if any(found) else reason
        for reason, found in places.items()
    )


def _judge(errors: Sequence[_Error]) -> _Verdict:
    """What the errors of an entry mean for it.

    Errors may be of some of its values only. It is sent again as a whole if that may help one of
    them: SiteWise replaces a value by the same one.
    """
    lasting = [error for error in errors if not error.error_code.startswith(_FINAL_ERRORS)]
    error = next(iter(lasting or errors), _Error(error_message="an error that is not named"))
    text = f"{_SERVICE} {_OPERATION}: {error.error_code}: {error.error_message}"
    return _Verdict(bool(errors) and not lasting, text)

"""The HTTP API: the broker as JSON, for the dashboard and for scripts."""

from __future__ import annotations

import asyncio
import base64
from collections.abc import Awaitable, Callable, Hashable
from inspect import isawaitable
from typing import Any, NamedTuple
from urllib.parse import quote

import msgspec
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from penstock.broker.exports.task_export import TaskExport
from penstock.broker.moves import change_export
from penstock.broker.server import Broker
from penstock.broker.streams import Stream
from penstock.errors import (
    InvalidRequestException,
    ResourceNotFoundException,
    StreamManagerException,
    UpdateNotAllowedException,
)
from penstock.model.statistics import Statistics
from penstock.store.log import Log
from penstock.store.segment import DamagedError
from penstock.web import metrics, presentation
from penstock.web.authorization import Authorizer, Permissions
from penstock.web.events import Events
from penstock.web.history import STEP_MILLIS
from penstock.web.presentation import JsonObject
from penstock.web.response import RoomResponse, take_room
from penstock.web.s3_tasks import render_s3_tasks
from penstock.web.sampler import Sampler, SharedAnswers

_MAX_MESSAGES = 100
_DEFAULT_MESSAGES = 20
# The limits for each payload in a page, and for all payloads of a page.
_MAX_SHOWN_BYTES = 4096
_MAX_PAGE_BYTES = 4 * 1024 * 1024
# The size of a message in JSON without its payload.
_MAX_FIELDS_BYTES = 256

_STATUSES: dict[type[StreamManagerException], int] = {
    ResourceNotFoundException: 404,
    InvalidRequestException: 400,
    UpdateNotAllowedException: 409,
}
# Other exceptions are failures of this server, such as damage or a full disk.
_OTHER_STATUS = 503

# By the names of `Counts`. Reads are not counted per stream.
_SERIES = {
    "messages_appended": "messagesAppended",
    "bytes_appended": "bytesAppended",
    "messages_exported": "messagesExported",
    "bytes_exported": "bytesExported",
    "messages_read": "messagesRead",
    "messages_behind": "messagesBehind",
}
_STREAM_SERIES = {key: shown for key, shown in _SERIES.items() if key != "messages_read"}

_JSON = "application/json"
_encode = msgspec.json.encode

Handler = Callable[[Request, Permissions], "JsonObject | Response"]
AsyncHandler = Callable[[Request, Permissions], "Awaitable[JsonObject | Response]"]


class Api:
    """Answers requests in the event loop of the broker."""

    def __init__(
        self, broker: Broker, sampler: Sampler, events: Events, authorizer: Authorizer
    ) -> None:
        self._broker = broker
        self._sampler = sampler
        self._events = events
        self._authorizer = authorizer
        self._overviews = SharedAnswers(sampler)
        self._metrics_texts = SharedAnswers(sampler)

    def routes(self) -> list[BaseRoute]:
        stream = "/api/streams/{name}"
        reads: dict[str, Handler | AsyncHandler] = {
            "/api/history": self._history,
            "/api/tasks": self._tasks,
            "/api/pipeline": self._pipeline,
            "/api/events": self._recent_events,
            f"{stream}/messages/{{number}}": self._message,
            f"{stream}/messages": self._messages,
            stream: self._stream,
        }
        changes: dict[str, AsyncHandler] = {
            f"{stream}/exports/{{identifier}}/pause": self._pause,
            f"{stream}/exports/{{identifier}}/resume": self._resume,
            f"{stream}/exports/{{identifier}}/rewind": self._rewind,
        }
        return [
            *(
                Route(path, self._endpoint(each), methods=["POST"])
                for path, each in changes.items()
            ),
            *(Route(path, self._endpoint(each), methods=["GET"]) for path, each in reads.items()),
            Route("/api/overview", self._overview, methods=["GET"]),
            Route("/metrics", self._metrics, methods=["GET"]),
        ]

    def _endpoint(
        self, handler: Handler | AsyncHandler
    ) -> Callable[[Request], Awaitable[Response]]:
        async def respond(request: Request) -> Response:
            try:
                found = handler(request, await self._authorizer.authorize(request))
                if isawaitable(found):
                    found = await found
            except StreamManagerException as error:
                status = _STATUSES.get(type(error), _OTHER_STATUS)
                raise HTTPException(status, error.message) from None
            return found if isinstance(found, Response) else json_response(found)

        return respond

    # The broker

    async def _overview(self, request: Request) -> Response:
        permissions = await self._authorizer.authorize(request)

        async def render(statistics: Statistics) -> bytes:
            history = self._sampler.history
            return _encode(
                presentation.render_overview(self._broker, statistics, history, permissions)
            )

        # The overview also contains the permissions.
        key = (
            _visibility_key(permissions),
            permissions.role,
            permissions.may_read_messages,
            permissions.may_change,
        )
        text = await self._overviews.get(key, render)
        return Response(text, media_type=_JSON)

    def _history(self, request: Request, permissions: Permissions) -> JsonObject:
        name = request.query_params.get("stream")
        if name is not None:
            self._find(name, permissions)
        since = _query_number(request, "since", 0)
        points = self._sampler.history.points(name, since)
        return {
            "stepMillis": STEP_MILLIS,
            "times": points.times if points else [],
            "series": {
                shown: points.series[key] if points else []
                for key, shown in (_SERIES if name is None else _STREAM_SERIES).items()
            },
        }

    def _pipeline(self, request: Request, permissions: Permissions) -> JsonObject:  # noqa: ARG002 - a handler takes it
        pipelines = self._broker.pipelines
        return {
            "pipelines": [
                {
                    **presentation.render_pipeline(each),
                    "tasks": [
                        presentation.render_task(task, permissions) for task in each.tasks.values()
                    ],
                }
                for each in pipelines
            ],
            "deliveries": [
                presentation.render_delivery(each)
                for each in pipelines.deliveries
                if permissions.sees(each.stream)
            ],
        }

    def _recent_events(self, request: Request, permissions: Permissions) -> JsonObject:
        if not permissions.sees_all:
            raise HTTPException(403, "events need a token that allows all streams")
        events = self._events.since(_query_number(request, "since", 0))
        return {"events": [event._asdict() for event in events]}

    async def _metrics(self, request: Request) -> Response:
        permissions = await self._authorizer.authorize(request)

        async def render(statistics: Statistics) -> bytes:
            snapshot = metrics.collect(
                self._broker, statistics, self._events.counts, permissions.sees
            )
            # A thread, because rendering thousands of streams would block the event loop.
            return await asyncio.to_thread(metrics.render, snapshot)

        text = await self._metrics_texts.get(_visibility_key(permissions), render)
        return Response(text, media_type=metrics.MEDIA_TYPE)

    # Streams

    def _find(self, name: str, permissions: Permissions) -> Stream:
        permissions.require_visible(name)
        return self._broker.streams.find(name)

    def _stream(self, request: Request, permissions: Permissions) -> JsonObject:
        stream = self._find(request.path_params["name"], permissions)
        statistics = self._broker.statistics_of(stream)
        return {
            **presentation.render_stream(stream, statistics, self._sampler.history),
            "definition": presentation.render_definition(stream),
        }

    async def _messages(self, request: Request, permissions: Permissions) -> Response:
        name = request.path_params["name"]
        stream = self._find(name, permissions)
        permissions.require_read(name)
        first, end = _select_messages(request, stream.log)
        room = await take_room(self._broker.answers, _measure_page(stream.log, first, end))
        try:
            # The stream may have changed during the wait.
            stream = self._find(name, permissions)
            found = _read_page(stream, max(first, stream.log.oldest), end)
            page = {
                "oldestSequenceNumber": stream.log.oldest,
                "newestSequenceNumber": stream.log.end - 1,
                "messages": found.messages,
                "problem": found.problem,
            }
            return RoomResponse(_encode(page), room, _JSON)
        except BaseException:
            room.release()
            raise

    async def _message(self, request: Request, permissions: Permissions) -> Response:
        name = request.path_params["name"]
        number = _parse_number("sequence number", request.path_params["number"])
        stream = self._find(name, permissions)
        permissions.require_read(name)
        _require_message(stream.log, number)
        room = await take_room(self._broker.answers, stream.log.size_of(number, number + 1))
        try:
            # The stream may have changed during the wait.
            stream = self._find(name, permissions)
            _require_message(stream.log, number)
            return RoomResponse(
                stream.read(number, number + 1, 1).payloads[0],
                room,
                "application/octet-stream",
                {"Content-Disposition": f"attachment; filename*=UTF-8''{quote(name)}-{number}.bin"},
            )
        except BaseException:
            room.release()
            raise

    def _tasks(self, request: Request, permissions: Permissions) -> JsonObject:
        name = request.query_params.get("stream")
        streams = list(self._broker.streams) if name is None else [self._find(name, permissions)]
        tasks: list[JsonObject] = []
        waiting = 0
        for stream in streams:
            if not permissions.sees(stream.name):
                continue
            for export in self._broker.exports.of(stream).values():
                if isinstance(export, TaskExport):
                    permissions.require_read(stream.name)
                    waiting += max(stream.log.end - export.pending_from, 0)
                    tasks += render_s3_tasks(export, self._broker.recent_tasks)
        return {"tasks": tasks, "waiting": waiting}

    # Changes

    async def _pause(self, request: Request, permissions: Permissions) -> JsonObject:
        return await self._disable(request, permissions, is_disabled=True)

    async def _resume(self, request: Request, permissions: Permissions) -> JsonObject:
        return await self._disable(request, permissions, is_disabled=False)

    async def _disable(
        self, request: Request, permissions: Permissions, *, is_disabled: bool
    ) -> JsonObject:
        name, identifier = request.path_params["name"], request.path_params["identifier"]
        self._find(name, permissions)
        permissions.require_change(name)
        await self._broker.streams.edit(
            name,
            lambda definition: change_export(
                definition,
                identifier,
                lambda export: msgspec.structs.replace(export, disabled=is_disabled),
            ),
        )
        return {"isPaused": is_disabled}

    async def _rewind(self, request: Request, permissions: Permissions) -> JsonObject:
        name, identifier = request.path_params["name"], request.path_params["identifier"]
        log = self._find(name, permissions).log
        permissions.require_change(name)
        number = _parse_rewind_target(request, log)
        await self._broker.streams.rewind(name, identifier, number)
        return {"nextSequenceNumber": max(number, log.oldest)}


def json_response(value: Any, status: int = 200) -> Response:
    return Response(_encode(value), status, media_type=_JSON)


def _visibility_key(permissions: Permissions) -> Hashable:
    """A key that is equal for requests that see the same streams."""
    return None if permissions.sees_all else permissions.access.token.patterns


def _parse_rewind_target(request: Request, log: Log) -> int:
    """The sequence number that an export continues with."""
    match request.query_params.get("to", ""):
        case "earliest":
            return log.oldest
        case "latest":
            return log.end
        case text if text.isascii() and text.isdigit() and len(text) <= 19:
            return int(text)
        case text:
            raise HTTPException(
                400,
                f"to is {text[:80]!r}: expected a whole number from 0 to {log.end}, earliest or "
                "latest",
            )


def _select_messages(request: Request, log: Log) -> tuple[int, int]:
    """The slice `[first, end)` of messages that a request selects."""
    count = _query_number(request, "count", _DEFAULT_MESSAGES, _MAX_MESSAGES)
    if "from" in request.query_params:
        first = max(_query_number(request, "from", 0), log.oldest)
        return first, min(first + count, log.end)
    count = _query_number(request, "last", count, _MAX_MESSAGES)
    end = min(_query_number(request, "before", log.end), log.end)
    first = max(end - count, log.oldest)
    # If the messages exceed a page, the newest are shown.
    while end - first > 1 and log.size_of(first, end) > _MAX_PAGE_BYTES:
        first += 1
    return first, end


def _measure_page(log: Log, first: int, end: int) -> int:
    """An upper estimate of the size of the page with these messages."""
    if first >= end:
        return 0
    shown = min(log.size_of(first, end), (end - first) * _MAX_SHOWN_BYTES)
    return shown * 4 // 3 + (end - first) * _MAX_FIELDS_BYTES


def _require_message(log: Log, number: int) -> None:
    if not log.oldest <= number < log.end:
        raise HTTPException(
            404,
            f"the stream has no message {number}: it has {log.oldest} to {log.end - 1}",
        )


class _MessagePage(NamedTuple):
    messages: list[JsonObject]
    # Why messages are missing; None if none is missing.
    problem: str | None


def _read_page(stream: Stream, first: int, end: int) -> _MessagePage:
    messages: list[JsonObject] = []
    problem = None
    room = _MAX_PAGE_BYTES
    while first < end and room > 0:
        try:
            run = stream.log.read(first, end, room)
        except DamagedError as error:
            problem = problem or str(error)
            first = error.next_number
            continue
        except OSError as error:
            raise stream.explain(error) from None
        for number, (time, payload) in enumerate(
            zip(run.ingest_times, run.payloads, strict=True), run.first_sequence_number
        ):
            room -= len(payload)
            messages.append(
                {
                    "sequenceNumber": number,
                    "ingestTime": time,
                    "size": len(payload),
                    "payload": base64.b64encode(payload[:_MAX_SHOWN_BYTES]).decode(),
                    "isCut": len(payload) > _MAX_SHOWN_BYTES,
                }
            )
        first = run.first_sequence_number + len(run.payloads)
    return _MessagePage(messages, problem)


def _query_number(request: Request, name: str, default: int, maximum: int | None = None) -> int:
    text = request.query_params.get(name)
    return default if text is None else _parse_number(name, text, maximum)


def _parse_number(name: str, text: str, maximum: int | None = None) -> int:
    """Parses a number from 0 on, or from 1 to the maximum."""
    minimum = 0 if maximum is None else 1
    # The maximum length of a sequence number. Parsing thousands of digits is slow.
    number = int(text) if text.isascii() and text.isdigit() and len(text) <= 19 else -1
    if number < minimum or (maximum is not None and number > maximum):
        allowed = "0 or more" if maximum is None else f"1 to {maximum}"
        raise HTTPException(400, f"{name} is {text[:80]!r}: expected a whole number, {allowed}")
    return number

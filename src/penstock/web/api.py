"""What the page asks for, as JSON; scripts may ask for it too."""

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
from penstock.web.authorization import Authorizer, Visitor
from penstock.web.events import Events
from penstock.web.history import STEP_MILLIS
from penstock.web.presentation import Plain
from penstock.web.response import RoomResponse, take_room
from penstock.web.s3_tasks import draw_tasks
from penstock.web.sampler import Sampler, SharedAnswers

_MAX_MESSAGES = 100
_USUAL_MESSAGES = 20
# Of a payload so much is shown, and of all so much is read.
_SHOWN_BYTES = 4096
_PEEKED_BYTES = 4 * 1024 * 1024
# A message in JSON has so many bytes beside its payload, at most.
_FIELDS_BYTES = 256

_STATUSES: dict[type[StreamManagerException], int] = {
    ResourceNotFoundException: 404,
    InvalidRequestException: 400,
    UpdateNotAllowedException: 409,
}
# All else is the fault of this server: what is damaged, or has no room.
_OTHER_STATUS = 503

# By the names of `Counts`. Who reads a stream is not counted for each.
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

Answer = Callable[[Request, Visitor], "Plain | Response"]
AsyncAnswer = Callable[[Request, Visitor], "Awaitable[Plain | Response]"]


class Api:
    """Answers requests; all of it in the broker's loop."""

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
        looks: dict[str, Answer | AsyncAnswer] = {
            "/api/history": self._history,
            "/api/tasks": self._tasks,
            "/api/pipeline": self._pipeline,
            "/api/events": self._recent_events,
            f"{stream}/messages/{{number}}": self._message,
            f"{stream}/messages": self._messages,
            stream: self._stream,
        }
        changes: dict[str, AsyncAnswer] = {
            f"{stream}/exports/{{identifier}}/pause": self._pause,
            f"{stream}/exports/{{identifier}}/resume": self._resume,
            f"{stream}/exports/{{identifier}}/rewind": self._rewind,
        }
        return [
            *(
                Route(path, self._answering(each), methods=["POST"])
                for path, each in changes.items()
            ),
            *(Route(path, self._answering(each), methods=["GET"]) for path, each in looks.items()),
            Route("/api/overview", self._overview, methods=["GET"]),
            Route("/metrics", self._metrics, methods=["GET"]),
        ]

    def _answering(self, answer: Answer | AsyncAnswer) -> Callable[[Request], Awaitable[Response]]:
        async def respond(request: Request) -> Response:
            try:
                found = answer(request, await self._authorizer.admit(request))
                if isawaitable(found):
                    found = await found
            except StreamManagerException as error:
                status = _STATUSES.get(type(error), _OTHER_STATUS)
                raise HTTPException(status, error.message) from None
            return found if isinstance(found, Response) else json_response(found)

        return respond

    # The broker

    async def _overview(self, request: Request) -> Response:
        visitor = await self._authorizer.admit(request)

        async def draw(statistics: Statistics) -> bytes:
            history = self._sampler.history
            return _encode(presentation.draw_overview(self._broker, statistics, history, visitor))

        # It tells as well what he may do.
        sight = (_sight(visitor), visitor.role, visitor.may_read_messages, visitor.may_change)
        text = await self._overviews.get(sight, draw)
        return Response(text, media_type=_JSON)

    def _history(self, request: Request, visitor: Visitor) -> Plain:
        name = request.query_params.get("stream")
        if name is not None:
            self._find(name, visitor)
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

    def _pipeline(self, request: Request, visitor: Visitor) -> Plain:  # noqa: ARG002 - of the route
        pipelines = self._broker.pipelines
        return {
            "pipelines": [
                {
                    **presentation.draw_pipeline(each),
                    "tasks": [
                        presentation.draw_task(task, visitor) for task in each.tasks.values()
                    ],
                }
                for each in pipelines
            ],
            "deliveries": [
                presentation.draw_delivery(each)
                for each in pipelines.deliveries
                if visitor.sees(each.stream)
            ],
        }

    def _recent_events(self, request: Request, visitor: Visitor) -> Plain:
        if not visitor.sees_all:
            raise HTTPException(403, "events are about all streams, and the token is not")
        events = self._events.since(_query_number(request, "since", 0))
        return {"events": [event._asdict() for event in events]}

    async def _metrics(self, request: Request) -> Response:
        visitor = await self._authorizer.admit(request)

        async def render(statistics: Statistics) -> bytes:
            scene = metrics.look(self._broker, statistics, self._events.counts, visitor.sees)
            # In a thread, so that others are served meanwhile.
            return await asyncio.to_thread(metrics.render, scene)

        text = await self._metrics_texts.get(_sight(visitor), render)
        return Response(text, media_type=metrics.MEDIA_TYPE)

    # Streams

    def _find(self, name: str, visitor: Visitor) -> Stream:
        visitor.require_sight(name)
        return self._broker.streams.find(name)

    def _stream(self, request: Request, visitor: Visitor) -> Plain:
        stream = self._find(request.path_params["name"], visitor)
        statistics = self._broker.statistics_of(stream)
        return {
            **presentation.draw_stream(stream, statistics, self._sampler.history),
            "definition": presentation.draw_definition(stream),
        }

    async def _messages(self, request: Request, visitor: Visitor) -> Response:
        name = request.path_params["name"]
        stream = self._find(name, visitor)
        visitor.require_reading(name)
        first, stop = _select_messages(request, stream.log)
        room = await take_room(self._broker.answers, _measure_page(stream.log, first, stop))
        try:
            # The stream may have changed during the wait.
            stream = self._find(name, visitor)
            peek = _peek(stream, max(first, stream.log.oldest), stop)
            page = {
                "oldestSequenceNumber": stream.log.oldest,
                "newestSequenceNumber": stream.log.end - 1,
                "messages": peek.messages,
                "problem": peek.problem,
            }
            return RoomResponse(_encode(page), room, _JSON)
        except BaseException:
            room.release()
            raise

    async def _message(self, request: Request, visitor: Visitor) -> Response:
        name = request.path_params["name"]
        number = _number("the number of the message", request.path_params["number"])
        stream = self._find(name, visitor)
        visitor.require_reading(name)
        _require_message(stream.log, number)
        room = await take_room(self._broker.answers, stream.log.size_of(number, number + 1))
        try:
            # The stream may have changed during the wait.
            stream = self._find(name, visitor)
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

    def _tasks(self, request: Request, visitor: Visitor) -> Plain:
        name = request.query_params.get("stream")
        streams = list(self._broker.streams) if name is None else [self._find(name, visitor)]
        tasks: list[Plain] = []
        waiting = 0
        for stream in streams:
            if not visitor.sees(stream.name):
                continue
            for export in self._broker.exports.of(stream).values():
                if isinstance(export, TaskExport):
                    visitor.require_reading(stream.name)
                    waiting += max(stream.log.end - export.pending_from, 0)
                    tasks += draw_tasks(export, self._broker.recent_tasks)
        return {"tasks": tasks, "waiting": waiting}

    # Changes

    async def _pause(self, request: Request, visitor: Visitor) -> Plain:
        return await self._disable(request, visitor, is_disabled=True)

    async def _resume(self, request: Request, visitor: Visitor) -> Plain:
        return await self._disable(request, visitor, is_disabled=False)

    async def _disable(self, request: Request, visitor: Visitor, *, is_disabled: bool) -> Plain:
        name, identifier = request.path_params["name"], request.path_params["identifier"]
        self._find(name, visitor)
        visitor.require_change(name)
        await self._broker.streams.edit(
            name,
            lambda definition: change_export(
                definition,
                identifier,
                lambda export: msgspec.structs.replace(export, disabled=is_disabled),
            ),
        )
        return {"isPaused": is_disabled}

    async def _rewind(self, request: Request, visitor: Visitor) -> Plain:
        name, identifier = request.path_params["name"], request.path_params["identifier"]
        log = self._find(name, visitor).log
        visitor.require_change(name)
        number = _select_number(request, log)
        await self._broker.streams.rewind(name, identifier, number)
        return {"nextSequenceNumber": max(number, log.oldest)}


def json_response(value: Any, status: int = 200) -> Response:
    return Response(_encode(value), status, media_type=_JSON)


def _sight(visitor: Visitor) -> Hashable:
    """The same for all who see the same streams."""
    return None if visitor.sees_all else visitor.access.token.patterns


def _select_number(request: Request, log: Log) -> int:
    """The number that an export is moved to."""
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
    """The messages [first, stop) that a request is about."""
    count = _query_number(request, "count", _USUAL_MESSAGES, _MAX_MESSAGES)
    if "from" in request.query_params:
        first = max(_query_number(request, "from", 0), log.oldest)
        return first, min(first + count, log.end)
    count = _query_number(request, "last", count, _MAX_MESSAGES)
    stop = min(_query_number(request, "before", log.end), log.end)
    first = max(stop - count, log.oldest)
    # If not all of them can be shown, it is the newest that are wanted.
    while stop - first > 1 and log.size_of(first, stop) > _PEEKED_BYTES:
        first += 1
    return first, stop


def _measure_page(log: Log, first: int, stop: int) -> int:
    """About how many bytes the page of these messages has, at most."""
    if first >= stop:
        return 0
    shown = min(log.size_of(first, stop), (stop - first) * _SHOWN_BYTES)
    return shown * 4 // 3 + (stop - first) * _FIELDS_BYTES


def _require_message(log: Log, number: int) -> None:
    if not log.oldest <= number < log.end:
        raise HTTPException(
            404,
            f"the stream has no message {number}: it has {log.oldest} to {log.end - 1}",
        )


class _Peek(NamedTuple):
    messages: list[Plain]
    # Why some are missing among them.
    problem: str | None


def _peek(stream: Stream, first: int, stop: int) -> _Peek:
    messages: list[Plain] = []
    problem = None
    room = _PEEKED_BYTES
    while first < stop and room > 0:
        try:
            run = stream.log.read(first, stop, room)
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
                    "payload": base64.b64encode(payload[:_SHOWN_BYTES]).decode(),
                    "isCut": len(payload) > _SHOWN_BYTES,
                }
            )
        first = run.first_sequence_number + len(run.payloads)
    return _Peek(messages, problem)


def _query_number(request: Request, name: str, default: int, most: int | None = None) -> int:
    text = request.query_params.get(name)
    return default if text is None else _number(name, text, most)


def _number(name: str, text: str, most: int | None = None) -> int:
    """0 or more, or 1 to so many."""
    least = 0 if most is None else 1
    # Longer ones are no sequence numbers, and take their time.
    number = int(text) if text.isascii() and text.isdigit() and len(text) <= 19 else -1
    if number < least or (most is not None and number > most):
        allowed = "a whole number, 0 or more" if most is None else f"a whole number, 1 to {most}"
        raise HTTPException(400, f"{name} is {text[:80]!r}: expected {allowed}")
    return number

"""Dispatches requests to services, applies faults, and logs calls."""

from __future__ import annotations

import time
from collections.abc import Mapping

from penstock.sandbox.call_log import CallLog, LoggedCall
from penstock.sandbox.control import PREFIX, Control
from penstock.sandbox.faults import FaultEffects, Faults
from penstock.sandbox.http_sink import PREFIX as SINK_PREFIX
from penstock.sandbox.service import (
    Service,
    ServiceError,
    ServiceRequest,
    ServiceResponse,
    fault_error,
)

# Interval of the checks whether the client of a delayed call has disconnected.
_POLL_SECONDS = 0.02

# Services of unsigned requests, by method and path.
_UNSIGNED = {
    ("POST", "/properties"): "iotsitewise",
    ("GET", "/properties/history"): "iotsitewise",
    ("GET", "/properties/latest"): "iotsitewise",
    ("POST", "/messages/batch"): "iotanalytics",
}


class ConnectionDropped(Exception):
    """The connection must be closed without a response."""


class Dispatcher:
    """Answers requests for all services. Called from the threads of the connections."""

    def __init__(self, services: Mapping[str, Service], faults: Faults, call_log: CallLog) -> None:
        self._services = services
        self._faults = faults
        self._call_log = call_log
        self._control = Control(services, faults, call_log)

    def answer(self, request: ServiceRequest) -> ServiceResponse:
        path = request.path
        if path.startswith(PREFIX) and not path.startswith(SINK_PREFIX):
            return self._control.answer(request)
        service = self._services[self._find_service(request)]
        arrived = time.time() * 1000
        operation, name, records = "", "", 0
        outcome = "gone"
        answer = ServiceResponse(0)
        try:
            call = service.read(request)
            operation, records = call.operation, len(call.records)
            name = call.names[0] if call.names else ""
            effects = self._faults.decide(service.name, operation, call.names, call.records)
            self._wait(effects, request)
            if effects.is_down:
                outcome = "down"
                raise ConnectionDropped
            if effects.failure is not None:
                fault = effects.failure
                raise fault_error(service, fault.status, fault.code, fault.retry_after)
            answer = call.perform(effects.refused)
            outcome = answer.outcome
        except ServiceError as error:
            answer = service.render(error)
            outcome = answer.outcome
        finally:
            self._call_log.add(
                LoggedCall(
                    service.name,
                    operation,
                    name,
                    records,
                    answer.stored,
                    answer.refused,
                    len(request.body),
                    arrived,
                    outcome,
                )
            )
        return answer

    def _find_service(self, request: ServiceRequest) -> str:
        if request.path.startswith(SINK_PREFIX):
            return "http"
        if request.signed_service in self._services:
            return request.signed_service
        if request.headers.get("x-amz-target", "").startswith("Kinesis_"):
            return "kinesis"
        return _UNSIGNED.get((request.method, request.path), "s3")

    def _wait(self, effects: FaultEffects, request: ServiceRequest) -> None:
        deadline = time.monotonic() + effects.delay_millis / 1000
        while (left := deadline - time.monotonic()) > 0:
            if request.is_disconnected():
                raise ConnectionDropped
            time.sleep(min(left, _POLL_SECONDS))
        for fault in effects.held_by:
            while self._faults.is_held(fault):
                if request.is_disconnected():
                    raise ConnectionDropped
                fault.released.wait(_POLL_SECONDS)
        if effects.held_by and request.is_disconnected():
            raise ConnectionDropped

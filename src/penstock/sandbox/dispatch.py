"""What becomes of a request: whose it is, which faults meet it, how it is answered."""

from __future__ import annotations

import time
from collections.abc import Mapping

from penstock.sandbox.control import PREFIX, Control
from penstock.sandbox.faults import Faults, Verdict
from penstock.sandbox.http_sink import PREFIX as SINK_PREFIX
from penstock.sandbox.ledger import Ledger, LedgerEntry
from penstock.sandbox.service import (
    Service,
    ServiceError,
    ServiceRequest,
    ServiceResponse,
    fault_error,
)

# How often a call that hangs looks whether anybody still waits for it.
_LOOK_SECONDS = 0.02

# Whose a request is that nobody signed, by how it begins.
_UNSIGNED = {
    ("POST", "/properties"): "iotsitewise",
    ("GET", "/properties/history"): "iotsitewise",
    ("GET", "/properties/latest"): "iotsitewise",
    ("POST", "/messages/batch"): "iotanalytics",
}


class Dropped(Exception):
    """The connection is to be closed without an answer."""


class Application:
    """All services behind one door; called from the thread of each connection."""

    def __init__(self, services: Mapping[str, Service], faults: Faults, ledger: Ledger) -> None:
        self._services = services
        self._faults = faults
        self._ledger = ledger
        self._control = Control(services, faults, ledger)

    def answer(self, request: ServiceRequest) -> ServiceResponse:
        path = request.path
        if path.startswith(PREFIX) and not path.startswith(SINK_PREFIX):
            return self._control.answer(request)
        service = self._services[self._whose(request)]
        arrived = time.time() * 1000
        operation, name, records = "", "", 0
        outcome = "gone"
        answer = ServiceResponse(0)
        try:
            call = service.read(request)
            operation, records = call.operation, len(call.records)
            name = call.names[0] if call.names else ""
            verdict = self._faults.decide(service.name, operation, call.names, call.records)
            self._wait(verdict, request)
            if verdict.is_down:
                outcome = "down"
                raise Dropped
            if verdict.failure is not None:
                fault = verdict.failure
                raise fault_error(service, fault.status, fault.code, fault.retry_after)
            answer = call.perform(verdict.refused)
            outcome = answer.outcome
        except ServiceError as error:
            answer = service.render(error)
            outcome = answer.outcome
        finally:
            self._ledger.add(
                LedgerEntry(
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

    def _whose(self, request: ServiceRequest) -> str:
        if request.path.startswith(SINK_PREFIX):
            return "http"
        if request.signed_for in self._services:
            return request.signed_for
        if request.headers.get("x-amz-target", "").startswith("Kinesis_"):
            return "kinesis"
        return _UNSIGNED.get((request.method, request.path), "s3")

    def _wait(self, verdict: Verdict, request: ServiceRequest) -> None:
        deadline = time.monotonic() + verdict.delay_millis / 1000
        while (left := deadline - time.monotonic()) > 0:
            if request.is_gone():
                raise Dropped
            time.sleep(min(left, _LOOK_SECONDS))
        for switch in verdict.held_by:
            while self._faults.is_held(switch):
                if request.is_gone():
                    raise Dropped
                switch.released.wait(_LOOK_SECONDS)
        if verdict.held_by and request.is_gone():
            raise Dropped

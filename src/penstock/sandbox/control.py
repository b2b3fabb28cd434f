"""The control API of the sandbox below /_sandbox/: faults, calls, records."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from penstock import __version__
from penstock.sandbox.call_log import CallLog
from penstock.sandbox.faults import FaultError, Faults, read_fault
from penstock.sandbox.service import (
    Service,
    ServiceError,
    ServiceRequest,
    ServiceResponse,
    json_answer,
)

PREFIX = "/_sandbox/"
_MAX_PAGE_RECORDS = 10_000


class Control:
    """Answers requests of the control API. Thread-safe."""

    def __init__(self, services: Mapping[str, Service], faults: Faults, call_log: CallLog) -> None:
        self._services = services
        self._faults = faults
        self._call_log = call_log
        self._routes: dict[tuple[str, str], Callable[[ServiceRequest], ServiceResponse]] = {
            ("GET", "health"): self._health,
            ("GET", "faults"): self._list_faults,
            ("PUT", "faults"): self._put_fault,
            ("DELETE", "faults"): self._clear_faults,
            ("GET", "calls"): self._list_calls,
            ("DELETE", "calls"): self._reset_calls,
            ("GET", "records"): self._list_records,
        }

    def answer(self, request: ServiceRequest) -> ServiceResponse:
        route = self._routes.get((request.method, request.path.removeprefix(PREFIX)))
        try:
            if route is None:
                known = ", ".join(f"{method} {PREFIX}{name}" for method, name in self._routes)
                raise ServiceError(404, "NotFound", f"unknown path or method; allowed: {known}")
            return route(request)
        except ServiceError as error:
            return json_answer({"error": error.message}, error.status)

    def _health(self, _: ServiceRequest) -> ServiceResponse:
        return json_answer(
            {"status": "ok", "version": __version__, "services": list(self._services)}
        )

    def _list_faults(self, _: ServiceRequest) -> ServiceResponse:
        return json_answer({"faults": self._faults.describe()})

    def _put_fault(self, request: ServiceRequest) -> ServiceResponse:
        try:
            self._faults.put(read_fault(request.body))
        except FaultError as error:
            raise ServiceError(400, "BadFault", str(error)) from None
        return self._list_faults(request)

    def _clear_faults(self, request: ServiceRequest) -> ServiceResponse:
        query = request.query
        self._faults.clear(query.get("service"), query.get("name"))
        return self._list_faults(request)

    def _list_calls(self, request: ServiceRequest) -> ServiceResponse:
        query = request.query
        return json_answer(
            {
                "calls": self._call_log.calls(query.get("service"), query.get("name")),
                "totals": self._call_log.totals(),
            }
        )

    def _reset_calls(self, _: ServiceRequest) -> ServiceResponse:
        self._call_log.reset()
        return json_answer({})

    def _list_records(self, request: ServiceRequest) -> ServiceResponse:
        query = request.query
        service = self._services.get(query.get("service", ""))
        if service is None:
            raise ServiceError(
                400, "BadRequest", f"service: must be one of {', '.join(self._services)}"
            )
        if "name" not in query:
            return json_answer({"names": service.names()})
        page = service.page(
            query["name"],
            _parse_number(query, "from", 0),
            _parse_number(query, "limit", _MAX_PAGE_RECORDS),
        )
        if page is None:
            names = ", ".join(service.names()) or "none"
            raise ServiceError(404, "NotFound", f"name: does not exist; existing names: {names}")
        return json_answer(page._asdict())


def _parse_number(query: Mapping[str, str], field: str, default: int) -> int:
    text = query.get(field, str(default))
    if not text.isascii() or not text.isdigit():
        raise ServiceError(400, "BadRequest", f"{field}: must be a whole number, 0 or more")
    return int(text)

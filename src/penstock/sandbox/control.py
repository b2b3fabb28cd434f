"""The sandbox's own API below /_sandbox/: faults, what was asked, what arrived."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from penstock import __version__
from penstock.sandbox.faults import FaultError, Faults, read_fault
from penstock.sandbox.ledger import Ledger
from penstock.sandbox.service import (
    Service,
    ServiceError,
    ServiceRequest,
    ServiceResponse,
    json_answer,
)

PREFIX = "/_sandbox/"
_PAGE_RECORDS = 10_000


class Control:
    """Answers requests to the sandbox itself; called from many threads."""

    def __init__(self, services: Mapping[str, Service], faults: Faults, ledger: Ledger) -> None:
        self._services = services
        self._faults = faults
        self._ledger = ledger
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
                raise ServiceError(404, "NotFound", f"there is no such thing here, but {known}")
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
                "calls": self._ledger.calls(query.get("service"), query.get("name")),
                "totals": self._ledger.totals(),
            }
        )

    def _reset_calls(self, _: ServiceRequest) -> ServiceResponse:
        self._ledger.reset()
        return json_answer({})

    def _list_records(self, request: ServiceRequest) -> ServiceResponse:
        query = request.query
        service = self._services.get(query.get("service", ""))
        if service is None:
            raise ServiceError(
                400, "BadRequest", f"service: has to be one of {', '.join(self._services)}"
            )
        if "name" not in query:
            return json_answer({"names": service.names()})
        page = service.page(
            query["name"], _number(query, "from", 0), _number(query, "limit", _PAGE_RECORDS)
        )
        if page is None:
            names = ", ".join(service.names()) or "nothing yet"
            raise ServiceError(404, "NotFound", f"name: there is no such one, but {names}")
        return json_answer(page._asdict())


def _number(query: Mapping[str, str], field: str, default: int) -> int:
    text = query.get(field, str(default))
    if not text.isascii() or not text.isdigit():
        raise ServiceError(400, "BadRequest", f"{field}: has to be a whole number, 0 or more")
    return int(text)

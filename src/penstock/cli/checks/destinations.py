"""Checks that the destinations of exports are reachable, and that there are AWS credentials."""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple
from urllib.parse import urlsplit

from penstock.cli.checks.check import CheckFinding, Outcome, State, fail, ok, skip, warn
from penstock.cli.checks.context import CONNECT_SECONDS, CheckContext
from penstock.model import ExportConfig, HTTPConfig, MessageStreamDefinition
from penstock.model.export_definition import S3_TASK_EXECUTOR


class _AwsService(NamedTuple):
    """The service in the names of variables, and the host of its endpoint."""

    variable: str
    host: str


# By kind of export.
_AWS_SERVICES = {
    "iot_sitewise": _AwsService("IOTSITEWISE", "data.iotsitewise.{region}"),
    "kinesis": _AwsService("KINESIS", "kinesis.{region}"),
    S3_TASK_EXECUTOR: _AwsService("S3", "s3.{region}"),
}

# The sources of AWS credentials, in the order in which AWS clients use them.
_CREDENTIALS = (
    ("variables", ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY")),
    ("web identity", ("AWS_WEB_IDENTITY_TOKEN_FILE", "AWS_ROLE_ARN")),
    ("profile", ("AWS_PROFILE",)),
    ("container", ("AWS_CONTAINER_CREDENTIALS_RELATIVE_URI",)),
    ("container", ("AWS_CONTAINER_CREDENTIALS_FULL_URI",)),
)


def check_destinations(context: CheckContext) -> list[CheckFinding]:
    """A finding for each destination, and one for the AWS credentials."""
    contact, inventory = context.contact, context.inventory
    routes = plan_routes(contact.definitions or inventory.definitions, context.environment)
    if not routes:
        is_known = contact.server is not None or inventory.exists
        found = "no stream has exports" if is_known else "unknown: there is no broker and no store"
        return [CheckFinding("exports", *skip(found))]
    with ThreadPoolExecutor(max_workers=16) as threads:
        outcomes = threads.map(_try_route, routes)
    findings = []
    # The pipeline may have variables that this shell does not have.
    working = contact.working
    for (route, exports), tried in zip(routes.items(), outcomes, strict=True):
        is_working = tried.state is State.warn and working.intersection(exports)
        outcome = ok("works with the variables of the pipeline") if is_working else tried
        place = f"{route.host}:{route.port}" if route.host else route.kind
        found = f"{place}: {outcome.found}, for {_enumerate(exports)}"
        findings.append(CheckFinding("export", *outcome._replace(found=found)))
    to_aws = [
        name for route, names in routes.items() if route.kind in _AWS_SERVICES for name in names
    ]
    if to_aws:
        credentials = find_credentials(context.environment)
        if credentials.state is State.warn and working.intersection(to_aws):
            credentials = ok("the pipeline has credentials")
        findings.append(CheckFinding("AWS credentials", *credentials))
    return findings


class Route(NamedTuple):
    """The address that exports connect to, or the reason why it is unknown."""

    kind: str
    host: str = ""
    port: int = 0
    problem: Outcome | None = None


def plan_routes(
    definitions: Iterable[MessageStreamDefinition], environment: Mapping[str, str]
) -> dict[Route, list[str]]:
    """The routes of all exports that are not paused, with the names of these exports."""
    routes: dict[Route, list[str]] = {}
    for definition in definitions:
        for kind, export in definition.export_definition.configs_by_kind():
            plan = ROUTE_OF_KIND.get(kind, _unknown_route)
            route = None if export.disabled else plan(kind, export, environment)
            if route is not None:
                routes.setdefault(route, []).append(f"{definition.name}/{export.identifier}")
    return routes


def _http_route(kind: str, export: ExportConfig, _environment: Mapping[str, str]) -> Route:
    assert isinstance(export, HTTPConfig)
    return _route_of_uri(kind, export.uri, "change the uri of the export")


def _no_route(_kind: str, _export: ExportConfig, _environment: Mapping[str, str]) -> None:
    """Used for destinations that need no network, such as the directory of a channel."""


def _unknown_route(kind: str, _export: ExportConfig, _environment: Mapping[str, str]) -> Route:
    return Route(kind, problem=skip("not checked: the address is unknown"))


def _aws_route(kind: str, _export: ExportConfig, environment: Mapping[str, str]) -> Route:
    variable, host = _AWS_SERVICES[kind]
    for name in (f"AWS_ENDPOINT_URL_{variable}", "AWS_ENDPOINT_URL"):
        if uri := environment.get(name):
            return _route_of_uri(kind, uri, f"change {name}")
    region = environment.get("AWS_REGION") or environment.get("AWS_DEFAULT_REGION")
    if not region:
        return Route(kind, problem=warn("no region is set", "set AWS_REGION"))
    domain = "amazonaws.com.cn" if region.startswith("cn-") else "amazonaws.com"
    return Route(kind, f"{host.format(region=region)}.{domain}", 443)


# The function that finds the route of an export, for each kind of export.
ROUTE_OF_KIND: dict[str, Callable[[str, ExportConfig, Mapping[str, str]], Route | None]] = {
    "http": _http_route,
    "iot_analytics": _no_route,
    **dict.fromkeys(_AWS_SERVICES, _aws_route),
}


def _route_of_uri(kind: str, uri: str, mend: str) -> Route:
    try:
        parts = urlsplit(uri)
        default_port = {"http": 80, "https": 443}[parts.scheme]
        if parts.hostname:
            return Route(kind, parts.hostname, parts.port or default_port)
    except (ValueError, KeyError):
        pass
    return Route(kind, problem=fail(f"{uri!r} is not an http or https URL", mend))


def _try_route(route: Route) -> Outcome:
    if route.problem is not None:
        return route.problem
    try:
        socket.create_connection((route.host, route.port), CONNECT_SECONDS).close()
    except socket.gaierror as error:
        return fail(f"cannot resolve the name: {error.strerror}", "check the name and DNS")
    except TimeoutError:
        return fail("timeout", "check the network and firewalls")
    except OSError as error:
        return fail(
            f"unreachable: {error.strerror or error}",
            "check that the destination is running, and firewalls",
        )
    return ok("reachable")


def _enumerate(exports: Sequence[str]) -> str:
    shown = ", ".join(exports[:3])
    return shown if len(exports) <= 3 else f"{shown} and {len(exports) - 3} more"


def find_credentials(environment: Mapping[str, str]) -> Outcome:
    """Whether there are AWS credentials. Their values are not used."""
    for source, variables in _CREDENTIALS:
        if all(environment.get(variable) for variable in variables):
            return ok(f"from the {source}: {', '.join(variables)}")
    default = Path(environment.get("HOME", "/")) / ".aws" / "credentials"
    file = Path(environment.get("AWS_SHARED_CREDENTIALS_FILE") or default)
    if file.is_file():
        return ok(f"from the file {file}")
    return warn(
        "none in the environment or in a file; a machine in AWS may get them from its role",
        "set AWS_PROFILE, or AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY",
    )

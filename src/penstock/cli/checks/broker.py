"""Checks the settings and the connection to the broker."""

from __future__ import annotations

from penstock import __version__
from penstock.cli.checks.check import Check, Outcome, fail, ok, warn
from penstock.cli.checks.context import CheckContext
from penstock.errors import SettingError
from penstock.settings import unknown_variables


def check_settings(context: CheckContext) -> Outcome:
    mend = "`penstock settings` lists all settings and their values"
    try:
        found = f"the root is {context.settings.root}"
    except SettingError as error:
        return fail(str(error), mend)
    unknown = unknown_variables(context.environment)
    return warn("; ".join(unknown), mend) if unknown else ok(found)


def check_broker(context: CheckContext) -> Outcome:
    contact, target = context.contact, context.target
    if contact.is_refused:
        return fail(
            contact.error,
            'set AWS_CONTAINER_AUTHORIZATION_TOKEN with `eval "$(penstock env)"`, or create '
            "a token with `penstock tokens create`",
        )
    if contact.server is None:
        is_expected = target.host or target.port or target.unix_socket or context.is_served
        mend = (
            f"`{target.serve_command}` starts one"
            if target.is_local
            else "start it there, or check --host"
        )
        return (fail if is_expected else warn)(contact.error, mend)
    if not contact.server.has_extensions:
        name = f"stream manager {contact.server.version}".strip()
        return ok(f"{name} at {contact.address}, not Penstock; the token is accepted")
    found = f"penstock {contact.server.version} at {contact.address}, the token is accepted"
    if contact.server.version != __version__:
        return warn(found, f"restart the broker to upgrade it to {__version__}")
    return ok(found)


CHECKS: dict[str, Check] = {
    "settings": check_settings,
    "broker": check_broker,
}

"""Generates the documentation of the settings, as a page and as values."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from msgspec import inspect

from penstock.settings import Settings, original_variables, variables_of

_HEAD = """# Settings

Generated from the code by `make docs`. The environment overrides `penstock.toml` (in the working
directory, or named by `--config` or `PENSTOCK_CONFIG`), and a flag overrides both. An empty
variable counts as not set. The broker does not start with a value that is not allowed.

The table `[client]` of the same file is for clients and commands: `host`, `port`, `unix_socket`,
`token`, `tls_ca` ([the cookbook](cookbook.md#connecting) explains when each is used). The broker
ignores it. Clients and commands also read the variables `STREAM_MANAGER_SERVER_HOST`,
`STREAM_MANAGER_SERVER_PORT`, `AWS_CONTAINER_AUTHORIZATION_TOKEN` and `PENSTOCK_TLS_CA`.

```toml
root = "/var/lib/penstock"              # settings are at the top, outside of tables
exporter_max_bandwidth = 10000
read_only_dirs = "/srv/camera,/var/log/press"

[client]
host = "127.0.0.1"
port = 8088
```

The broker logs a warning for a variable that begins with `PENSTOCK_` and is not a setting.

| in `penstock.toml` | in the environment | default | allowed | description |
|---|---|---|---|---|
"""

# Defaults that are set when the settings are loaded.
_DEFAULTS = {"root": "~/.penstock"}

_TYPES: dict[type[inspect.Type], str] = {
    inspect.BoolType: "boolean",
    inspect.EnumType: "text",
    inspect.IntType: "integer",
    inspect.StrType: "text",
}


class Reference(NamedTuple):
    """The documentation of one setting."""

    name: str
    # All variables of the setting, the preferred one first.
    variables: tuple[str, ...]
    default: str | int | bool | None
    type: str
    # The allowed values; a range of numbers is one string.
    allowed: tuple[str, ...]
    description: str


def settings_page() -> str:
    return _HEAD + "".join(f"| {' | '.join(_cells(setting))} |\n" for setting in references())


def references() -> Iterator[Reference]:
    described = inspect.type_info(Settings)
    assert isinstance(described, inspect.StructType)
    for field in described.fields:
        kind, text = _described(field.type)
        yield Reference(
            name=field.name,
            variables=variables_of(field.name),
            default=_DEFAULTS.get(field.name, None if field.default == "" else field.default),
            type=_TYPES[type(kind)],
            allowed=_allowed(kind),
            description=text,
        )


def _cells(setting: Reference) -> tuple[str, ...]:
    is_range = setting.type == "integer"
    return (
        _code(setting.name),
        ", ".join(map(_code, original_variables(setting.name))),
        "none" if setting.default is None else _code(_literal(setting.default)),
        ", ".join(setting.allowed if is_range else map(_code, setting.allowed)) or "text",
        setting.description,
    )


def _code(text: str) -> str:
    return f"`{text}`"


def _described(kind: inspect.Type) -> tuple[inspect.Type, str]:
    """The type without annotations, and its description."""
    if isinstance(kind, inspect.UnionType):
        kind = next(option for option in kind.types if not isinstance(option, inspect.NoneType))
    text = ""
    while isinstance(kind, inspect.Metadata):
        text = text or str((kind.extra_json_schema or {}).get("description", ""))
        kind = kind.type
    return kind, text


def _allowed(kind: inspect.Type) -> tuple[str, ...]:
    if isinstance(kind, inspect.EnumType):
        return tuple(str(member.value) for member in kind.cls)
    if isinstance(kind, inspect.BoolType):
        return ("true", "false")
    if isinstance(kind, inspect.IntType):
        return (f"{kind.ge} or more" if kind.le is None else f"{kind.ge} to {kind.le}",)
    return ()


def _literal(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)

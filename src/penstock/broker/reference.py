"""The settings as a page of documentation, made from their declaration."""

from __future__ import annotations

from collections.abc import Iterator

from msgspec import inspect

from penstock.broker.settings import Settings, original_variables

_HEAD = """# Settings

Made from the code by `make docs`. A value in `penstock.toml` (in the working directory, or named by
`--config` or `PENSTOCK_CONFIG`) is overridden by the environment, and that by a flag. An empty
variable counts as not set. A value that is not allowed is refused at start.

| in `penstock.toml` | in the environment | default | allowed | what it is |
|---|---|---|---|---|
"""

# Filled in when the settings are loaded, not declared.
_DEFAULTS = {"root": "`~/.penstock`"}


def settings_page() -> str:
    return _HEAD + "".join(f"| {' | '.join(row)} |\n" for row in _rows())


def _rows() -> Iterator[tuple[str, ...]]:
    described = inspect.type_info(Settings)
    assert isinstance(described, inspect.StructType)
    for field in described.fields:
        kind, text = _described(field.type)
        default = "none" if field.default in ("", None) else f"`{_literal(field.default)}`"
        variables = ", ".join(f"`{variable}`" for variable in original_variables(field.name))
        yield (
            f"`{field.name}`",
            variables,
            _DEFAULTS.get(field.name, default),
            _allowed(kind),
            text,
        )


def _described(kind: inspect.Type) -> tuple[inspect.Type, str]:
    """The type inside its description; an optional one is described within."""
    if isinstance(kind, inspect.UnionType):
        kind = next(option for option in kind.types if not isinstance(option, inspect.NoneType))
    text = ""
    while isinstance(kind, inspect.Metadata):
        text = text or str((kind.extra_json_schema or {}).get("description", ""))
        kind = kind.type
    return kind, text


def _allowed(kind: inspect.Type) -> str:
    if isinstance(kind, inspect.EnumType):
        return ", ".join(f"`{member.value}`" for member in kind.cls)
    if isinstance(kind, inspect.BoolType):
        return "`true`, `false`"
    if isinstance(kind, inspect.IntType):
        if kind.le is None:
            return f"{kind.ge} or more"
        return f"{kind.ge} to {kind.le}"
    return "text"


def _literal(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)

"""The page docs/cli.md, made from the commands themselves."""

from __future__ import annotations

from collections.abc import Iterator

import click

from penstock.cli.main import main

_INTRODUCTION = """\
# The command line

`.venv/bin/penstock` after `make install`. Every command has `--help`, and `--json` for programs:
one JSON document on a line, with the names that things have on the wire. Tables are for people,
and may change. This page is made from the commands (`make docs`).

## Which broker

Commands that talk to a broker find it as the client does: what is passed (`--root`, `--host` and
`--port`, `--unix-socket`), then the environment, then `[client]` in `penstock.toml`, then the
broker of the root that is set, or of `~/.penstock`, then 127.0.0.1:8088. The token comes from
`AWS_CONTAINER_AUTHORIZATION_TOKEN`, from `penstock.toml`, or from the broker's root if you may
read it. [The cookbook](cookbook.md#connecting) has all of it.

## Exit codes

| code | what it means |
|---|---|
| 0 | it was done |
| 1 | it could not be done; one line on standard error says why |
| 2 | the command line, a setting or a definition file is wrong |
| 3 | no broker could be reached |
| 4 | the token is wrong, or its role does not allow it |
| 5 | there is no such stream, token or export |
| 6 | `penstock verify` found damage |
| 130 | it was interrupted (Ctrl-C) |

## Shell completion

`eval "$(penstock completion bash)"` (or `zsh`, `fish`) completes commands, options and the names
of streams and exports.
"""


def cli_page() -> str:
    context = click.Context(main, info_name="penstock", **main.context_settings)
    return "\n".join([_INTRODUCTION, *_sections(main, context)]).rstrip() + "\n"


def _sections(group: click.Group, context: click.Context) -> Iterator[str]:
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        assert command is not None
        inner = click.Context(command, info_name=name, parent=context)
        yield f"## {inner.command_path}\n"
        yield f"```\n{_help(command, inner)}\n```\n"
        if isinstance(command, click.Group):
            yield from _sections(command, inner)


def _help(command: click.Command, context: click.Context) -> str:
    # As wide as the page, whatever the terminal is that it is made in.
    context.terminal_width = 96
    context.max_content_width = 96
    return command.get_help(context)


if __name__ == "__main__":
    click.echo(cli_page(), nl=False)

"""Generates docs/cli.md from the commands."""

from __future__ import annotations

from collections.abc import Iterator

import click

from penstock.cli.main import main

_INTRODUCTION = """\
# Command line

`make install` creates `.venv/bin/penstock`. Every command has `--help`. Scripts should use
`--json`: it prints one JSON document per line, with the field names of the wire protocol. Tables
are for people and may change. This page is generated from the commands (`make docs`).

## Choosing a broker

Commands look for the broker in this order, as the Python client does:

1. the options `--root`, `--host` and `--port`, or `--unix-socket`
2. `STREAM_MANAGER_SERVER_HOST` and `STREAM_MANAGER_SERVER_PORT`
3. the table `[client]` of `penstock.toml`
4. the broker of `STREAM_MANAGER_STORE_ROOT_DIR`, or of `root` in `penstock.toml`. If one of them is
   set and no broker serves this root, the command fails
5. the broker of `~/.penstock`, or 127.0.0.1:8088

The token comes from `AWS_CONTAINER_AUTHORIZATION_TOKEN`, from `penstock.toml`, or from the file
`token` in the broker's root, if you may read it. [The cookbook](cookbook.md#connecting) has the
details.

## Exit codes

| code | meaning |
|---|---|
| 0 | success |
| 1 | failure; one line on standard error gives the reason |
| 2 | the command line, a setting or a definition file is invalid |
| 3 | no broker could be reached |
| 4 | the token is invalid, or its role does not allow the operation |
| 5 | the stream, token or export does not exist |
| 6 | `penstock verify` found damage |
| 130 | interrupted by Ctrl-C |

## Shell completion

`eval "$(penstock completion bash)"` (or `zsh`, `fish`) enables completion of commands, options and
the names of streams and exports.
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
    # A fixed width, so that the page does not depend on the terminal.
    context.terminal_width = 96
    context.max_content_width = 96
    return command.get_help(context)


if __name__ == "__main__":
    click.echo(cli_page(), nl=False)

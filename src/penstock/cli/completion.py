"""Shell completion: the script that enables it, and the values it offers."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

import click
from click.shell_completion import (
    BashComplete,
    FishComplete,
    ShellComplete,
    get_completion_class,
)

from penstock.cli.main import json_option, main
from penstock.cli.output import echo_json

if TYPE_CHECKING:
    from penstock.client.blocking import StreamManagerClient

_PROGRAM = "penstock"
_VARIABLE = "_PENSTOCK_COMPLETE"

# The user waits for the shell while a completion runs.
_TIMEOUT_SECONDS = 1


def complete_streams(
    ctx: click.Context,
    param: click.Parameter,  # noqa: ARG001 - click passes it
    incomplete: str,
) -> list[str]:
    """Names of the streams of the broker that the options before the cursor select."""
    return _complete(ctx, incomplete, lambda client: client.list_streams())


def complete_exports(
    ctx: click.Context,
    param: click.Parameter,  # noqa: ARG001 - click passes it
    incomplete: str,
) -> list[str]:
    """Identifiers of the exports of the stream before the cursor."""

    def find(client: StreamManagerClient) -> list[str]:
        definition = client.describe_message_stream(ctx.params["stream"]).definition
        return [export.identifier for export in definition.exports()]

    return _complete(ctx, incomplete, find)


def _complete(
    ctx: click.Context, incomplete: str, find: Callable[[StreamManagerClient], list[str]]
) -> list[str]:
    from penstock.cli.target import BrokerTarget

    target = BrokerTarget(**{name: ctx.params.get(name) for name in BrokerTarget._fields})
    try:
        with target.connect_briefly(_TIMEOUT_SECONDS, _TIMEOUT_SECONDS) as client:
            return [name for name in find(client) if name.startswith(incomplete)]
    except Exception:  # noqa: BLE001 - an error would clutter the command line
        return []


# Click's script for Bash has two defects. It splits `--root=DIR` into three words, as Bash does, so
# this script passes the line up to the cursor. It also inserts a name with a space as two words.
# Readline quotes only file names, so this script declares names with a space to be file names.
_BASH = """\
%(complete_func)s() {
    local IFS=$'\\n' line=${COMP_LINE:0:COMP_POINT} response completion value

    [[ $line == *' ' && ${COMP_WORDS[COMP_CWORD]} != *' '* ]] && line+="''"
    response=$(env COMP_WORDS="$line" COMP_CWORD=-1 \\
        %(complete_var)s=bash_complete "$1" 2>/dev/null)

    for completion in $response; do
        value=${completion#*,}
        case ${completion%%%%,*} in
            dir) COMPREPLY=(); compopt -o dirnames ;;
            file) COMPREPLY=(); compopt -o default ;;
            plain)
                COMPREPLY+=("$value")
                [[ $value == *' '* ]] && compopt -o filenames ;;
        esac
    done

    return 0
}

complete -o nosort -F %(complete_func)s %(prog_name)s
"""


class _Bash(BashComplete):
    source_template: ClassVar[str] = _BASH


class _Fish(FishComplete):
    # Names may contain a comma.
    source_template: ClassVar[str] = FishComplete.source_template.replace(
        'string split ","', 'string split -m 1 ","'
    )


_SCRIPTS: dict[str, type[ShellComplete]] = {"bash": _Bash, "fish": _Fish}
SHELLS = ("bash", "zsh", "fish")


@click.command()
@click.argument("shell", type=click.Choice(SHELLS), required=False)
@json_option
def completion(shell: str | None, as_json: bool) -> None:
    """Print the script for shell completion.

    It completes commands, options, and the names of streams and exports. By default it is for the
    shell in $SHELL. To enable completion in every new shell, add a line to its
    start-up file:

    \b
      ~/.bashrc                   eval "$(penstock completion bash)"
      ~/.zshrc, after compinit    eval "$(penstock completion zsh)"
      ~/.config/fish/config.fish  penstock completion fish | source
    """
    shell = shell or _shell_in_use()
    script = _script(shell)
    if as_json:
        echo_json({"shell": shell, "script": script})
    else:
        click.echo(script, nl=False)


def _script(shell: str) -> str:
    kind = _SCRIPTS.get(shell) or get_completion_class(shell)
    assert kind is not None, shell
    return kind(main, {}, _PROGRAM, _VARIABLE).source()


def _shell_in_use() -> str:
    shell = Path(os.environ.get("SHELL", "")).name
    if shell in SHELLS:
        return shell
    found = f"$SHELL is {os.environ['SHELL']!r}" if shell else "$SHELL is not set"
    raise click.UsageError(f"{found}: name the shell, one of {', '.join(SHELLS)}")

"""Completion in a shell: the script that turns it on, and the values it offers."""

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

# Whoever has pressed a key waits for it.
_TIMEOUT_SECONDS = 1


def complete_streams(
    ctx: click.Context,
    param: click.Parameter,  # noqa: ARG001 - click passes it
    incomplete: str,
) -> list[str]:
    """The streams of the broker that the options before the cursor name; none if it has none."""
    return _complete(ctx, incomplete, lambda client: client.list_streams())


def complete_exports(
    ctx: click.Context,
    param: click.Parameter,  # noqa: ARG001 - click passes it
    incomplete: str,
) -> list[str]:
    """The exports of the stream before the cursor."""

    def find(client: StreamManagerClient) -> list[str]:
        definition = client.describe_message_stream(ctx.params["stream"]).definition
        return [export.identifier for export in definition.exports()]

    return _complete(ctx, incomplete, find)


def _complete(
    ctx: click.Context, incomplete: str, find: Callable[[StreamManagerClient], list[str]]
) -> list[str]:
    from penstock.cli.target import Target

    target = Target(**{name: ctx.params.get(name) for name in Target._fields})
    try:
        with target.connect_briefly(_TIMEOUT_SECONDS, _TIMEOUT_SECONDS) as client:
            return [name for name in find(client) if name.startswith(incomplete)]
    except Exception:  # noqa: BLE001 - a key that does nothing is better than an error there
        return []


# Click's own for Bash takes `--root=DIR` for three words, as Bash does: this hands over the line
# up to the cursor, whose last word is the one to complete. And Click's inserts a name with a space
# in it as two words: Readline quotes what are file names to it, and leaves all else as it is.
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
    # There may be a comma in a name too.
    source_template: ClassVar[str] = FishComplete.source_template.replace(
        'string split ","', 'string split -m 1 ","'
    )


_OWN: dict[str, type[ShellComplete]] = {"bash": _Bash, "fish": _Fish}
SHELLS = ("bash", "zsh", "fish")


@click.command()
@click.argument("shell", type=click.Choice(SHELLS), required=False)
@json_option
def completion(shell: str | None, as_json: bool) -> None:
    """Print the script that lets a shell complete commands, options and names of streams.

    Without SHELL it is for the one that $SHELL names. To have it in every new shell, add a line
    to the file that the shell reads when it starts:

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
    kind = _OWN.get(shell) or get_completion_class(shell)
    assert kind is not None, shell
    return kind(main, {}, _PROGRAM, _VARIABLE).source()


def _shell_in_use() -> str:
    shell = Path(os.environ.get("SHELL", "")).name
    if shell in SHELLS:
        return shell
    found = f"$SHELL is {os.environ['SHELL']!r}" if shell else "$SHELL is not set"
    raise click.UsageError(f"{found}: name the shell, one of {', '.join(SHELLS)}")

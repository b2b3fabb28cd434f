"""Shell completion: the scripts, the offered values, and a real Bash."""

from __future__ import annotations

import json
import re
import shlex
import shutil
import socket
import subprocess
from collections.abc import Iterator
from typing import Any

import pytest

from penstock.wire.operations import Operation
from tests.support import (
    PENSTOCK,
    LocalBroker,
    Reachable,
    clean_environment,
    create,
    wait_until,
)

from .command import penstock
from .terminal import Terminal

NAMES = ["my stream", "one, two", "turbine-1", "turbine-2"]


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Reachable]:
    with LocalBroker(tmp_path_factory.mktemp("completion") / "a root") as broker:
        with broker.connect() as client:
            for name in NAMES:
                create(client, name)
        yield broker


# The script


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_script_is_for_the_named_or_current_shell(shell: str) -> None:
    named = penstock("completion", shell, SHELL="/bin/tcsh")
    in_use = penstock("completion", SHELL=f"/usr/bin/{shell}")
    plain = json.loads(penstock("completion", shell, "--json").output)

    assert named.code == 0
    assert f"_PENSTOCK_COMPLETE={shell}_complete" in named.output
    assert named.output == in_use.output
    assert plain == {"shell": shell, "script": named.output}


@pytest.mark.parametrize(
    ("words", "variables", "message"),
    [
        ([], {"SHELL": "/bin/tcsh"}, "$SHELL is '/bin/tcsh': name the shell, one of bash, zsh, f"),
        ([], {"SHELL": ""}, "$SHELL is not set: name the shell, one of bash, zsh, fish"),
        (["ksh"], {}, "'ksh' is not one of 'bash', 'zsh', 'fish'"),
    ],
)
def test_unsupported_shell_is_rejected_with_the_supported_ones(
    words: list[str], variables: dict[str, Any], message: str
) -> None:
    finished = penstock("completion", *words, **variables)

    assert finished.code == 2
    assert message in finished.error
    assert finished.output == ""


def test_help_shows_how_to_install_it() -> None:
    assert 'eval "$(penstock completion bash)"' in penstock("completion", "--help").output


@pytest.mark.skipif(shutil.which("bash") is None, reason="Bash is not installed")
def test_script_is_valid_bash() -> None:
    script = penstock("completion", "bash").output
    subprocess.run(["bash", "-n"], input=script, text=True, check=True)


# The values


def complete(line: str, **variables: Any) -> list[str]:
    """The completions of the last word of a line."""
    finished = penstock(
        _PENSTOCK_COMPLETE="bash_complete",
        COMP_WORDS=line,
        COMP_CWORD="-1",
        **variables,
    )
    assert finished.code == 0
    assert finished.error == ""
    return [offered.partition(",")[2] for offered in finished.output.splitlines() if offered]


def test_streams_of_the_selected_broker_are_offered(broker: Reachable) -> None:
    root = shlex.quote(str(broker.root))

    assert complete(f"penstock read --root {root} ''") == NAMES
    assert complete(f"penstock read --root={root} tur") == ["turbine-1", "turbine-2"]
    assert complete(f"penstock tail --root {root} my\\ ") == ["my stream"]
    assert complete(f"penstock append --root {root} x") == []
    with_token = {"AWS_CONTAINER_AUTHORIZATION_TOKEN": broker.token}
    assert complete(f"penstock read --port {broker.port} o", **with_token) == ["one, two"]


def test_exports_of_the_stream_before_the_cursor_are_offered(broker: Reachable) -> None:
    root = shlex.quote(str(broker.root))
    exports = [{"identifier": name, "uri": "http://x"} for name in ("cloud", "copy", "lab")]
    with broker.connect() as client:
        create(client, "exported", exportDefinition={"http": exports})
    try:
        line = f"penstock exports rewind --root {root}"
        assert complete(f"{line} exp") == ["exported"]
        assert complete(f"{line} exported ''") == ["cloud", "copy", "lab"]
        assert complete(f"{line} exported c") == ["cloud", "copy"]
        assert complete(f"{line} turbine-1 ''") == []
        assert complete(f"{line} nowhere ''") == []
        assert complete(f"{line} exported cloud --to ''") == ["earliest", "latest"]
        assert complete(f"{line} exported cloud --to e") == ["earliest"]
    finally:
        with broker.connect() as client:
            client.call(Operation.DeleteMessageStream, name="exported")


def test_errors_offer_nothing(broker: Reachable) -> None:
    wrong_token = {"AWS_CONTAINER_AUTHORIZATION_TOKEN": "wrong"}

    assert complete(f"penstock read --port {broker.port} ''") == []
    assert complete(f"penstock read --port {broker.port} ''", **wrong_token) == []
    assert complete("penstock read --port eighty ''", STREAM_MANAGER_SERVER_PORT="x") == []
    assert complete("penstock read --config /nowhere.toml ''") == []


def test_silent_server_times_out() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        assert complete(f"penstock read --port {silent.getsockname()[1]} ''") == []


def test_commands_and_options_are_offered() -> None:
    assert complete("penstock stat") == ["status"]
    assert "--interval" in complete("penstock status --")


# In a shell


@pytest.fixture(scope="module")
def bash() -> Iterator[Terminal]:
    """A Bash with completion, in which `penstock` is a function that prints its arguments."""
    if shutil.which("bash") is None:
        pytest.skip("Bash is not installed")
    path = f"{PENSTOCK.parent}:{clean_environment()['PATH']}"
    with Terminal("bash", "--norc", "-i", PS1="ready> ", INPUTRC="/dev/null", PATH=path) as bash:
        bash.type('eval "$(penstock completion bash)"\n')
        bash.type("""penstock() { printf '<%s>' "$@"; echo "$((++lines)) lines"; }\n""")
        bash.type("penstock\n")
        wait_until(lambda: "<>1 lines\r\n" in bash.text)
        yield bash


@pytest.mark.parametrize(
    ("typed", "words"),
    [
        ("comp\t", ["completion"]),
        ("status --int\t", ["status", "--interval"]),
        ("read --root {root} my\t", ["read", "--root", "{root}", "my stream"]),
        ("read --root={root} my\\ s\t", ["read", "--root={root}", "my stream"]),
        ('read --root {root} "my\t', ["read", "--root", "{root}", "my stream"]),
        ("read --root {root} one\t", ["read", "--root", "{root}", "one, two"]),
        ("read --root {root} t\t", ["read", "--root", "{root}", "turbine-"]),
        ("read --root {root} \t--json", ["read", "--root", "{root}", "--json"]),
    ],
)
def test_bash_completes_words(
    bash: Terminal, broker: Reachable, typed: str, words: list[str]
) -> None:
    root = str(broker.root)
    before = len(bash.text)
    bash.type("penstock " + typed.replace("{root}", root.replace(" ", "\\ ")) + "\n")

    shown = wait_until(lambda: re.search(r"(<[^\r\n]*>)\d+ lines\r\n", bash.text[before:]))
    assert shown is not None
    assert shown[1] == "".join(f"<{word.replace('{root}', root)}>" for word in words)

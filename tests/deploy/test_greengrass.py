"""The Greengrass component: its recipe matches the code, and its startup works."""

from __future__ import annotations

import re
import signal
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from penstock import __version__
from penstock.cli.main import DEFAULT_HTTP_PORT
from penstock.distribution import DISTRIBUTION
from penstock.greengrass.component import SOCKET_VARIABLE, TOKEN_VARIABLE
from penstock.settings import Settings, load_settings, variables_of
from tests.deploy.project import DEPLOY, extras, parse
from tests.greengrass.ipc_server import STREAM_MANAGER, NucleusServer
from tests.raw_connection import RawConnection
from tests.support import PENSTOCK, TIMEOUT_S, clean_environment, wait_until

RECIPE: dict[str, Any] = yaml.safe_load((DEPLOY / "greengrass" / "recipe.yaml").read_text())
DEFAULTS: dict[str, str] = RECIPE["ComponentConfiguration"]["DefaultConfiguration"]
(MANIFEST,) = RECIPE["Manifests"]
LIFECYCLE: dict[str, Any] = MANIFEST["Lifecycle"]
SCRIPTS = [LIFECYCLE["install"]["Script"], LIFECYCLE["startup"]["Script"]]

# The configuration keys of the original.
ORIGINAL_KEYS = {
    "STREAM_MANAGER_STORE_ROOT_DIR",
    "STREAM_MANAGER_SERVER_PORT",
    "STREAM_MANAGER_AUTHENTICATE_CLIENT",
    "STREAM_MANAGER_EXPORTER_MAX_BANDWIDTH",
    "STREAM_MANAGER_EXPORTER_THREAD_POOL_SIZE",
    "STREAM_MANAGER_EXPORTER_S3_DESTINATION_MULTIPART_UPLOAD_MIN_PART_SIZE_BYTES",
    "STREAM_MANAGER_EXPORTER_KINESIS_INTER_CALL_DELAY_MS",
    "LOG_LEVEL",
    "JVM_ARGS",
    "startupTimeoutSeconds",
}


def interpolate(text: str, values: dict[str, str]) -> str:
    """Replaces variables like the nucleus; unknown variables stay."""
    return re.sub(r"\{([.\w-]+:[^:}]*)\}", lambda found: values.get(found[1], found[0]), text)


def test_component_replaces_the_original() -> None:
    assert RECIPE["ComponentName"] == STREAM_MANAGER
    version = tuple(map(int, RECIPE["ComponentVersion"].split(".")))
    assert (2, 3, 1) < version < (3, 0, 0)
    assert "aws.greengrass.TokenExchangeService" in RECIPE["ComponentDependencies"]


def test_configuration_has_the_keys_of_the_original_as_text() -> None:
    assert set(DEFAULTS) >= ORIGINAL_KEYS
    assert all(isinstance(value, str) for value in DEFAULTS.values())


def test_defaults_of_the_recipe_equal_those_of_the_settings() -> None:
    variables = {name: DEFAULTS[name] for name in LIFECYCLE["Setenv"]}
    assert int(variables.pop("PENSTOCK_HTTP_PORT")) == DEFAULT_HTTP_PORT

    assert load_settings(variables, {}) == load_settings({}, {})


def test_variables_belong_to_settings_and_have_the_values_of_their_keys() -> None:
    known = {variable for name in Settings.__struct_fields__ for variable in variables_of(name)}
    for variable, value in LIFECYCLE["Setenv"].items():
        assert variable in known
        assert value == f"{{configuration:/{variable}}}"


def test_every_brace_starts_a_known_variable() -> None:
    known = {f"{{configuration:/{key}}}" for key in DEFAULTS} | {"{work:path}", "{artifacts:path}"}
    texts = [*SCRIPTS, *LIFECYCLE["Setenv"].values(), LIFECYCLE["startup"]["Timeout"]]
    for text in texts:
        assert set(re.findall(r"\{[^}]*\}?", text)) <= known


def test_wheel_has_this_version_and_its_extras_exist() -> None:
    (artifact,) = MANIFEST["Artifacts"]
    wheel = f"{DISTRIBUTION.replace('-', '_')}-{__version__}-py3-none-any.whl"
    assert artifact["Uri"].endswith(f"/{wheel}")
    assert wheel in LIFECYCLE["install"]["Script"]
    assert f'"{DISTRIBUTION}-{__version__} {{' in LIFECYCLE["install"]["Script"]
    assert {"greengrass", *DEFAULTS["extras"].split(",")} <= extras()


def test_lifecycle_keys_are_valid_for_nucleus_lite() -> None:
    assert set(LIFECYCLE) == {"Setenv", "install", "startup"}
    assert set(LIFECYCLE["install"]) | set(LIFECYCLE["startup"]) == {"Script", "Timeout"}
    assert MANIFEST["Platform"]["runtime"] == "*"


@pytest.mark.parametrize("script", SCRIPTS)
def test_scripts_are_valid_shell(script: str) -> None:
    subprocess.run(["sh", "-n", "-c", script], check=True)


def test_started_component_serves_other_components(tmp_path: Path) -> None:
    work = tmp_path / "work"
    program = work / "venv" / "bin" / "penstock"
    program.parent.mkdir(parents=True)
    program.symlink_to(PENSTOCK)
    configuration = {**DEFAULTS, "STREAM_MANAGER_SERVER_PORT": "0", "PENSTOCK_HTTP_PORT": "0"}
    values = {f"configuration:/{key}": value for key, value in configuration.items()}
    values["work:path"] = str(work)
    command = LIFECYCLE["startup"]["Script"].rpartition('penstock" ')[2]
    assert parse(command.split())["root"] is None
    with NucleusServer(tmp_path / "ipc.socket", press="press-token") as server:
        process = subprocess.Popen(
            # Other tests cover exports, which need Java.
            ["sh", "-c", interpolate(f"{LIFECYCLE['startup']['Script']} --no-pipeline", values)],
            cwd=work,
            env=clean_environment(
                **{name: interpolate(text, values) for name, text in LIFECYCLE["Setenv"].items()},
                **{SOCKET_VARIABLE: str(server.path), TOKEN_VARIABLE: "svcuid"},
            ),
        )
        try:
            wait_until(lambda: server.states or process.poll() is not None)
            port = server.configurations[STREAM_MANAGER]["port"]
            RawConnection.open("127.0.0.1", port, "press-token").close()
            assert (work / "penstock" / "token").exists()
        finally:
            process.send_signal(signal.SIGTERM)
            code = process.wait(TIMEOUT_S)
    assert code == 0

"""The Docker image and the compose file: commands, ports and directories match the code."""

from __future__ import annotations

import json
import re
from typing import Any

import yaml

from penstock.cli.main import DEFAULT_HTTP_PORT
from penstock.cli.supervision import _STOP_SECONDS
from penstock.settings import Settings, variables_of
from tests.deploy.project import DEPLOY, PROJECT, extras, parse

DOCKERFILE = re.sub(r"\\\n\s*", "", (DEPLOY / "docker" / "Dockerfile").read_text())
COMPOSE: dict[str, Any] = yaml.safe_load((DEPLOY / "docker" / "compose.yaml").read_text())
SERVICES: dict[str, dict[str, Any]] = COMPOSE["services"]


def instruction(name: str) -> str:
    """The argument of the last instruction with this name."""
    found: list[str] = re.findall(rf"^{name} (.*)$", DOCKERFILE, re.MULTILINE)
    return found[-1]


def test_image_runs_broker_and_exports_in_its_volume() -> None:
    assert json.loads(instruction("ENTRYPOINT")) == ["penstock"]
    # A flag would override the environment.
    assert not any(parse(json.loads(instruction("CMD"))).values())
    variables = dict(word.split("=", 1) for word in instruction("ENV").split())
    (root,) = (variables[name] for name in variables_of("root") if name in variables)
    assert root == instruction("VOLUME") == instruction("WORKDIR")
    assert f"useradd --system --uid {instruction('USER')} " in DOCKERFILE


def test_ports_and_health_check_match_the_defaults() -> None:
    assert instruction("EXPOSE").split() == [str(Settings().port), str(DEFAULT_HTTP_PORT)]
    *_, script = json.loads(instruction("HEALTHCHECK").partition(" CMD ")[2])
    assert f"'{variables_of('http_port')[0]}') or {DEFAULT_HTTP_PORT})" in script
    compile(script, "HEALTHCHECK", "exec")


def test_copied_files_exist_and_are_not_ignored() -> None:
    ignored = (DEPLOY / "docker" / "Dockerfile.dockerignore").read_text().split()
    sources = re.findall(r"^COPY (?!--from)(.*)$", DOCKERFILE, re.MULTILINE)
    for name in {word for line in sources for word in line.split()[:-1]}:
        assert (PROJECT / name).exists()
        assert f"!{name}" in ignored


def test_installed_extras_exist() -> None:
    chosen = [
        re.findall(r"^ARG EXTRAS=(.*)$", DOCKERFILE, re.MULTILINE)[0],
        SERVICES["sandbox"]["build"]["args"]["EXTRAS"],
    ]
    for names in chosen:
        assert set(names.split(",")) <= extras()


def test_services_run_valid_commands_on_the_network_of_the_host() -> None:
    for name in ("penstock", "sandbox"):
        service = SERVICES[name]
        words = service.get("command") or json.loads(instruction("CMD"))
        chosen = {option for option, value in parse(words).items() if value}
        assert chosen == ({"sandbox", "demo"} if name == "sandbox" else set())
        assert service["network_mode"] == "host"
        assert service["build"]["dockerfile"] == "deploy/docker/Dockerfile"
        # Pipeline, broker and sandbox stop one after the other.
        assert int(service["stop_grace_period"].removesuffix("s")) >= 3 * _STOP_SECONDS
        (volume,) = service["volumes"]
        assert volume.endswith(f":{instruction('VOLUME')}")


def test_mounted_files_exist() -> None:
    for service in SERVICES.values():
        for volume in service["volumes"]:
            source = volume.split(":")[0]
            if source.startswith("."):
                assert (DEPLOY / "docker" / source).exists()
            else:
                assert source in COMPOSE["volumes"]

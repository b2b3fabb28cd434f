"""requirements.lock matches pyproject.toml and works with any package index."""

from __future__ import annotations

import re
import tomllib

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

from tests.packaging.conftest import PROJECT

LOCK = (PROJECT / "requirements.lock").read_text()
CONFIGURATION = tomllib.loads((PROJECT / "pyproject.toml").read_text())
PYTHONS = ("3.11", "3.12", "3.13", "3.14")


def requirements() -> list[Requirement]:
    project = CONFIGURATION["project"]
    groups = [project["dependencies"], *project["optional-dependencies"].values()]
    groups.append(CONFIGURATION["build-system"]["requires"])
    return [Requirement(line) for group in groups for line in group]


def locked() -> list[Requirement]:
    # A requirement continues over lines with its hashes.
    return [Requirement(line) for line in re.findall(r"^(\w.*?) \\$", LOCK, re.MULTILINE)]


@pytest.mark.parametrize("python", PYTHONS)
def test_every_requirement_is_pinned_within_its_range(python: str) -> None:
    environment = {
        "python_version": python,
        "python_full_version": f"{python}.4",
        "sys_platform": "linux",
    }
    versions = {}
    for pin in locked():
        if pin.marker is None or pin.marker.evaluate(environment):
            (specifier,) = pin.specifier
            assert specifier.operator == "=="
            assert canonicalize_name(pin.name) not in versions
            versions[canonicalize_name(pin.name)] = Version(specifier.version)

    for requirement in requirements():
        version = versions.get(canonicalize_name(requirement.name))
        assert version is not None, f"{requirement} is not locked: run `make lock`"
        assert requirement.specifier.contains(version, prereleases=True), (
            f"{requirement} is locked as {version}: run `make lock`"
        )


def test_every_pin_has_hashes() -> None:
    blocks = re.split(r"^(?=\w)", LOCK, flags=re.MULTILINE)[1:]

    assert len(blocks) == len(locked())
    assert all("--hash=sha256:" in block for block in blocks)


def test_lock_names_no_package_index() -> None:
    assert "://" not in LOCK
    assert "--index" not in LOCK
    assert "--find-links" not in LOCK

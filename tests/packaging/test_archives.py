"""Contents of the wheel and of the source distribution."""

from __future__ import annotations

import subprocess
import tarfile
import tomllib
import zipfile
from pathlib import Path

import pytest
from packaging.metadata import Metadata

from penstock import __version__
from penstock.distribution import DISTRIBUTION
from tests.packaging.conftest import PROJECT, Archives

PREFIX = f"{DISTRIBUTION.replace('-', '_')}-{__version__}"
# Not in a source distribution: tools of a clone, and the site of the documentation.
ONLY_IN_A_CLONE = (
    ".ci/",
    ".github/",
    ".pre-commit-config.yaml",
    "mkdocs.yml",
    "website/",
    "tests/test_site.py",
)


def files_of_the_wheel(archives: Archives) -> set[str]:
    with zipfile.ZipFile(archives.wheel) as wheel:
        return set(wheel.namelist())


def files_of_the_sdist(archives: Archives) -> set[str]:
    with tarfile.open(archives.sdist) as sdist:
        return {name.removeprefix(f"{PREFIX}/") for name in sdist.getnames()}


def test_archives_have_name_and_version(archives: Archives) -> None:
    assert archives.wheel.name == f"{PREFIX}-py3-none-any.whl"
    assert archives.sdist.name == f"{PREFIX}.tar.gz"


def test_metadata_is_valid_and_matches_the_project(archives: Archives) -> None:
    project = tomllib.loads((PROJECT / "pyproject.toml").read_text())["project"]
    with zipfile.ZipFile(archives.wheel) as wheel:
        metadata = Metadata.from_email(wheel.read(f"{PREFIX}.dist-info/METADATA"), validate=True)

    assert (metadata.name, str(metadata.version)) == (DISTRIBUTION, __version__)
    assert metadata.description == (PROJECT / "README.md").read_text()
    assert set(metadata.provides_extra or []) == set(project["optional-dependencies"])
    assert str(metadata.requires_python) == project["requires-python"]
    assert metadata.license_expression == project["license"]


def test_wheel_has_only_the_package(archives: Archives) -> None:
    source = PROJECT / "src"
    expected = {
        str(path.relative_to(source))
        for path in source.rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }

    found = files_of_the_wheel(archives)

    assert {name for name in found if ".dist-info/" not in name} == expected
    assert "penstock/py.typed" in found
    assert f"{PREFIX}.dist-info/licenses/LICENSE" in found


def test_source_distribution_has_all_tracked_files(archives: Archives) -> None:
    if not (PROJECT / ".git").exists():
        pytest.skip("not a clone")
    tracked = subprocess.run(
        ["git", "ls-files", "-z"], cwd=PROJECT, check=True, capture_output=True, text=True
    ).stdout.split("\0")
    expected = {
        name
        for name in tracked
        if name and not name.startswith(ONLY_IN_A_CLONE) and Path(PROJECT, name).exists()
    }

    assert expected - files_of_the_sdist(archives) == set()


def test_source_distribution_has_no_installed_files(archives: Archives) -> None:
    directories = {name.partition("/")[0] for name in files_of_the_sdist(archives)}

    assert directories.isdisjoint({".venv", ".sdks", ".run", "dist"})

"""Examples, links and generated pages of the documentation are correct."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from penstock.cli.cli_reference import cli_page
from penstock.settings_reference import settings_page
from penstock.web.metrics_reference import metrics_page
from tests.support import PENSTOCK, TIMEOUT_S, BrokerProcess, clean_environment

PROJECT = Path(__file__).resolve().parents[1]


def test_settings_page_is_up_to_date() -> None:
    page = (PROJECT / "docs" / "settings.md").read_text()
    assert page == settings_page(), "run `make reference`"


def test_cli_page_is_up_to_date() -> None:
    page = (PROJECT / "docs" / "cli.md").read_text()
    assert page == cli_page(), "run `make reference`"


def test_metrics_page_is_up_to_date() -> None:
    page = (PROJECT / "docs" / "metrics.md").read_text()
    assert page == metrics_page(), "run `make reference`"


@pytest.mark.parametrize("page", ["README.md", "docs/getting-started.md"])
def test_first_python_example_works_when_pasted_twice(page: str, tmp_path: Path) -> None:
    example = re.search(r"```python\n(.*?)```", (PROJECT / page).read_text(), re.DOTALL)
    assert example is not None
    with BrokerProcess(tmp_path / "root") as broker:
        environment = clean_environment(STREAM_MANAGER_STORE_ROOT_DIR=str(broker.root))
        for run in range(2):
            pasted = subprocess.run(
                [sys.executable, "-i"],
                input=example[1],
                env=environment,
                cwd=tmp_path,
                capture_output=True,
                text=True,
                timeout=TIMEOUT_S,
                check=True,
            )
            assert f"{3 * run + 2} b'22.0'" in pasted.stdout, pasted.stderr
            assert "Traceback" not in pasted.stderr


@pytest.mark.parametrize("page", ["README.md", "docs/getting-started.md"])
def test_shell_lines_work(page: str, tmp_path: Path) -> None:
    lines = re.findall(
        r"^(penstock (?:status|append|read|env|tokens|verify)\b.*?)(?:  #.*)?$",
        (PROJECT / page).read_text(),
        re.MULTILINE,
    )
    assert len(lines) > 3
    with BrokerProcess(tmp_path / "root") as broker:
        for line in lines:
            finished = subprocess.run(
                line,
                shell=True,
                env=clean_environment(
                    STREAM_MANAGER_STORE_ROOT_DIR=str(broker.root),
                    PATH=f"{PENSTOCK.parent}:/usr/bin:/bin",
                ),
                cwd=tmp_path,
                capture_output=True,
                text=True,
                timeout=TIMEOUT_S,
                check=False,
            )
            assert finished.returncode == 0, (line, finished.stderr)


def test_every_recipe_of_the_cookbook_works(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    recipes = re.findall(
        r"```python\n(.*?)```", (PROJECT / "docs" / "cookbook.md").read_text(), re.DOTALL
    )
    assert len(recipes) > 10
    with BrokerProcess(tmp_path / "root") as broker:
        monkeypatch.setenv("STREAM_MANAGER_SERVER_PORT", str(broker.port))
        monkeypatch.setenv("AWS_CONTAINER_AUTHORIZATION_TOKEN", broker.token)
        for recipe in recipes:
            exec(compile(recipe, "cookbook.md", "exec"), {"__name__": "__main__"})
    assert "stored as 2" in capsys.readouterr().out


def test_targets_of_links_between_pages_exist() -> None:
    for page in [
        *PROJECT.glob("*.md"),
        *PROJECT.glob("docs/**/*.md"),
        *PROJECT.glob("examples/*.md"),
    ]:
        for target in re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", page.read_text()):
            assert (page.parent / target).exists(), f"{page.name} links to {target}"


@pytest.mark.parametrize("page", ["ARCHITECTURE.md", "README.md", "docs/glossary.md"])
def test_files_that_a_page_names_exist(page: str) -> None:
    names = re.findall(r"`((?:\w+/)+\w+\.(?:py|md))`", (PROJECT / page).read_text())
    assert names
    for name in names:
        assert (PROJECT / name).exists() or (PROJECT / "src" / "penstock" / name).exists(), name


def test_every_module_has_a_test_file() -> None:
    source = PROJECT / "src" / "penstock"
    for module in source.glob("*/**/*.py"):
        if not module.stem.startswith("__"):
            tests = module.relative_to(source).with_name(f"test_{module.name}")
            assert (PROJECT / "tests" / tests).exists(), f"{module} has no tests/{tests}"

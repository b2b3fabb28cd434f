"""The site of the documentation builds without warnings and works offline."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
from playwright.sync_api import Request, expect

from penstock import sdk
from tests.web.browser import open_browser

PROJECT = Path(__file__).resolve().parents[1]


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The built site. `strict` in mkdocs.yml makes every broken link or anchor an error."""
    pytest.importorskip("mkdocs", reason="mkdocs is not installed: run `make install`")
    directory = tmp_path_factory.mktemp("site")
    built = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--site-dir", str(directory)],
        cwd=PROJECT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert built.returncode == 0, built.stderr
    return directory


def test_site_contains_every_page(site: Path) -> None:
    sources = {page.relative_to(PROJECT) for page in PROJECT.glob("docs/**/*.md")}
    pages = {source.with_suffix(".html") for source in sources if source.stem != "README"}
    assert (site / "index.html").exists()
    assert not {page for page in pages if not (site / page).exists()}


def test_api_reference_describes_public_names(site: Path) -> None:
    clients = (site / "docs" / "api" / "clients.html").read_text()
    types = (site / "docs" / "api" / "types.html").read_text()
    assert 'id="penstock.StreamManagerClient.append_messages"' in clients
    assert 'id="penstock.AsyncStreamManagerClient.tail"' in clients
    assert 'id="penstock.MessageStreamDefinition"' in types


def test_every_public_name_is_in_the_api_reference(site: Path) -> None:
    pages = "".join(page.read_text() for page in (site / "docs" / "api").glob("*.html"))
    # A version needs no description, and ExportConfig is a union of documented types.
    undocumented = {"SDK_VERSION", "ExportConfig"}
    missing = [name for name in sdk.__all__ if f'id="penstock.{name}"' not in pages]
    assert set(missing) == undocumented


def test_pages_load_no_assets_from_other_hosts(site: Path) -> None:
    for page in site.rglob("*.html"):
        tags = re.findall(r"<(?:script|link|img|iframe|source)\b[^>]*>", page.read_text())
        foreign = [tag for tag in tags if re.search(r"(?:src|href)=[\"']?(?:https?:)?//", tag)]
        # A canonical link loads nothing.
        assert not [tag for tag in foreign if "canonical" not in tag], page
    for sheet in site.rglob("*.css"):
        assert not re.search(r"(?:url\(|@import)\s*[\"']?(?:https?:)?//", sheet.read_text()), sheet


def test_lists_are_rendered_as_lists(site: Path) -> None:
    """Python-Markdown needs an empty line before a list, which other renderers do not."""
    for page in site.rglob("*.html"):
        text = re.sub(r"<pre.*?</pre>", "", page.read_text(), flags=re.DOTALL)
        for paragraph in re.findall(r"<p>(.*?)</p>", text, re.DOTALL):
            assert not re.search(r"\n(?:[-*]|1\.) ", paragraph), f"{page}: {paragraph}"


def test_search_works_with_file_urls(site: Path) -> None:
    with open_browser() as browser:
        page = browser.new_page()
        foreign: list[str] = []

        def note_foreign(request: Request) -> None:
            if not request.url.startswith(("file:", "data:")):
                foreign.append(request.url)

        page.on("request", note_foreign)
        page.goto((site / "index.html").as_uri())
        page.get_by_placeholder("Search").click()
        page.keyboard.type("glossary")
        results = page.locator(".md-search-result__item")
        expect(results.filter(has_text="Glossary").first).to_be_visible(timeout=60_000)
        assert not foreign

"""Every Python block of the documentation runs, page by page, in a folder with a few photos."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from conftest import picture, png

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
# This one needs a service: test_trust.py runs it, its commands included.
OTHERS = {"trust.md"}


@pytest.mark.parametrize(
    "page", [page for page in PAGES if page.name not in OTHERS], ids=lambda page: page.name
)
def test_documentation_runs(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    blocks = re.findall(r"^```python\n(.*?)^```", page.read_text(), re.MULTILINE | re.DOTALL)
    for number in range(192):
        folder = tmp_path / "train" / ("cat" if number % 3 else "dog")
        folder.mkdir(parents=True, exist_ok=True)
        (folder / f"{number}.jpg").write_bytes(png(picture(number, 40, 50)))
    monkeypatch.chdir(tmp_path)
    scope: dict[str, object] = {}
    for number, block in enumerate(blocks):
        exec(compile(block, f"{page.name}, block {number + 1}", "exec"), scope)


def test_links_between_pages_lead_somewhere():
    for page in [*PAGES, ROOT / "ARCHITECTURE.md", ROOT / "CONTRIBUTING.md"]:
        for target in re.findall(r"\]\(([^)#:]+)\)", page.read_text()):
            assert (page.parent / target).exists(), f"{page.name} links to {target}"

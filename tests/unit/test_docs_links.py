"""Links between the pages of the documentation lead to files and headings that there are."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.unit.docs_text import PAGES, ROOT


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\(([^)\s]+)\)", page.read_text()):
        if target.startswith("http"):
            continue
        name, _, anchor = target.partition("#")
        found = (page.parent / name).resolve() if name else page
        assert found.exists(), target
        assert found.is_relative_to(ROOT)
        if anchor:
            titles = re.findall(r"^#+ (.+)$", found.read_text(), re.M)
            assert anchor in {_anchor(title) for title in titles}, target


def _anchor(title: str) -> str:
    return re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-")

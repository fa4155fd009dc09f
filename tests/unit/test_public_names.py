"""The public names and the page that lists them say the same."""

from __future__ import annotations

import re
from pathlib import Path

import flowpg

PAGE = Path("docs/reference/api.md")


def listed() -> set[str]:
    """The names in the first column of the page's tables."""
    cells = re.findall(r"^\| (`.*?) \|", PAGE.read_text(encoding="utf-8"), re.MULTILINE)
    return {name for cell in cells for name in re.findall(r"`(\w+)`", cell)}


def test_every_public_name_is_on_the_page_and_nothing_else_is() -> None:
    assert listed() == set(flowpg.__all__)


def test_every_public_name_exists_and_says_what_it_is() -> None:
    for name in flowpg.__all__:
        value = getattr(flowpg, name)
        if isinstance(value, type):
            assert value.__doc__, name

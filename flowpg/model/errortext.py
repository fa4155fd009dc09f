"""The error text of an event: words for people, and below them, on a line of its own, the record
that a program makes the error of again. A text that nobody's code has raised has no record."""

from __future__ import annotations

from typing import Final

RECORD: Final = "flowpg.error: "
"""How the line of the record begins."""


def human_text(text: str) -> str:
    """An error text without its record."""
    head, _, last = text.rpartition("\n")
    return head if last.startswith(RECORD) else text

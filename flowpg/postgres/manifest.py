"""The files of ``sql/``, in the order that makes a fresh schema."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from flowpg.resources import sql_root


def manifest(root: Path | None = None) -> list[Path]:
    """The files that make a fresh schema, in the order in which they are run."""
    root = root or sql_root()
    lines = (root / "manifest.txt").read_text(encoding="utf-8").splitlines()
    return [root / line.strip() for line in lines if line.strip() and not line.startswith("#")]


def statements(root: Path | None = None) -> Iterator[tuple[Path, str]]:
    """Each file of the manifest with its text."""
    for path in manifest(root):
        yield path, path.read_text(encoding="utf-8")


def compose(root: Path | None = None) -> str:
    """The files of the manifest as one text that names no schema."""
    root = root or sql_root()
    return "\n".join(
        f"-- sql/{path.relative_to(root).as_posix()}\n{text.strip()}\n"
        for path, text in statements(root)
    )

"""What the pages for users say can be followed: links lead somewhere, programs read as Python."""

from __future__ import annotations

import ast
import importlib
import re
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import typer

from flowpg.console.main import app

PAGES = [
    Path("README.md"),
    Path("CONTRIBUTING.md"),
    Path("examples/README.md"),
    Path("sql/README.md"),
    *sorted(Path("docs").rglob("*.md")),
]
SHOWN = [
    (page, text)
    for page in PAGES
    for text in re.findall(
        r"^```python\n(.*?)^```", page.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL
    )
]


def there_is(module: ModuleType, name: str) -> bool:
    """Whether ``from module import name`` works."""
    return hasattr(module, name) or find_spec(f"{module.__name__}.{name}") is not None


@pytest.mark.parametrize("page", PAGES, ids=str)
def test_links_lead_to_files(page: Path) -> None:
    links = re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", page.read_text(encoding="utf-8"))
    assert [link for link in links if not (page.parent / link).exists()] == []


@pytest.mark.parametrize("number", range(len(SHOWN)))
def test_programs_import_what_there_is(number: int) -> None:
    page, text = SHOWN[number]
    # Fragments of asynchronous functions are shown without the function.
    body = "".join(f"    {line}" for line in text.splitlines(keepends=True))
    tree = ast.parse(f"async def shown():\n{body}", filename=str(page))
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "flowpg":
            module = importlib.import_module(str(node.module))
            names = [name.name for name in node.names]
            missing = [name for name in names if not there_is(module, name)]
            assert missing == [], page


def test_the_program_of_the_page_about_writing_is_one() -> None:
    text = next(text for page, text in SHOWN if page.name == "write-workflows.md")
    found: dict[str, Any] = {"__name__": "shop"}
    exec(compile(text, "write-workflows.md", "exec", dont_inherit=True), found)
    assert set(found["app"].steps) == {"charge", "ship", "refund"}
    assert found["fulfil"].input(found["Order"]("17", 900)) == {"order": {"id": "17", "cents": 900}}


def test_every_how_to_is_linked_from_the_readme() -> None:
    readme = Path("README.md").read_text(encoding="utf-8")
    pages = sorted(Path("docs/how-to").glob("*.md"))
    assert [str(page) for page in pages if f"({page})" not in readme] == []


def test_every_example_is_in_their_readme() -> None:
    readme = Path("examples/README.md").read_text(encoding="utf-8")
    programs = sorted(path.name for path in Path("examples").glob("[!_]*.py"))
    assert [name for name in programs if f"({name})" not in readme] == []


def test_every_command_and_every_variable_of_an_option_is_in_the_page_about_them() -> None:
    page = Path("docs/reference/commands.md").read_text(encoding="utf-8")
    commands: dict[str, Any] = vars(typer.main.get_command(app))["commands"]
    variables = {
        str(option.envvar)
        for command in commands.values()
        for option in command.params
        if getattr(option, "envvar", None)
    }
    assert "FLOWPG_DSN" in variables
    assert [name for name in commands if f"`flowpg {name}`" not in page] == []
    assert [name for name in variables if f"`{name}`" not in page] == []


def test_decisions_are_titled_by_their_number() -> None:
    pages = sorted(Path("docs/decisions").glob("0*.md"))
    titled = [page.read_text(encoding="utf-8").startswith(f"# {page.name[:4]}: ") for page in pages]
    assert titled == [True] * len(pages)
    numbers = [int(page.name[:4]) for page in pages]
    assert numbers == list(range(1, len(pages) + 1))

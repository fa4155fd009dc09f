"""Tests wait on conditions, never on time. Read from the source of all of them."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

TESTS = Path(__file__).resolve().parents[1]

# Files that may sleep, and why.
SLEEPERS = {
    "waiting.py": "polls, for all of them",
    "weather.py": "how long a fault of a storm takes, which is no wait for anything",
}
# Programs that workflows run, where a sleep is a durable timer in virtual time.
PROGRAMS = {
    "authoring/asyncio_programs.py",
    "authoring/contenders.py",
    "behaviours/programs.py",
}
# What is in their strings is linted and never run.
LINTED = {"lint/test_lint.py", "unit/test_sleeps.py"}

SLEEPS = {"asyncio.sleep", "time.sleep", "_asyncio.sleep", "asyncio.tasks.sleep"}


class _Finder(ast.NodeVisitor):
    """Collects the lines on which real time is slept through."""

    def __init__(self, durable: bool, strings: bool) -> None:
        self.durable = durable
        self.strings = strings
        self.lines: list[int] = []

    def visit_FunctionDef(self, node: ast.FunctionDef) -> None:
        self._function(node)

    def visit_AsyncFunctionDef(self, node: ast.AsyncFunctionDef) -> None:
        self._function(node)

    def _function(self, node: ast.FunctionDef | ast.AsyncFunctionDef) -> None:
        before = self.durable
        kinds = {kind for item in node.decorator_list if (kind := _kind(item))}
        # The work of a step is real, even where it is declared inside a workflow.
        self.durable = kinds.isdisjoint({"step"}) and (before or bool(kinds))
        self.generic_visit(node)
        self.durable = before

    def visit_Attribute(self, node: ast.Attribute) -> None:
        # Also where it is not called at once, as in ``partial(time.sleep, 1)``.
        if not self.durable and ast.unparse(node) in SLEEPS:
            self.lines.append(node.lineno)
        self.generic_visit(node)

    def visit_Import(self, node: ast.Import) -> None:
        # Another name would hide it from this test.
        if any(name.name in ("asyncio", "time") and name.asname for name in node.names):
            self.lines.append(node.lineno)

    def visit_ImportFrom(self, node: ast.ImportFrom) -> None:
        if node.module in ("asyncio", "time") and any(n.name in ("sleep", "*") for n in node.names):
            self.lines.append(node.lineno)

    def visit_Constant(self, node: ast.Constant) -> None:
        # A program for another process.
        if self.strings and isinstance(node.value, str) and "import" in node.value:
            try:
                program = ast.parse(node.value)
            except SyntaxError:
                return
            inside = _Finder(self.durable, strings=False)
            inside.visit(program)
            self.lines += [node.lineno + line - 1 for line in inside.lines]


def _kind(decorator: ast.expr) -> str | None:
    # ``@app.workflow``, ``@app.step(name="a")``, ``@durable``
    if isinstance(decorator, ast.Call):
        decorator = decorator.func
    if isinstance(decorator, ast.Attribute) and decorator.attr in ("workflow", "step"):
        return decorator.attr
    return "durable" if isinstance(decorator, ast.Name) and decorator.id == "durable" else None


def sleeps(source: str, durable: bool = False, strings: bool = True) -> list[int]:
    """The lines of a source on which real time is slept through."""
    finder = _Finder(durable, strings)
    finder.visit(ast.parse(source))
    return finder.lines


def _found() -> Iterator[str]:
    for path in sorted(TESTS.rglob("*.py")):
        name = path.relative_to(TESTS).as_posix()
        if name not in SLEEPERS:
            for line in sleeps(path.read_text(), name in PROGRAMS, name not in LINTED):
                yield f"tests/{name}:{line}"


def test_no_test_sleeps() -> None:
    assert list(_found()) == [], (
        "wait on a condition (tests/waiting.py) or an event; if the number of turns of the event "
        "loop is the subject: waiting.turns; a fault of a storm: tests/weather.py; a helper that "
        "workflows await: @durable of tests/durable.py"
    )


def test_the_files_that_may_sleep_do() -> None:
    for name in SLEEPERS:
        assert sleeps((TESTS / name).read_text()), f"{name} needs no exception any more"
    for name in PROGRAMS:
        assert sleeps((TESTS / name).read_text()), f"{name} is no program that sleeps"


@pytest.mark.parametrize(
    ("source", "lines"),
    [
        ("import time\ntime.sleep(1)", [2]),
        ("async def test():\n    await asyncio.sleep(0)", [2]),
        ("work = lambda: time.sleep(1)", [1]),
        ("call = partial(asyncio.sleep, 1)", [1]),
        ("from asyncio import sleep", [1]),
        ("from time import monotonic, sleep as nap", [1]),
        ("import asyncio as aio", [1]),
        ("@app.step\nasync def step():\n    await asyncio.sleep(1)", [3]),
        ("@app.step(name='s')\ndef step():\n    time.sleep(1)", [3]),
        ("@app.workflow\nasync def main():\n    await asyncio.sleep(1)", []),
        (
            "@app.workflow(name='m')\nasync def main():\n    async def a():\n        time.sleep(1)",
            [],
        ),
        ("@durable\nasync def helper():\n    await asyncio.sleep(1)", []),
        (
            "@app.workflow\nasync def main():\n    @app.step\n    def s():\n        time.sleep(1)",
            [5],
        ),
        ("@fixture\nasync def it():\n    await asyncio.sleep(1)", [3]),
        ("PROGRAM = '''\nimport time\ntime.sleep(1)\n'''", [3]),
        ("sync.sleep(1)\nctx.sleep('w', 1)\nfrom time import monotonic", []),
    ],
)
def test_a_sleep_is_found_where_it_takes_time(source: str, lines: list[int]) -> None:
    assert sleeps(source) == lines

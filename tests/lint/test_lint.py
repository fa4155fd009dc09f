"""``flowpg lint``: what it finds in the source of workflows, and what it leaves alone."""

import ast
import json
import textwrap
from pathlib import Path

import pytest
from typer.testing import CliRunner

from flowpg.console.main import app as command
from flowpg.errors import InvalidArgument
from flowpg.lint.linter import Finding, lint, lint_source
from flowpg.lint.names import TITLES

HEAD = """
import asyncio, os, random, secrets, sys, threading, time, uuid, subprocess, shutil
import datetime as dt
import requests, httpx, socket
from datetime import datetime as moment, date
from time import time as wall, sleep
from os import environ
from pathlib import Path
from concurrent.futures import ThreadPoolExecutor
from flowpg import FlowApp, hook

app = FlowApp("linted")
CACHE = {}
SEEN: list[int] = []

@app.step
async def work(x: int) -> int:
    time.time()
    return x

@app.step(name="other")
def plain(x: int) -> int:
    return random.randint(0, x)
"""


def found_in(body: str, *, head: str = HEAD) -> list[Finding]:
    """What is found in a workflow of this body."""
    source = f"{head}\n@app.workflow\nasync def main(x):\n{textwrap.indent(body, '    ')}\n"
    return lint_source(source, ast.parse(source), "file.py")


BAD = [
    ("FLW101", "time.time()", "now()"),
    ("FLW101", "y = wall()", "time_ns()"),
    ("FLW101", "dt.datetime.now(dt.UTC)", "now()"),
    ("FLW101", "moment.utcnow()", "now()"),
    ("FLW101", "date.today()", "now()"),
    ("FLW102", "random.choice([1])", "random()"),
    ("FLW102", "random.Random().random()", "random()"),
    ("FLW102", "secrets.token_hex()", "in a step"),
    ("FLW102", "os.urandom(8)", "in a step"),
    ("FLW103", "uuid.uuid4()", "uuid4()"),
    ("FLW103", "uuid.uuid1().hex", "uuid4()"),
    ("FLW104", "os.environ['KEY']", "argument"),
    ("FLW104", "y = os.getenv('KEY')", "argument"),
    ("FLW104", "environ.get('KEY')", "argument"),
    ("FLW104", "sys.argv[1]", "argument"),
    ("FLW105", "time.sleep(1)", "asyncio.sleep"),
    ("FLW105", "sleep(1)", "asyncio.sleep"),
    ("FLW106", "requests.get('https://example.org')", "in a step"),
    ("FLW106", "async with httpx.AsyncClient() as c:\n    pass", "in a step"),
    ("FLW106", "socket.create_connection(('a', 1))", "in a step"),
    ("FLW107", "open('x')", "in a step"),
    ("FLW107", "with open('x') as f:\n    pass", "in a step"),
    ("FLW107", "Path('x').read_text()", "in a step"),
    ("FLW107", "os.listdir('.')", "in a step"),
    ("FLW107", "shutil.rmtree('x')", "in a step"),
    ("FLW107", "subprocess.run(['x'])", "in a step"),
    ("FLW108", "threading.Thread(target=print).start()", "asyncio tasks"),
    ("FLW108", "ThreadPoolExecutor()", "asyncio tasks"),
    ("FLW108", "await asyncio.to_thread(print)", "asyncio tasks"),
    ("FLW109", "for y in {1, 2}:\n    pass", "sort it"),
    ("FLW109", "s = set(x)\nfor y in s:\n    pass", "sort it"),
    ("FLW109", "s = {1} | x\ny = [z for z in s]", "sort it"),
    ("FLW109", "y = list({z for z in x})", "sort it"),
    ("FLW109", "y = ','.join(set(x))", "sort it"),
    ("FLW109", "await asyncio.gather(*{work(1), work(2)})", "sort it"),
    ("FLW109", "s = {1, 2}\ns.pop()", "sort it"),
    ("FLW110", "CACHE[x] = 1", "local variable"),
    ("FLW110", "SEEN.append(x)", "local variable"),
    ("FLW110", "CACHE['n'] += 1", "local variable"),
    ("FLW110", "global SEEN\nSEEN = []", "local variable"),
    ("FLW111", "work(1)", "await"),
    ("FLW111", "plain.run(1)", "await"),
    ("FLW111", "work.options(retry=None)(1)", "await"),
    ("FLW112", "await asyncio.open_connection('a', 1)", "in a step"),
    ("FLW112", "await asyncio.create_subprocess_exec('x')", "in a step"),
    ("FLW112", "asyncio.get_running_loop().run_in_executor(None, print)", "in a step"),
]


@pytest.mark.parametrize(("code", "body", "instead"), BAD)
def test_a_mistake_is_found_with_its_line_and_what_to_write(
    code: str, body: str, instead: str
) -> None:
    found = found_in(body)
    assert {finding.code for finding in found} == {code}
    last = found[-1]
    assert instead in last.text
    source_line = HEAD.count("\n") + 4
    assert source_line <= last.line < source_line + body.count("\n") + 1
    assert str(last).startswith(f"file.py:{last.line}:")
    assert "workflow 'main'" in str(last)


GOOD = [
    "await work(1)",
    "task = asyncio.create_task(work(1))\nawait task",
    "await asyncio.gather(*[work(n) for n in range(3)])",
    "await asyncio.to_thread(plain, 1)",
    "await plain.run(1)",
    "await asyncio.sleep(1)",
    "random.Random(7).random()",
    "y = dt.datetime(2026, 1, 1, tzinfo=dt.UTC)",
    "for y in sorted({1, 2}):\n    pass",
    "y = 1 in {1, 2}",
    "y = len(set(x))",
    "y = {z for z in {1, 2}}",
    "s = {1}\ns = [1]\nfor y in s:\n    pass",
    "y = CACHE.get(x)",
    "CACHE = {}\nCACHE[x] = 1",
    "SEEN = []\nSEEN.append(1)",
    "time = x\ntime.time()",
    "try:\n    await work(1)\nexcept requests.exceptions.HTTPError:\n    pass",
    "raise requests.exceptions.Timeout('late')",
    "raise socket.timeout()",
    "async with hook('go') as go:\n    await go",
    "y = [1]\ny.pop()",
]


@pytest.mark.parametrize("body", GOOD)
def test_what_replays_is_left_alone(body: str) -> None:
    assert found_in(body) == []


def test_steps_and_code_that_no_workflow_calls_are_left_alone() -> None:
    source = HEAD + "\ndef unused():\n    return time.time()\n"
    assert lint_source(source, ast.parse(source), "f.py") == []


def test_what_a_workflow_calls_is_read_too() -> None:
    head = HEAD + "\ndef inner():\n    return wall()\n\ndef outer():\n    return inner()\n"
    [finding] = found_in("return outer()", head=head)
    assert finding.code == "FLW101"
    assert finding.line == head[: head.index("return wall")].count("\n") + 1


def test_the_methods_of_a_workflow_class_are_read() -> None:
    source = HEAD + textwrap.dedent(
        """
        @app.workflow(name="kept")
        class Main:
            def __init__(self):
                self.began = wall()
            def helper(self):
                return uuid.uuid4()
            def unused(self):
                return uuid.uuid4()
            async def run(self):
                self.helper()
        """
    )
    found = lint_source(source, ast.parse(source), "f.py")
    assert [finding.code for finding in found] == ["FLW101", "FLW103"]
    assert {finding.workflow for finding in found} == {"Main"}


@pytest.mark.parametrize(
    ("comment", "left"),
    [
        ("# flowpg: ignore", 0),
        ("# flowpg: ignore[FLW101]", 0),
        ("# flowpg: ignore[FLW102, FLW101] it is only shown", 0),
        ("# noqa: FLW101", 0),
        ("# flowpg: ignore[FLW102]", 1),
        ("# noqa: E501", 1),
        ("# ignore", 1),
    ],
)
def test_a_line_can_be_left_alone(comment: str, left: int) -> None:
    assert len(found_in(f"y = time.time()  {comment}")) == left


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A package with one mistake, which must not be imported."""
    folder = tmp_path / "shop" / "flows"
    folder.mkdir(parents=True)
    (tmp_path / "shop" / "__init__.py").write_text("raise SystemExit('imported')\n")
    (folder / "__init__.py").write_text("")
    (folder / "orders.py").write_text(
        f"raise SystemExit('imported')\n{HEAD}\n@app.workflow\nasync def main():\n    wall()\n"
    )
    (tmp_path / ".hidden").mkdir()
    (tmp_path / ".hidden" / "bad.py").write_text("not python")
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize(
    "target", ["shop.flows.orders", "shop.flows", "shop", "shop/flows/orders.py", "."]
)
def test_a_target_is_a_module_a_file_or_a_folder_and_is_not_imported(
    package: Path, target: str
) -> None:
    [finding] = lint([target, target])
    assert finding.path.endswith("orders.py")
    assert finding.code == "FLW101"


@pytest.mark.parametrize("target", ["no.such.module", "no/such/file.py", ""])
def test_a_target_that_is_not_there_is_named(target: str, tmp_path: Path) -> None:
    with pytest.raises(InvalidArgument, match="no module, Python file or folder"):
        lint([target])


def test_the_name_of_an_app_is_refused_with_that_of_its_module() -> None:
    with pytest.raises(InvalidArgument, match=r"of an app name the module alone, 'shop.flows'"):
        lint(["shop.flows:app"])


def test_a_file_that_is_no_python_is_named_with_its_line(tmp_path: Path) -> None:
    bad = tmp_path / "bad.py"
    bad.write_text("x = 1\ndef (:\n")
    with pytest.raises(InvalidArgument, match=r"bad.py, line 2, is no Python"):
        lint([str(bad)])
    bad.write_bytes(b"\xff\xfe")
    with pytest.raises(InvalidArgument, match=r"bad.py is no Python: invalid or missing encoding"):
        lint([str(bad)])


def test_a_file_is_read_in_the_encoding_that_it_names(package: Path) -> None:
    source = "# -*- coding: latin-1 -*-\nname = '\u00e9'\n"
    (package / "shop" / "names.py").write_bytes(source.encode("latin-1"))
    [finding] = lint(["shop"])
    assert finding.path.endswith("orders.py")


@pytest.mark.parametrize("content", [b"def (:", b"\x00", b"'\xe9'", b"x = " + b"(" * 5000])
def test_a_file_that_cannot_be_read_hides_nothing_of_the_others(
    package: Path, content: bytes
) -> None:
    (package / "shop" / "a_bad_one.py").write_bytes(content)
    found = CliRunner().invoke(command, ["lint", "shop"])
    assert found.exit_code == 1
    assert "a_bad_one.py" in found.output
    assert "orders.py:" in found.output
    assert "None" not in found.output
    (package / "shop" / "flows" / "orders.py").write_text("")
    assert CliRunner().invoke(command, ["lint", "shop"]).exit_code == 1


def test_the_command_ends_with_one_if_there_is_something_to_change(package: Path) -> None:
    run = CliRunner().invoke
    bad = run(command, ["lint", "shop"])
    assert bad.exit_code == 1
    assert "orders.py:" in bad.output
    assert "FLW101" in bad.output
    as_json = run(command, ["lint", "shop", "--json"])
    assert as_json.exit_code == 1
    [finding] = json.loads(as_json.stdout)
    assert (finding["code"], finding["workflow"]) == ("FLW101", "main")
    (package / "shop" / "flows" / "orders.py").write_text("")
    good = run(command, ["lint", "shop"])
    assert good.exit_code == 0
    assert "nothing to change" in good.output
    missing = run(command, ["lint", "nowhere"])
    assert missing.exit_code == 1
    assert "no module, Python file or folder" in missing.output


def test_every_rule_is_tried_here_and_is_on_the_page() -> None:
    assert {code for code, _, _ in BAD} == set(TITLES)
    page = Path("docs/reference/lint.md").read_text(encoding="utf-8")
    assert [code for code in TITLES if f"`{code}`" not in page] == []
    listed = CliRunner().invoke(command, ["lint", "--rules"]).output
    assert [code for code in TITLES if code not in listed] == []


def test_the_examples_are_clean() -> None:
    assert lint(["examples"]) == []

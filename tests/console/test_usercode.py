"""What `flowpg worker --app` says about the user's own code."""

import sys
from pathlib import Path

import pytest

from flowpg.console.usercode import load_runtime
from flowpg.errors import InvalidArgument


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The file of a module that can be imported as ``broken_app``."""
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "broken_app", raising=False)
    return tmp_path / "broken_app.py"


@pytest.mark.parametrize(
    ("code", "headline", "line"),
    [
        ("x = 1\ndef broken(:\n", "SyntaxError: ", 2),
        ("x = 1\n\nraise ValueError('no key')\n", "ValueError: no key", 3),
        ("import no_such_library\n", "ModuleNotFoundError: No module named 'no_such", 1),
        ("from os import no_such_name\n", "ImportError: cannot import name", 1),
        ("def app():\n    return 1 / 0\n", "ZeroDivisionError: division by zero", 2),
    ],
    ids=["syntax", "raises", "library", "name", "factory"],
)
def test_an_error_of_the_users_code_comes_with_file_line_and_traceback(
    module: Path, capsys: pytest.CaptureFixture[str], code: str, headline: str, line: int
) -> None:
    module.write_text(code)
    with pytest.raises(InvalidArgument) as caught:
        load_runtime("broken_app:app")
    assert headline in str(caught.value)
    assert f"({module}, line {line})" in str(caught.value)
    said = capsys.readouterr().err
    assert f'File "{module}", line {line}' in said
    assert headline in said
    assert "importlib" not in said
    assert "flowpg/console" not in said


def test_an_error_of_ours_comes_with_the_users_line(module: Path) -> None:
    module.write_text("from flowpg import FlowApp\n\napp = FlowApp('shop')\napp.step(1)\n")
    with pytest.raises(InvalidArgument, match="a step must be a function") as caught:
        load_runtime("broken_app:app")
    assert f"({module}, line 4)" in str(caught.value)


def test_a_module_that_is_not_found_comes_with_where_it_was_looked_for(
    module: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(InvalidArgument, match="cannot import 'broken_app'") as caught:
        load_runtime("broken_app:app")
    assert str(module.parent) in str(caught.value)
    assert capsys.readouterr().err == ""


def test_names_of_workflows_that_are_none_are_refused_before_anything_is_served(
    module: Path,
) -> None:
    module.write_text(
        "from flowpg import FlowRuntime\n\nclass App(FlowRuntime):\n    workflows = 'order'\n"
        "    def run_workflow(self, invocation): ...\n    def run_step(self, step): ...\n"
    )
    with pytest.raises(InvalidArgument, match="the attribute workflows of App must be a coll"):
        load_runtime("broken_app:App")

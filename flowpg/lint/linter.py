"""Reading the source of workflows for what a replay cannot repeat. No code is run.

Workflows are the functions and classes that are decorated with ``.workflow``; what they call by
name in the same file is read with them, steps excepted. A line is left alone if it ends with
``# flowpg: ignore``, or ``# flowpg: ignore[FLW101]`` for one rule.
"""

from __future__ import annotations

import ast
import re
import sys
import tokenize
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from flowpg.errors import InvalidArgument
from flowpg.lint.functions import Function, FunctionReader, Note, functions_in
from flowpg.lint.names import Names

_IGNORED = re.compile(r"#\s*(?:flowpg:\s*ignore|noqa)(?:\[([\w, ]+)\]|:\s*([\w, ]+))?")


@dataclass(frozen=True, slots=True)
class Finding:
    """One line to change. ``line`` and ``column`` count from 1."""

    path: str
    line: int
    column: int
    code: str
    workflow: str
    text: str

    def __str__(self) -> str:
        place = f"{self.path}:{self.line}:{self.column}"
        return f"{place}: {self.code} workflow {self.workflow!r} {self.text}"


def lint(targets: Iterable[str], unread: list[InvalidArgument] | None = None) -> list[Finding]:
    """What is to change in modules (``package.module``), files or folders, in order.

    InvalidArgument for one that does not exist or is no Python source; with ``unread`` such errors
    of single files are put there, and the others are read all the same.
    """
    found: dict[Finding, None] = {}
    for target in targets:
        for path in sources_of(target):
            try:
                found.update(dict.fromkeys(lint_file(path)))
            except InvalidArgument as error:
                if unread is None:
                    raise
                unread.append(error)
    return list(found)


def sources_of(target: str) -> list[Path]:
    """The source files of a module, file or folder, found without importing anything."""
    path = Path(target)
    if target and path.is_dir():
        return sorted(p for p in path.rglob("*.py") if not _hidden(p.relative_to(path)))
    if path.is_file():
        return [path]
    parts = target.split(".")
    if all(part.isidentifier() for part in parts):
        for place in ("", *sys.path):
            base = Path(place or ".", *parts)
            if base.with_suffix(".py").is_file():
                return [base.with_suffix(".py")]
            if base.is_dir():
                return sources_of(str(base))
    message = f"{target!r} is no module, Python file or folder that can be found here"
    if ":" in target:
        message += f"; of an app name the module alone, {target.partition(':')[0]!r}"
    raise InvalidArgument(message)


def lint_file(path: Path) -> list[Finding]:
    """What is to change in one file. InvalidArgument if it cannot be read."""
    try:
        with tokenize.open(path) as file:  # in the encoding that the file itself names
            source = file.read()
        tree = ast.parse(source, str(path))
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidArgument(f"{path} cannot be read: {type(error).__name__}") from None
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        line = getattr(error, "lineno", None)
        where = f"{path}, line {line}," if line else f"{path}"
        why = getattr(error, "msg", None) or str(error)
        raise InvalidArgument(f"{where} is no Python: {why}") from None
    return lint_source(source, tree, str(path))


def lint_source(source: str, tree: ast.Module, path: str) -> list[Finding]:
    """The same for a source that is at hand."""
    lines = source.splitlines()
    module = _Module(tree)
    found: dict[tuple[int, int, str], Finding] = {}
    for workflow, note in module.notes():
        if not _is_ignored(lines[note.line - 1] if note.line <= len(lines) else "", note.code):
            key = (note.line, note.column, note.code)
            found.setdefault(key, Finding(path, *key, workflow, note.text))
    return [found[key] for key in sorted(found)]


class _Module:
    """The workflows, steps and other functions of one file."""

    def __init__(self, tree: ast.Module) -> None:
        self._names = Names(tree)
        self._steps = frozenset(
            function.name
            for function in functions_in(ast.walk(tree))
            if _decorated(function, "step")
        )
        self._shared = frozenset(_assigned(tree.body))
        self._functions: dict[str, Function] = {}
        self._workflows: list[tuple[str, list[Function], dict[str, Function]]] = []
        for node in ast.walk(tree):
            if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
                if _decorated(node, "workflow"):
                    self._workflows.append((node.name, [node], {}))
                elif node.name not in self._steps:
                    self._functions.setdefault(node.name, node)
            elif isinstance(node, ast.ClassDef) and _decorated(node, "workflow"):
                methods = {method.name: method for method in functions_in(node.body)}
                begun = [m for name, m in methods.items() if name in ("run", "__init__")]
                self._workflows.append((node.name, begun, methods))

    def notes(self) -> Iterator[tuple[str, Note]]:
        for name, begun, methods in self._workflows:
            waiting, read = list(begun), set()
            while waiting:
                function = waiting.pop()
                if function in read:
                    continue
                read.add(function)
                reader = FunctionReader(self._names, self._steps, self._shared).read(function)
                for note in reader.notes:
                    yield name, note
                for call in sorted(reader.calls):
                    called = methods.get(call.removeprefix("self.")) if "." in call else None
                    called = called or self._functions.get(call)
                    if called is not None:
                        waiting.append(called)


def _decorated(node: Function | ast.ClassDef, kind: str) -> bool:
    for decorator in node.decorator_list:
        found = decorator.func if isinstance(decorator, ast.Call) else decorator
        if isinstance(found, ast.Attribute) and found.attr == kind:
            return True
    return False


def _assigned(body: list[ast.stmt]) -> Iterator[str]:
    for node in body:
        targets: list[ast.expr] = node.targets if isinstance(node, ast.Assign) else []
        if isinstance(node, ast.AnnAssign):
            targets = [node.target]
        for target in targets:
            if isinstance(target, ast.Name):
                yield target.id


def _is_ignored(line: str, code: str) -> bool:
    for match in _IGNORED.finditer(line):
        codes = match.group(1) or match.group(2)
        if codes is None or code in re.split(r"[,\s]+", codes.strip()):
            return True
    return False


def _hidden(path: Path) -> bool:
    return any(part.startswith(".") or part in ("__pycache__", "build") for part in path.parts)

"""Reading one function that workflows run, and noting what a replay could not repeat."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from flowpg.lint.names import (
    ENVIRONMENT,
    FILE_METHODS,
    FILES,
    LOOP,
    LOOP_METHODS,
    SET_ORDER,
    SHARED,
    THREAD,
    UNAWAITED,
    Names,
    Rule,
    rule_of,
)

Function = ast.FunctionDef | ast.AsyncFunctionDef

_MUTATORS = frozenset(
    {"append", "add", "update", "pop", "popitem", "clear", "extend", "insert", "remove",
     "setdefault", "discard", "appendleft", "popleft"}
)  # fmt: skip
_IN_ORDER = frozenset({"list", "tuple", "enumerate", "iter", "zip", "map", "filter", "next"})


class Note(NamedTuple):
    """Something to change: where, which rule, and in what words."""

    line: int
    column: int
    code: str
    text: str


class FunctionReader(ast.NodeVisitor):
    """Reads one function. ``steps`` are the names of steps, ``shared`` those of the module's own
    variables; ``calls`` are the functions of the module that it calls."""

    def __init__(self, names: Names, steps: frozenset[str], shared: frozenset[str]) -> None:
        self.notes: list[Note] = []
        self.calls: set[str] = set()
        self._names = names
        self._steps = steps
        self._shared = shared
        self._local: set[str] = set()
        self._globals: set[str] = set()
        self._sets: set[str] = set()
        self._is_async = False

    def read(self, function: Function) -> FunctionReader:
        """Note what is wrong with ``function``."""
        self._is_async = isinstance(function, ast.AsyncFunctionDef)
        arguments = function.args
        for argument in (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs):
            self._local.add(argument.arg)
        for node in ast.walk(function):
            if isinstance(node, ast.Global):
                self._globals.update(node.names)
            elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
                self._local.add(node.id)
        for statement in function.body:
            self.visit(statement)
        return self

    def _note(self, node: ast.AST, rule: Rule, what: str) -> None:
        line, column = getattr(node, "lineno", 0), getattr(node, "col_offset", 0)
        self.notes.append(Note(line, column + 1, rule.code, f"{what}; {rule.instead}"))

    # -- names and calls ------------------------------------------------------------------------

    def visit_Call(self, node: ast.Call) -> None:
        """A call."""
        full = self._name(node.func)
        rule = rule_of(full) if full is not None else None
        method = node.func.attr if isinstance(node.func, ast.Attribute) else None
        if full == "random.Random" and node.args:
            rule = None
        if full == "asyncio.to_thread":
            if not (node.args and self._is_step(node.args[0])):
                self._note(node, THREAD, "asyncio.to_thread() of what is no step")
        elif rule is not None:
            self._note(node, rule, f"calls {full}()")
        elif full is None and method in FILE_METHODS:
            self._note(node, FILES, f"calls .{method}()")
        elif full is None and method in LOOP_METHODS:
            self._note(node, LOOP, f"calls .{method}()")
        elif method in _MUTATORS and self._is_shared(node.func):
            self._note(node, SHARED, f"changes {ast.unparse(node.func)[:60]!r} of the module")
        self._check_order(node)
        if isinstance(node.func, ast.Name):
            self.calls.add(node.func.id)
        elif method is not None and isinstance(node.func, ast.Attribute):
            owner = node.func.value
            if isinstance(owner, ast.Name) and owner.id in ("self", "cls"):
                self.calls.add(f"self.{method}")
        for child in (*node.args, *(keyword.value for keyword in node.keywords)):
            self.visit(child)
        if rule is None:
            self.visit(node.func)

    def visit_Attribute(self, node: ast.Attribute) -> None:
        """A name that is hazardous without being called, such as ``os.environ``."""
        if not self._reads_settings(node):
            self.generic_visit(node)

    def visit_Name(self, node: ast.Name) -> None:
        """The same, imported by itself."""
        self._reads_settings(node)

    def _reads_settings(self, node: ast.expr) -> bool:
        full = self._name(node)
        found = full in ("os.environ", "sys.argv")
        if found:
            self._note(node, ENVIRONMENT, f"reads {full}")
        return found

    def _name(self, node: ast.expr) -> str | None:
        root = node
        while isinstance(root, ast.Attribute):
            root = root.value
        if isinstance(root, ast.Name) and root.id in self._local:
            return None
        return self._names.full(node)

    # -- statements -----------------------------------------------------------------------------

    def visit_Expr(self, node: ast.Expr) -> None:
        """A call whose result nobody keeps."""
        call = node.value
        if self._is_async and isinstance(call, ast.Call) and self._is_step(call.func):
            self._note(call, UNAWAITED, f"calls the step {ast.unparse(call.func)} and goes on")
        self.generic_visit(node)

    def visit_Global(self, node: ast.Global) -> None:
        """``global``: a variable of the module is about to be changed."""
        self._note(node, SHARED, f"changes {', '.join(node.names)} of the module")

    def visit_Assign(self, node: ast.Assign) -> None:
        """An assignment, perhaps of a set, perhaps to something shared."""
        for target in node.targets:
            self._target(target, node.value)
        self.generic_visit(node)

    def visit_AnnAssign(self, node: ast.AnnAssign) -> None:
        """The same with an annotation."""
        if node.value is not None:
            self._target(node.target, node.value)
            self.visit(node.value)

    def visit_AugAssign(self, node: ast.AugAssign) -> None:
        """``x[...] += 1``."""
        self._target(node.target, None)
        self.generic_visit(node)

    def _target(self, target: ast.expr, value: ast.expr | None) -> None:
        if isinstance(target, ast.Name):
            if value is not None and self._is_set(value):
                self._sets.add(target.id)
            elif value is not None:
                self._sets.discard(target.id)
        elif isinstance(target, (ast.Subscript, ast.Attribute)) and self._is_shared(target):
            self._note(target, SHARED, f"changes {ast.unparse(target)[:60]!r} of the module")

    # -- the order of sets ----------------------------------------------------------------------

    def visit_For(self, node: ast.For) -> None:
        """A loop over a set."""
        self._check_iterable(node.iter)
        self.generic_visit(node)

    def visit_ListComp(self, node: ast.ListComp) -> None:
        """A list made in the order of a set."""
        for generator in node.generators:
            self._check_iterable(generator.iter)
        self.generic_visit(node)

    def visit_DictComp(self, node: ast.DictComp) -> None:
        """A dict made in that order."""
        for generator in node.generators:
            self._check_iterable(generator.iter)
        self.generic_visit(node)

    def _check_order(self, node: ast.Call) -> None:
        name = node.func.id if isinstance(node.func, ast.Name) else None
        method = node.func.attr if isinstance(node.func, ast.Attribute) else None
        if name in _IN_ORDER or method == "join":
            for argument in node.args:
                self._check_iterable(argument)
        if method == "gather":
            for argument in node.args:
                if isinstance(argument, ast.Starred):
                    self._check_iterable(argument.value)
        elif method == "pop" and isinstance(node.func, ast.Attribute) and not node.args:
            self._check_iterable(node.func.value)

    def _check_iterable(self, node: ast.expr) -> None:
        if isinstance(node, ast.GeneratorExp):
            for generator in node.generators:
                self._check_iterable(generator.iter)
        elif self._is_set(node):
            self._note(node, SET_ORDER, "goes through a set")

    def _is_set(self, node: ast.expr) -> bool:
        if isinstance(node, (ast.Set, ast.SetComp)):
            return True
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
            return node.func.id in ("set", "frozenset")
        if isinstance(node, ast.BinOp) and isinstance(
            node.op, (ast.BitOr, ast.BitAnd, ast.Sub, ast.BitXor)
        ):
            return self._is_set(node.left) or self._is_set(node.right)
        return isinstance(node, ast.Name) and node.id in self._sets

    # -- helpers --------------------------------------------------------------------------------

    def _is_step(self, node: ast.expr) -> bool:
        if isinstance(node, ast.Name):
            return node.id in self._steps
        if isinstance(node, ast.Attribute):
            return node.attr == "run" and self._is_step(node.value)
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            return node.func.attr == "options" and self._is_step(node.func.value)
        return False

    def _is_shared(self, node: ast.expr) -> bool:
        while isinstance(node, (ast.Attribute, ast.Subscript)):
            node = node.value
        return isinstance(node, ast.Name) and (
            node.id in self._globals or (node.id in self._shared and node.id not in self._local)
        )


def functions_in(nodes: Iterable[ast.AST]) -> Iterator[Function]:
    """The functions among nodes."""
    for node in nodes:
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            yield node

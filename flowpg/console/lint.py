"""``flowpg lint``: read the source of workflows for what a replay cannot repeat."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import Annotated

import typer

from flowpg.console import lines
from flowpg.errors import InvalidArgument
from flowpg.lint.linter import lint as lint_targets
from flowpg.lint.names import TITLES


def register(app: typer.Typer) -> None:
    """Add the command to ``app``."""
    app.command(name="lint")(lint)


def lint(
    targets: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="TARGET...", help="Modules, Python files or folders; nothing of them is run."
        ),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the findings as JSON.")] = False,
    rules: Annotated[bool, typer.Option(help="Print the rules instead.")] = False,
) -> None:
    """Find what a workflow must not do: ask the clock or chance, read or write, start threads.

    Exit code 1 if there is anything to change or a file cannot be read. A line that ends with
    `# flowpg: ignore[FLW101]` is left alone.
    """
    if rules:
        for code, title in TITLES.items():
            typer.echo(f"{code}  {title}")
        return
    unread: list[InvalidArgument] = []
    found = lint_targets(targets or ["."], unread)
    for error in unread:
        typer.echo(f"flowpg: {error}", err=True)
    if as_json:
        typer.echo(json.dumps([asdict(finding) for finding in found], indent=2))
    else:
        for finding in found:
            typer.echo(str(finding))
        files = len({finding.path for finding in found})
        many = "nothing to change"
        if found:
            many = f"{len(found)} to change in {lines.counted(files, 'file')}"
        if unread:
            many += f"; {lines.counted(len(unread), 'file')} could not be read"
        typer.echo(f"flowpg: {many}", err=True)
    if found or unread:
        raise typer.Exit(1)

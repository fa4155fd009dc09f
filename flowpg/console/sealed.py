"""Sealed values on the command line: opened and sealed with the codecs of an app, if one is named,
else shown as what they are."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any

import typer

from flowpg.client import FlowClient
from flowpg.console.usercode import load_runtime
from flowpg.errors import InvalidArgument, UndecodablePayload
from flowpg.model.codecs import NO_CODECS, CodecChain, is_sealed
from flowpg.model.events import FlowEventEnvelope
from flowpg.model.snapshot import WorkflowRunSnapshot
from flowpg.replay.runtime import FlowRuntime
from flowpg.store.sealing import opened_history, opened_snapshot

AppOption = Annotated[
    str | None,
    typer.Option(
        "--app",
        help="module:attribute, the app whose codecs seal and open values. Its code is run.",
        show_default=False,
    ),
]
"""The ``--app`` option of the commands that read or write values."""

PlainOption = Annotated[
    bool,
    typer.Option(
        "--plain", help="Store it as it is, though values there are sealed, or --app would seal it."
    ),
]


def codecs_of(application: str | None, *, plain: bool = False) -> CodecChain:
    """The codecs of the app that ``--app`` names, none without one. InvalidArgument."""
    runtime = None if application is None else load_runtime(application)
    return codecs_in(runtime, plain=plain)


def codecs_in(runtime: FlowRuntime | None, *, plain: bool = False) -> CodecChain:
    """The codecs of an app, none without one, and none for what is to be ``plain``."""
    found: CodecChain = NO_CODECS if plain else getattr(runtime, "codecs", NO_CODECS)
    return found


def opened_run(codecs: CodecChain, run: WorkflowRunSnapshot) -> WorkflowRunSnapshot:
    """``run`` with every value opened that ``codecs`` can open; standard error says which not.
    Without an app it stays as it is, which needs no saying."""
    if codecs is NO_CODECS:
        return run
    lenient = _Lenient(codecs)
    opened = opened_snapshot(lenient, run)
    lenient.complain()
    return opened


def opened_events(
    codecs: CodecChain, history: Sequence[FlowEventEnvelope]
) -> list[FlowEventEnvelope]:
    """The same of a history."""
    if codecs is NO_CODECS:
        return list(history)
    lenient = _Lenient(codecs)
    opened = opened_history(lenient, history)
    lenient.complain()
    return opened


def check_answer(client: FlowClient, run_id: str) -> None:
    """InvalidArgument if an answer is not to be stored as it is, for the run has sealed values."""
    if _has_sealed(client.snapshot(run_id)):
        raise InvalidArgument(
            f"run {run_id!r} has sealed values; name the app with --app module:app so that the "
            "answer is sealed too, or store it as it is with --plain"
        )


def _has_sealed(run: WorkflowRunSnapshot) -> bool:
    steps = run.steps.values()
    return is_sealed(run.input) or any(is_sealed(s.input) or is_sealed(s.output) for s in steps)


class _Lenient(CodecChain):
    """Leaves sealed what it cannot open, and remembers why."""

    def __init__(self, codecs: CodecChain) -> None:
        super().__init__(codecs)
        self._strict = codecs
        self._missed: list[str] = []

    def open(self, value: Any, run_id: str, role: str, subject: str = "") -> Any:
        try:
            return self._strict.open(value, run_id, role, subject)
        except UndecodablePayload as error:
            return self._left(value, error)

    def open_answer(self, payload: Any, run_id: str, hook_id: str, token: str) -> Any:
        try:
            return self._strict.open_answer(payload, run_id, hook_id, token)
        except UndecodablePayload as error:
            return self._left(payload, error)

    def open_error(self, text: str, run_id: str, role: str, subject: str = "") -> str:
        try:
            return self._strict.open_error(text, run_id, role, subject)
        except UndecodablePayload as error:
            left: str = self._left(text, error)
            return left

    def complain(self) -> None:
        """Say on standard error what could not be opened."""
        if self._missed:
            more = f" (and {len(self._missed) - 1} more)" if len(self._missed) > 1 else ""
            typer.echo(f"flowpg: shown sealed: {self._missed[0]}{more}", err=True)

    def _left(self, value: Any, error: UndecodablePayload) -> Any:
        self._missed.append(str(error))
        return value

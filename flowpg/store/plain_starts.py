"""Refusing to store an input as it is beside runs whose values are sealed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from flowpg.errors import InvalidArgument
from flowpg.model.codecs import is_sealed
from flowpg.model.records import StartRequest
from flowpg.postgres import reads
from flowpg.postgres.calls import Call


class PlainStarts:
    """What a client that was given no codecs has seen of the workflows that it starts: of each the
    newest run, once, so that a start stays one call."""

    def __init__(self) -> None:
        self._plain: set[str] = set()

    def check(self, requests: Sequence[StartRequest], run: Callable[[Call[Any]], Any]) -> None:
        """InvalidArgument if the newest run of a workflow has a sealed input, and a request has one
        that is not; ``run`` sends a call."""
        for request in requests:
            workflow = request.spec.name
            if workflow in self._plain or is_sealed(request.input):
                continue
            for row in run(reads.list_runs(None, workflow, None, None, None, limit=1)):
                for created in run(reads.history_page(row.run_id, 0, limit=1)):
                    if is_sealed(created.data.get("input")):
                        raise _refusal(workflow, row.run_id)
            self._plain.add(workflow)


def _refusal(workflow: str, run_id: str) -> InvalidArgument:
    return InvalidArgument(
        f"the newest run of {workflow!r}, {run_id}, has sealed values, and this input would be "
        "stored as it is; give the codecs of the app (codecs=app.codecs, or --app module:app), or "
        "say that it is meant (codecs=[], or --plain)"
    )

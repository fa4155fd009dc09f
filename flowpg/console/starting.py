"""What ``flowpg start --app`` knows before it starts a run: the app has the workflow, its queue and
version, and which inputs it can read."""

from __future__ import annotations

from typing import Any

from flowpg.authoring.app import FlowApp
from flowpg.errors import InvalidArgument, SerializationError
from flowpg.model.codecs import is_sealed
from flowpg.model.spec import WorkflowSpec
from flowpg.replay.runtime import FlowRuntime, known


def declared(
    runtime: FlowRuntime | None, name: str, value: Any, version: str | None, queue: str | None
) -> tuple[WorkflowSpec, str]:
    """The spec and the queue of a run of the workflow ``name``: what the command says, else what
    its declaration says. InvalidArgument if ``runtime`` has no such workflow, or if its workflow
    cannot take ``value``, for a run of it could only wait or fail."""
    names = None if runtime is None else known(runtime)
    if names is not None and name not in names:
        has = ", ".join(map(repr, names)) or "none"
        raise InvalidArgument(
            f"--app has no workflow {name!r}, it has {has}; nothing was started. A run for "
            "another app is started with that one, or without --app"
        )
    if not isinstance(runtime, FlowApp):
        return WorkflowSpec.python(name, version or "1"), queue or "default"
    workflow = runtime.workflows[name]
    if not is_sealed(value):
        try:
            workflow.definition.codec.decode_arguments(value)
        except SerializationError as error:
            raise InvalidArgument(f"--input: {error}; nothing was started") from None
    return (
        WorkflowSpec.python(name, version or workflow.spec.version),
        queue or workflow.queue or "default",
    )

"""Transactional steps: what their first parameter asks for, and running one attempt of them."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, get_origin

import psycopg

from flowpg.authoring.annotations import hints_of, signature_of
from flowpg.errors import InvalidArgument
from flowpg.model.codecs import STEP_OUTPUT
from flowpg.replay.runtime import StepInvocation, TransactionKind

if TYPE_CHECKING:
    from flowpg.authoring.steps import StepBase

_KNOWN = "psycopg.Connection, or a Connection or Session of SQLAlchemy"
_KNOWN_ASYNC = "psycopg.AsyncConnection, or an AsyncConnection or AsyncSession of SQLAlchemy"


def transaction_kind(
    function: Callable[..., Any], name: str, wanted: bool | TransactionKind
) -> TransactionKind | None:
    """What a step is given for its first parameter, by that one's annotation unless ``wanted`` says
    it; None if it is not transactional. InvalidArgument if it cannot be had."""
    if not wanted:
        return None
    parameters = list(signature_of(function).parameters.values())
    if not parameters or parameters[0].kind > inspect.Parameter.POSITIONAL_OR_KEYWORD:
        raise InvalidArgument(
            f"step {name!r} is transactional: its first parameter must take the connection"
        )
    if isinstance(wanted, str):
        if wanted not in ("psycopg", "connection", "session"):
            raise InvalidArgument(
                f"step {name!r}: transactional= takes True, or the kind of connection: "
                '"psycopg", "connection" or "session"'
            )
        return wanted
    parameter = parameters[0].name
    hint = hints_of(inspect.unwrap(function)).get(parameter, Any)
    hint = get_origin(hint) or hint
    if hint is Any:
        return "psycopg"
    asynchronous = inspect.iscoroutinefunction(function)
    for kind, cls in _classes(asynchronous):
        if isinstance(hint, type) and issubclass(hint, cls):
            return kind
    raise InvalidArgument(
        f"step {name!r} is transactional: the annotation of {parameter!r} must be "
        f"{_KNOWN_ASYNC if asynchronous else _KNOWN}"
    )


def _classes(asynchronous: bool) -> list[tuple[TransactionKind, type]]:
    # SQLAlchemy is looked up, not imported: no annotation is of a class whose module is not loaded.
    found: list[tuple[TransactionKind, type]] = []
    if asynchronous:
        found.append(("psycopg", psycopg.AsyncConnection))
        module = sys.modules.get("sqlalchemy.ext.asyncio")
        if module is not None:
            found += [("connection", module.AsyncConnection), ("session", module.AsyncSession)]
        return found
    found.append(("psycopg", psycopg.Connection))
    core, orm = sys.modules.get("sqlalchemy"), sys.modules.get("sqlalchemy.orm")
    if core is not None:
        found.append(("connection", core.Connection))
    if orm is not None:
        found.append(("session", orm.Session))
    return found


async def transact(
    step: StepBase, invocation: StepInvocation, args: list[Any], kwargs: dict[str, Any]
) -> Any:
    """Run a coroutine function in a transaction. What it returns goes back to the engine as is."""
    assert step.transaction is not None

    async def work(connection: Any) -> Any:
        result = await step.function(connection, *args, **kwargs)
        return stored_shape(step, invocation, result)

    return await invocation.transact(work, kind=step.transaction)


def transact_sync(
    step: StepBase, invocation: StepInvocation, args: list[Any], kwargs: dict[str, Any]
) -> Any:
    """The same for a plain function, in a thread."""
    assert step.transaction is not None

    def work(connection: Any) -> Any:
        return stored_shape(step, invocation, step.function(connection, *args, **kwargs))

    return invocation.transact_sync(work, kind=step.transaction)


def stored_shape(step: StepBase, invocation: StepInvocation, result: Any) -> Any:
    """The result as it is stored. SerializationError if it cannot be, or does not come back."""
    shape = step.codec.checked_result(result)
    if not step.codecs.codecs:
        return shape
    return step.codecs.seal(shape, invocation.run_id, STEP_OUTPUT, invocation.step_id)


def needs_connection(step: StepBase) -> InvalidArgument:
    """The error for a transactional step that is called outside a workflow."""
    return InvalidArgument(
        f"step {step.name!r} is transactional and runs in a workflow only; elsewhere call its "
        f"function with a connection: {step.function.__name__}.function(connection, ...)"
    )

"""Hooks: what a workflow awaits from outside, such as a person's decision or a callback."""

from __future__ import annotations

import asyncio
from collections.abc import Generator
from datetime import timedelta
from functools import partial
from types import TracebackType
from typing import Any, Generic, Self, TypeVar

from flowpg.authoring.operations import HookOperation
from flowpg.authoring.turns import RunTurns
from flowpg.errors import InvalidArgument
from flowpg.model.commands import OnConflict
from flowpg.model.decoding import decode_as
from flowpg.model.hooks import HookMetadata
from flowpg.model.ids import check_id, check_token
from flowpg.model.jsontext import copied
from flowpg.model.payload_schema import schema_of

T = TypeVar("T")


class Hook(Generic[T]):
    """One awaited answer. ``await hook`` opens it and waits; ``async with`` opens it at once, so
    that its token can be sent to whoever is to answer, and gives it up at the end.

    Raises HookClosed where it is awaited if it is withdrawn or expires, SerializationError for an
    answer that does not fit and that nobody checked, such as one from SQL. If the token that it was
    given is held by another hook, HookTokenConflict is raised at the ``await``, or on entry of the
    ``async with``: within the block the token is this run's, until the hook is answered, withdrawn
    or expires.
    """

    def __init__(
        self,
        run: RunTurns,
        name: str,
        kind: Any,
        token: str | None,
        expires: timedelta | None,
        metadata: Any,
        on_conflict: OnConflict = "raise",
    ) -> None:
        if on_conflict not in ("raise", "wait"):
            raise InvalidArgument(
                f"on_conflict of hook {name!r} is 'raise' or 'wait', not {on_conflict!r}"
            )
        self._run = run
        self._name = check_id(name, "hook name")
        self._kind = kind
        self._token = None if token is None else check_token(token)
        self._expires = expires
        self._metadata = metadata.wire() if isinstance(metadata, HookMetadata) else copied(metadata)
        self._on_conflict = on_conflict
        self._operation: HookOperation | None = None

    @property
    def id(self) -> str:
        """The id under which the run's hook is answered: its name, if the run used it once."""
        return self._opened().id

    @property
    def token(self) -> str:
        """The secret under which it is answered, made up at random unless one was given."""
        return self._opened().token

    async def __aenter__(self) -> Self:
        operation = self._open(claims=True)
        if operation.claimed is not None:
            try:
                await operation.claimed
            except asyncio.CancelledError:
                operation.future.cancel()  # nobody will leave a block that was not entered
                raise
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        future = self._opened().future
        if not future.done():
            future.cancel()

    def __await__(self) -> Generator[Any, None, T]:
        if self._operation is not None:
            # It was opened for a whole block: giving up this one wait must not give it up.
            future: asyncio.Future[T] = asyncio.shield(self._operation.future)
        else:
            future = self._open().future
        return future.__await__()

    def _opened(self) -> HookOperation:
        if self._operation is None:
            raise InvalidArgument(
                f"hook {self._name!r} is not open yet; open it with `async with hook(...) as h`"
            )
        return self._operation

    def _open(self, *, claims: bool = False) -> HookOperation:
        if self._operation is not None:
            raise InvalidArgument(f"hook {self._name!r} is open already; make another")
        self._operation = self._run.open_hook(
            self._name,
            self._token,
            self._metadata,
            self._expires,
            partial(_decoded, self._name, self._kind),
            schema_of(self._kind),
            self._on_conflict,
            claims=claims,
        )
        return self._operation

    def __repr__(self) -> str:
        return f"<hook {self._name!r}>"


def _decoded(name: str, kind: Any, payload: Any) -> Any:
    # It comes from outside: plain JSON, read by its declared type alone.
    return payload if kind is Any else decode_as(payload, kind, f"the answer to hook {name!r}")

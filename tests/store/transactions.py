"""Transactions of callers, on a connection of each kind that a verb may be enlisted in."""

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass
from typing import Any

import psycopg
from psycopg.rows import dict_row
from sqlalchemy import create_engine, text
from sqlalchemy.ext.asyncio import (
    AsyncConnection,
    AsyncSession,
    async_scoped_session,
    async_sessionmaker,
    create_async_engine,
)
from sqlalchemy.orm import Session, scoped_session, sessionmaker
from sqlalchemy.pool import NullPool


@dataclass
class Transaction:
    """An open transaction of the caller, and how it ends."""

    connection: Any
    commit: Callable[[], Awaitable[None]]
    rollback: Callable[[], Awaitable[None]]
    execute: Callable[[str], Awaitable[Any]]


Opener = Callable[[str, AsyncExitStack], Awaitable[Transaction]]


def _awaited(function: Callable[..., Any]) -> Callable[..., Awaitable[Any]]:
    async def call(*arguments: Any) -> Any:
        return function(*arguments)

    return call


def _with_driver(dsn: str) -> str:
    return dsn.replace("postgresql://", "postgresql+psycopg://", 1)


async def psycopg_async(dsn: str, stack: AsyncExitStack) -> Transaction:
    connection = await psycopg.AsyncConnection.connect(dsn)
    stack.push_async_callback(connection.close)
    return Transaction(
        connection,
        connection.commit,
        connection.rollback,
        lambda query: connection.execute(query.encode()),
    )


async def psycopg_async_with_dict_rows(dsn: str, stack: AsyncExitStack) -> Transaction:
    transaction = await psycopg_async(dsn, stack)
    transaction.connection.row_factory = dict_row
    return transaction


async def psycopg_sync(dsn: str, stack: AsyncExitStack) -> Transaction:
    connection = psycopg.connect(dsn)
    stack.callback(connection.close)
    return Transaction(
        connection,
        _awaited(connection.commit),
        _awaited(connection.rollback),
        _awaited(lambda query: connection.execute(query.encode())),
    )


async def psycopg_with_client_side_binding(dsn: str, stack: AsyncExitStack) -> Transaction:
    transaction = await psycopg_sync(dsn, stack)
    transaction.connection.cursor_factory = psycopg.ClientCursor
    return transaction


async def dbapi_wrapper(dsn: str, stack: AsyncExitStack) -> Transaction:
    """What a framework wraps around a driver: a cursor with %s parameters, and no more."""
    transaction = await psycopg_sync(dsn, stack)
    inner = transaction.connection

    class Wrapper:
        def cursor(self) -> Any:
            return inner.cursor()

    transaction.connection = Wrapper()
    return transaction


async def sqlalchemy_connection(dsn: str, stack: AsyncExitStack) -> Transaction:
    engine = create_engine(_with_driver(dsn), poolclass=NullPool)
    connection = stack.enter_context(engine.connect())
    return Transaction(
        connection,
        _awaited(connection.commit),
        _awaited(connection.rollback),
        _awaited(lambda query: connection.execute(text(query))),
    )


async def sqlalchemy_session(dsn: str, stack: AsyncExitStack) -> Transaction:
    engine = create_engine(_with_driver(dsn), poolclass=NullPool)
    session = stack.enter_context(Session(engine))
    return Transaction(
        session,
        _awaited(session.commit),
        _awaited(session.rollback),
        _awaited(lambda query: session.execute(text(query))),
    )


async def sqlalchemy_scoped_session(dsn: str, stack: AsyncExitStack) -> Transaction:
    engine = create_engine(_with_driver(dsn), poolclass=NullPool)
    session = scoped_session(sessionmaker(engine))
    stack.callback(session.remove)
    return Transaction(
        session,
        _awaited(session.commit),
        _awaited(session.rollback),
        _awaited(lambda query: session.execute(text(query))),
    )


async def sqlalchemy_async_connection(dsn: str, stack: AsyncExitStack) -> Transaction:
    engine = create_async_engine(_with_driver(dsn), poolclass=NullPool)
    connection: AsyncConnection = await stack.enter_async_context(engine.connect())
    return Transaction(
        connection,
        connection.commit,
        connection.rollback,
        lambda query: connection.execute(text(query)),
    )


async def sqlalchemy_async_session(dsn: str, stack: AsyncExitStack) -> Transaction:
    engine = create_async_engine(_with_driver(dsn), poolclass=NullPool)
    session = await stack.enter_async_context(AsyncSession(engine))
    return Transaction(
        session,
        session.commit,
        session.rollback,
        lambda query: session.execute(text(query)),
    )


async def sqlalchemy_async_scoped_session(dsn: str, stack: AsyncExitStack) -> Transaction:
    engine = create_async_engine(_with_driver(dsn), poolclass=NullPool)
    session = async_scoped_session(async_sessionmaker(engine), scopefunc=asyncio.current_task)
    stack.push_async_callback(session.remove)
    return Transaction(
        session,
        session.commit,
        session.rollback,
        lambda query: session.execute(text(query)),
    )


KINDS: list[Opener] = [
    psycopg_async,
    psycopg_async_with_dict_rows,
    psycopg_sync,
    psycopg_with_client_side_binding,
    dbapi_wrapper,
    sqlalchemy_connection,
    sqlalchemy_session,
    sqlalchemy_scoped_session,
    sqlalchemy_async_connection,
    sqlalchemy_async_session,
    sqlalchemy_async_scoped_session,
]

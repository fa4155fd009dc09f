"""The stores that the tests of the engine use, for workflows written as asyncio."""

from tests.engine.conftest import engine_store, postgres_only

__all__ = ["engine_store", "postgres_only"]

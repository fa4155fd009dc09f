"""The stores of the engine's tests, for rows that hold on both."""

from tests.engine.conftest import engine_store, postgres_only

__all__ = ["engine_store", "postgres_only"]

"""The stores of the engine's tests."""

from tests.engine.conftest import engine_store, postgres_only

__all__ = ["engine_store", "postgres_only"]

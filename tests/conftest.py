"""What every test may ask for: the session's server and databases on it.

The server is chosen once, by ``tests.servers``, and named in the header of the run.
"""

import os

import pytest


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Skip storms, saying so, unless they were asked for."""
    if os.environ.get("FLOWPG_STORM") or "storm" in (config.option.markexpr or ""):
        return
    reason = pytest.mark.skip(reason="a long randomised run: `make storm` runs it")
    for item in items:
        if item.get_closest_marker("storm"):
            item.add_marker(reason)

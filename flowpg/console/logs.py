"""Where the commands that go on for long write what they log."""

from __future__ import annotations

import logging


def log_to_stderr(level: str = "INFO") -> None:
    """Log to standard error from this level on. What Alembic sets up before each migration is no
    news, and told to those only who ask for everything."""
    logging.basicConfig(level=level, format="%(asctime)s %(levelname)s %(name)s %(message)s")
    if level != "DEBUG":
        logging.getLogger("alembic").setLevel(max(logging.WARNING, logging.root.level))

"""How long a migration may hold others up. Apart from the migrations, whose imports take long."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta


@dataclass(frozen=True)
class MigrationLimits:
    """How long a migration may hold others up.

    ``lock``: wait for a lock on a table; traffic on that table queues behind the wait, so keep it
    short and run again. ``statement``: one statement. ``other_migrator``: until another migrator of
    the same schema has ended.
    """

    lock: timedelta = timedelta(seconds=2)
    statement: timedelta = timedelta(minutes=5)
    other_migrator: timedelta = timedelta(minutes=10)

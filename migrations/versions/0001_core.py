"""The first schema: events, runs, hooks, wakeups, tasks, and the verbs."""

from flowpg.postgres.migrate import apply_frozen

revision = "0001"
down_revision = None


def upgrade() -> None:
    """Run 0001_core.sql."""
    apply_frozen(__file__)

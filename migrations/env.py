"""The environment alembic runs the revisions in. ``flowpg.postgres.migrate`` calls it, once for
each revision, with a connection that is inside the revision's transaction, or with none to print.

Neither an alembic.ini nor a model is involved: revisions are frozen SQL.
"""

from alembic import context

from flowpg.postgres.migrate import record_applied
from flowpg.postgres.revisions import VERSION_TABLE

if context.is_offline_mode():
    # BEGIN and COMMIT come from the caller, who also sets search_path and timeouts within them.
    context.configure(
        dialect_name="postgresql",
        transactional_ddl=False,
        literal_binds=True,
        version_table=VERSION_TABLE,
        on_version_apply=record_applied,
    )
else:
    context.configure(
        connection=context.config.attributes["connection"],
        transaction_per_migration=True,
        version_table=VERSION_TABLE,
        on_version_apply=record_applied,
    )

with context.begin_transaction():
    context.run_migrations()

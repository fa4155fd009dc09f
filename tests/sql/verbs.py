"""Every verb that takes locks, a run on which each has something to do, and two that meet on it."""

from __future__ import annotations

from functools import partial

import psycopg

from tests.sql.database import DEADLOCK_TIMEOUT, SPEC, Connection, Database, hook, retry, wait
from tests.waiting import until

PROGRESS = '{"progress_id":"p","completed":1}'
CHILD = '{"reference_id":"c","kind":"k","operation_id":"o","flow_run_id":"other"}'

# For a run <r> that is leased under epoch 1, waits, and has a hook.
VERBS = {
    "append": """flow_append_many('[{"run_id":"<r>","epoch":1,"release":1,
                 "events":[{"type":"step_created","subject":"s"}]}]')""",
    "append two": """flow_append_many('[{"run_id":"<r>","events":[{"type":"run_x"}]},
                     {"run_id":"other","events":[{"type":"run_x"}]}]')""",
    "append hook": """flow_append('<r>', null,
                      '[{"type":"hook_created","subject":"i","payload":{"token":"t2"}}]')""",
    "start": f"flow_start('{SPEC}', '1', '<r>')",
    "resume wait": "flow_resume_wait('<r>', 'w')",
    "due waits": "flow_resume_due_waits()",
    "resume hook": "flow_resume_hook('<r>', 'h', '1')",
    "dispose by token": "flow_dispose_hook_by_token('token <r>')",
    "expired hooks": "flow_dispose_expired_hooks()",
    "cancel": "flow_request_cancellation('<r>')",
    "force cancel": "flow_force_cancel('<r>')",
    "progress": f"flow_record_progress('<r>', '{PROGRESS}')",
    "link": f"flow_link_child_operation('<r>', '{CHILD}')",
    "claim": "flow_claim_tasks('default', 10, 'me', '1 minute')",
    "acquire": "flow_acquire_run('<r>', 'worker', '1 minute')",
    "heartbeat": """flow_heartbeat('[{"run_id":"<r>","epoch":1}]', '1 minute')""",
    "release": "flow_release_run('<r>', 1, 1)",
    "give back": "flow_give_back('<r>', 1)",
    "complete step": "flow_complete_step('<r>', 1, 's', 1, '{}')",
    "heartbeat of a step": """flow_record_heartbeats(
        '[{"run_id":"<r>","epoch":1,"step_id":"s","attempt":1,"details":"7"}]')""",
    "step completed": "flow_step_completed('<r>', 's')",
    "enqueue due": "flow_enqueue_due()",
}
# These may be refused for what the other did, never for how they met.
EXPECTED = {"WF002", "WF003", "WF004", "WF005", "WF006", "WF007", "WF008", "WF009"}


def prepare(db: Database, run_id: str) -> None:
    """A leased run with a due wait, a hook that has expired, and a delayed retry that is due."""
    db.rows("SELECT flow_start(%s, '1', %s)", SPEC, run_id)
    assert [task["run_id"] for task in db.claim()] == [run_id]
    expiring = {**hook("h", f"token {run_id}"), "due_in_us": 0}
    events = [{"type": "run_started"}, wait("w"), expiring, *retry("s")]
    assert db.append({"run_id": run_id, "epoch": 1, "events": events})[0]["outcome"] == "appended"


def collided(
    db: Database, holder: Connection, first: str, second: str, *, commit: bool
) -> list[psycopg.Error]:
    """Hold a transaction of ``holder`` open after the first verb while the second one comes, which
    waits or passes; then commit it or roll it back. The errors of both."""
    refused: list[psycopg.Error] = []
    with holder.transaction(force_rollback=not commit):
        try:
            with holder.transaction():
                db.rows(f"SELECT {first}", on=holder)
        except psycopg.Error as error:
            refused.append(error)

        def call(connection: Connection) -> None:
            db.rows(f"SELECT {second}", on=connection)

        coming = db.background(call, deadlock_timeout=DEADLOCK_TIMEOUT)
        until(partial(db.is_settled, coming), "the second is done or waits")
    try:
        coming.result(30)
    except psycopg.Error as error:
        refused.append(error)
    return refused

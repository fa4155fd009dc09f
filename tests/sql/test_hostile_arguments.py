"""Every verb with arguments that nobody would give: what is refused is refused by an error of ours,
no text shows a token or a payload, and whatever was stored on the way harms nobody else."""

from __future__ import annotations

import json
from typing import Any, NamedTuple

import psycopg
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from psycopg import sql

from tests.sql.database import SPEC, Connection, Database, hook, wait

SECRET = "s3cr3t"
HUGE = "9" * 5000
SAY = settings(
    max_examples=15,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
ALLOWED = {
    "54001": "JSON that is nested too deep for the server",
}
"""What PostgreSQL itself refuses, by sql/README.md."""

NAMES = st.sampled_from(
    [None, "", " ", "r", "missing", "h", "w", "s", "default", "x" * 256, "é" * 3000, "a'b\\\n"]
)
TOKENS = st.sampled_from([None, "", SECRET, SECRET * 2000, "t"])
NUMBERS = {
    "smallint": [None, 0, 1, -1, 2**15 - 1, -(2**15)],
    "integer": [None, 0, 1, -1, 2**31 - 1, -(2**31)],
    "bigint": [None, 0, 1, 2, -1, 2**63 - 1, -(2**63)],
}
PLAIN: dict[str, st.SearchStrategy[Any]] = {
    **{name: st.sampled_from(values) for name, values in NUMBERS.items()},
    "text": NAMES,
    "boolean": st.sampled_from([None, True, False]),
    "text[]": st.sampled_from([None, [], [None], ["default"], ["r", "r"], ["", "x" * 3000]]),
    "bigint[]": st.sampled_from([None, [], [None], [-1], [2**63 - 1]]),
    "interval": st.sampled_from(
        [None, "0", "1 s", "-1 s", "178000000 years", "-178000000 years", "1 us", "1 mon"]
    ),
    "timestamp with time zone": st.sampled_from(
        [None, "infinity", "-infinity", "294276-12-31 23:59:59+00", "4713-01-01 BC", "now"]
    ),
}
STRANGE = st.sampled_from(
    [
        *("null", "true", "0", "-1", "1.5", "1e400", "1e999999", str(2**31), str(2**63), HUGE),
        *('""', "{}", "[]", '"infinity"', '"r"', '"-1 s"', json.dumps("x" * 2**21)),
        *(f'"{SECRET}"', f'"{SECRET}\\u0000"', f'"{SECRET}\\ud800"', f'["{SECRET}"]'),
        *(f'{{"{SECRET}":1}}', "[" * 300 + f'"{SECRET}"' + "]" * 300, "[" * 20000 + "]" * 20000),
    ]
)
EVENT = {
    "type": "run_x",
    "payload": {"a": SECRET},
    "subject": "s",
    "due_at": None,
    "event_id": None,
}
ELEMENT = {"run_id": "r", "expected": None, "epoch": None, "events": [EVENT], "release": None}
SPECIFIED = {"name": "w", "version": "1"}
SHAPES: dict[str, Any] = {
    "p_batch": [{**ELEMENT, "queue": None, "steps": None, "before": None}],
    "p_append": [ELEMENT],
    "p_events": [{**EVENT, "sequence": 1, "recorded_at": "2026-01-01T00:00:00Z"}],
    "p_event": EVENT,
    "p_runs": [
        {"run_id": "n", "spec": {"name": "w", "version": "1"}, "input": SECRET, "queue": "q"}
    ],
    "p_spec": {"name": "w", "version": "1", "runtime_build": "b", "runtime": None},
    "p_leases": [{"run_id": "r", "epoch": 1, "task_id": None}],
    "p_tasks": [{"task_id": 1, "epoch": 1}],
    "p_held": [{"task_id": 1, "epoch": 1}],
    "p_done": [
        {"task_id": 1, "epoch": 1, "ok": False, "error": "", "retry_delay": None, "dead": None}
    ],
    "p_beats": [{"run_id": "r", "epoch": 1, "step_id": "s", "attempt": 1, "details": SECRET}],
    "p_steps": [
        {"task_id": 1, "run_id": "r", "step_id": "s", "step_name": "n", "attempt": 1, "queue": "q"}
        | {"due_in_us": 1, "due_at": None, "not_begun": EVENT, "not_closed": None}
        | {"closes_at": "2026-01-01T00:00:00Z"}
    ],
    "p_progress": {"progress_id": "p", "completed": 1, "total": 2, "message": SECRET, "details": 1},
    "p_child": {"reference_id": "c", "kind": "k", "operation_id": "o", "flow_run_id": "r", "m": 1},
    "p_payload": {"hook_id": "h", "token": SECRET, "wait_id": "w", "payload": SECRET},
    "p_input": SECRET,
}


class Verb(NamedTuple):
    """A function and its arguments, as the catalogue has them."""

    name: str
    arguments: tuple[tuple[str, str], ...]


@st.composite
def documents(draw: Any, shape: Any) -> str | None:
    """JSON text of a shape, or nearly: a member of another type, left out, doubled, or one more."""
    if not draw(st.integers(0, 9)):
        strange: str | None = draw(st.one_of(st.none(), STRANGE))
        return strange
    whole = shape if isinstance(shape, dict) else shape[0] if isinstance(shape, list) else None
    if whole is None:
        return str(draw(st.one_of(st.just(json.dumps(shape)), STRANGE)))
    members = {name: json.dumps(value) for name, value in whole.items()}
    for name in draw(st.lists(st.sampled_from(sorted(members)), max_size=2)):
        strange_member = draw(STRANGE)
        # An error names what it is about: an id is no secret.
        members[name] = (
            strange_member.replace(SECRET, "shown") if name.endswith("_id") else strange_member
        )
    for name in draw(st.lists(st.sampled_from(sorted(members)), max_size=1)):
        del members[name]
    text: str = ",".join(f'"{name}":{value}' for name, value in members.items())
    more: str = draw(st.sampled_from(["", "", "", f',"{SECRET}":"{SECRET}"']))
    text = ("{" + text + more + "}").replace("{,", "{")
    if isinstance(shape, dict):
        return text
    return f"[{text},{text}]" if draw(st.booleans()) else f"[{text}]"


def strategy(name: str, kind: str) -> st.SearchStrategy[Any]:
    """Values for one argument."""
    if kind == "json":
        return documents(SHAPES[name])
    return TOKENS if name == "p_token" else PLAIN[kind]


def verbs_of(db: Database, capability: str) -> list[Verb]:
    """The verbs of a capability."""
    rows = db.rows(
        "SELECT p.proname AS name, p.proargnames[1:p.pronargs] AS names,"
        " ARRAY(SELECT format_type(t, NULL) FROM unnest(p.proargtypes) AS t) AS types"
        " FROM pg_proc AS p WHERE pronamespace = current_schema()::regnamespace"
        " AND EXISTS (SELECT FROM flow_capabilities() AS c WHERE c.kind = 'verb'"
        "             AND c.capability = %s AND c.name = p.proname) ORDER BY 1, 3",
        capability,
    )
    return [
        Verb(row["name"], tuple(zip(row["names"] or (), row["types"], strict=True))) for row in rows
    ]


def call(verb: Verb, values: list[Any], on: Connection) -> psycopg.Error | None:
    """The error that a call ends with, if it does."""
    texts = [value if value is None else str(value) for value in values]
    shown = ", ".join(f"%s::text::{kind}" for _, kind in verb.arguments)
    for at, (_, kind) in enumerate(verb.arguments):
        if kind.endswith("[]") and values[at] is not None:
            items = [json.dumps(i) if i is not None else "NULL" for i in values[at]]
            texts[at] = "{" + ",".join(items) + "}"
    try:
        on.execute(f"SELECT to_json(v)::text FROM {verb.name}({shown}) AS v", texts)
    except psycopg.Error as error:
        return error
    return None


@pytest.mark.parametrize("capability", ["client", "worker"])
def test_whatever_is_asked_of_a_verb_is_refused_by_name_and_shows_nothing(
    db: Database, capability: str
) -> None:
    db.start("r")
    db.append({"run_id": "r", "events": [wait("w"), hook("h", "t")]})
    db.rows("SELECT flow_start(%s, '1', 'n')", SPEC)
    db.rows("SELECT flow_enqueue_task('dispose_hook', '{\"hook_id\":\"x\"}', p_run_id => 'r')")
    name = f"flowpg_hostile_{capability}"
    db.rows(f"CREATE ROLE {name}")
    try:
        db.rows("SELECT flow_grant(%s, %s)", name, capability)
        connection = db.connect(role=name)
        notices: list[str] = []
        connection.add_notice_handler(lambda n: notices.append(str(n.message_primary)))
        known = verbs_of(db, capability)
        assert len(known) > 30

        for verb in known:
            attack(db, verb, connection, notices)
        # What was stored on the way harms nobody who reads, claims or beats.
        for name_ in ("list_runs", "live_workers", "health", "run_summary", "build_usage"):
            db.rows(f"SELECT to_json(v)::text FROM flow_{name_}() AS v")
        db.rows("SELECT e::text FROM flow_events AS e")
        db.rows("SELECT flow_enqueue_due(), flow_requeue_expired()")
        db.rows("SELECT flow_worker_beat('w', 'b', 'h', 1, '{default}', null, null, 1, 0)")
        db.start("another")
        db.rows("SELECT flow_resume_queue('default')")
        db.rows("SELECT flow_set_queue_limits('default')")
        db.rows("SELECT flow_set_run_priority('another', '-32768'), flow_wake_run('another')")
        assert "another" in {claimed["run_id"] for claimed in db.claim(1000)}
    finally:
        db.main.execute(sql.SQL("DROP OWNED BY {}").format(sql.Identifier(name)))
        db.main.execute(sql.SQL("DROP ROLE {}").format(sql.Identifier(name)))


def attack(db: Database, verb: Verb, connection: Connection, notices: list[str]) -> None:
    """Call one verb again and again."""

    @SAY
    @given(values=st.tuples(*(strategy(name, kind) for name, kind in verb.arguments)))
    def again(values: tuple[Any, ...]) -> None:
        notices.clear()
        error = call(verb, list(values), connection)
        if error is not None:
            code = error.sqlstate or ""
            assert code.startswith("WF") or code in ALLOWED, (verb.name, code, str(error)[:500])
            diag = error.diag
            said = [diag.message_primary, diag.message_detail, diag.message_hint, *notices]
            said += [diag.context, diag.internal_query]
            assert not any(SECRET in (text or "") for text in said), (verb.name, said)

    again()

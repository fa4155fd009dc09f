"""The history of a driven run is made of envelopes only where somebody looks."""

from datetime import UTC, datetime, timedelta

import pytest

from flowpg.engine.history import RunHistory
from flowpg.model import events
from flowpg.model.events import FlowEventEnvelope, NewEvent

NOW = datetime(2026, 1, 1, tzinfo=UTC)
LATER = NOW + timedelta(seconds=1)


def created() -> RunHistory:
    first = FlowEventEnvelope("r", 1, "id", NOW, events.RUN_CREATED, data={"input": None})
    return RunHistory("r", [first])


def seen(history: RunHistory) -> list[tuple[int, str | None, datetime]]:
    return [(event.sequence, event.subject, event.recorded_at) for event in history]


def store(history: RunHistory, pending: list[NewEvent], at: datetime) -> None:
    for event in pending:
        event.recorded_at = at
    history.stored()


def steps(count: int) -> list[NewEvent]:
    return [events.step_started(f"s{number}", 1) for number in range(count)]


def test_pending_events_have_the_time_of_the_turn_until_they_are_stored() -> None:
    history, pending = created(), steps(2)
    history.pend(pending[:1], NOW)
    assert seen(history)[1:] == [(2, "s0", NOW)]
    history.pend(pending[1:], NOW)
    assert len(history) == 3
    store(history, pending, LATER)
    assert seen(history)[1:] == [(2, "s0", LATER), (3, "s1", LATER)]


def test_an_event_that_was_read_while_pending_stays_the_same_object() -> None:
    history, pending = created(), steps(3)
    history.pend(pending[:1], NOW)
    before = history[-1]
    store(history, pending[:1], LATER)
    history.pend(pending[1:], LATER)
    assert history[1] is before
    assert len(history[1:]) == len(pending)


def test_a_pending_event_may_give_way_to_another_whether_it_was_read_or_not() -> None:
    for read in (False, True):
        history, pending = created(), steps(3)
        history.pend(pending, NOW)
        if read:
            assert len(history[1:]) == len(pending)
        others = history[1] if read else None
        pending[1] = events.hook_conflicted("h", "owner", "theirs")
        history.replace_pending(1, pending[1])
        assert [event.subject for event in history[1:]] == ["s0", "h", "s2"]
        store(history, pending, LATER)
        assert seen(history)[2] == (3, "h", LATER)
        assert not read or history[1] is others


def test_unread_events_of_many_appends_come_in_order() -> None:
    history = created()
    for number, step in enumerate(steps(3)):
        history.pend([step], NOW)
        store(history, [step], NOW + timedelta(seconds=number))
    assert [event.subject for event in history.latest(2)] == ["s1", "s2"]
    assert [event.sequence for event in history] == [1, 2, 3, 4]
    assert [event.recorded_at.second for event in history] == [0, 0, 1, 2]


def test_what_was_dropped_is_no_event() -> None:
    history = created()
    for look in (True, False):
        history.pend(steps(3), NOW)
        assert not look or history[-1].subject == "s2"
        history.drop_pending()
        assert len(history) == len(list(history)) == 1


def test_news_of_others_follow_what_is_stored() -> None:
    history, pending = created(), steps(2)
    history.pend(pending[:1], NOW)
    store(history, pending[:1], NOW)
    news = FlowEventEnvelope("r", 3, "id", LATER, events.STEP_STARTED, data={"step_id": "x"})
    history.take_in([news])
    history.pend(pending[1:], LATER)
    assert [event.subject for event in history] == [None, "s0", "x", "s1"]
    assert [event.sequence for event in history] == [1, 2, 3, 4]


def test_who_has_seen_a_part_is_given_the_rest_as_it_is() -> None:
    history, pending = created(), steps(3)
    stretch = history.stretch
    history.pend(pending[:2], NOW)
    assert history.following(stretch, 1) == pending[:2]
    store(history, pending[:2], LATER)
    history.pend(pending[2:], LATER)
    assert history.following(stretch, 2) == pending[1:]
    assert history.following(object(), 2) is None


@pytest.mark.parametrize("begun", [True, False])
def test_a_step_that_others_began_is_nobodys_own_decision(begun: bool) -> None:
    history, pending = created(), steps(1)
    stretch = history.stretch
    history.pend(pending, NOW)
    store(history, pending, NOW)
    kind, data = (events.STEP_STARTED, {"step_id": "x"}) if begun else (events.RUN_STARTED, {})
    history.take_in([FlowEventEnvelope("r", 3, "id", LATER, kind, data=data)])
    rest = history.following(stretch, 1)
    if begun:
        assert rest is None
    else:
        assert rest is not None
        assert [event.type for event in rest] == [events.STEP_STARTED, kind]

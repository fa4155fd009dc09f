"""The history of a driven run is made of envelopes only where somebody looks."""

from datetime import UTC, datetime, timedelta

from flowpg.engine.history import RunHistory
from flowpg.model import events
from flowpg.model.events import FlowEventEnvelope, NewEvent

NOW = datetime(2026, 1, 1, tzinfo=UTC)
LATER = NOW + timedelta(seconds=1)
STEPS = [events.step_started(f"s{number}", 1) for number in range(3)]


def created() -> RunHistory:
    first = FlowEventEnvelope("r", 1, "id", NOW, events.RUN_CREATED, data={"input": None})
    return RunHistory("r", [first])


def seen(history: RunHistory) -> list[tuple[int, str | None, datetime]]:
    return [(event.sequence, event.subject, event.recorded_at) for event in history]


def test_pending_events_have_the_time_of_the_turn_until_they_are_stored() -> None:
    history, pending = created(), STEPS[:1]
    history.pend(pending, NOW)
    assert seen(history)[1:] == [(2, "s0", NOW)]
    pending = STEPS[:2]
    history.pend(pending, NOW)
    assert len(history) == 3
    history.stored(LATER)
    assert seen(history)[1:] == [(2, "s0", LATER), (3, "s1", LATER)]


def test_an_event_that_was_read_while_pending_stays_the_same_object() -> None:
    history = created()
    history.pend(STEPS[:1], NOW)
    before = history[-1]
    history.stored(LATER)
    history.pend(STEPS[1:], LATER)
    assert history[1] is before
    assert len(history[1:]) == len(STEPS)


def test_a_pending_event_may_give_way_to_another_whether_it_was_read_or_not() -> None:
    for read in (False, True):
        history, pending = created(), [*STEPS]
        history.pend(pending, NOW)
        if read:
            assert len(history[1:]) == len(STEPS)
        others = history[1] if read else None
        pending[1] = events.hook_conflicted("h", "owner", "theirs")
        history.replace_pending(1)
        assert [event.subject for event in history[1:]] == ["s0", "h", "s2"]
        history.stored(LATER)
        assert seen(history)[2] == (3, "h", LATER)
        assert not read or history[1] is others


def test_unread_events_of_many_appends_come_in_order() -> None:
    history = created()
    for step in STEPS:
        history.pend([step], NOW)
        history.stored(LATER)
    assert [event.subject for event in history.latest(2)] == ["s1", "s2"]
    assert [event.sequence for event in history] == [1, 2, 3, 4]


def test_what_was_dropped_is_no_event() -> None:
    history = created()
    for look in (True, False):
        history.pend(STEPS, NOW)
        assert not look or history[-1].subject == "s2"
        history.drop_pending()
        assert len(history) == len(list(history)) == 1


def test_news_of_others_follow_what_is_stored() -> None:
    history = created()
    history.pend(STEPS[:1], NOW)
    history.stored(NOW)
    news = FlowEventEnvelope("r", 3, "id", LATER, events.STEP_STARTED, data={"step_id": "x"})
    history.take_in([news])
    own: list[NewEvent] = STEPS[2:]
    history.pend(own, LATER)
    assert [event.subject for event in history] == [None, "s0", "x", "s2"]
    assert [event.sequence for event in history] == [1, 2, 3, 4]

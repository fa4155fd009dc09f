"""Histories as lines of JSON."""

import pytest

from flowpg.errors import SerializationError
from flowpg.model import events
from flowpg.model.events import FlowEventEnvelope
from flowpg.model.jsonl import dump_history, load_history
from tests.unit.histories import NOW, RUN, created, envelopes, step
from tests.unit.test_typed import ONE_OF_EACH

ID = "0b0a4d0e-5f0d-4a45-9d9e-9f7a5b1f1c11"


def line(event: str, **changes: str) -> str:
    """One envelope as another engine would write it; changes replace raw member texts."""
    members = {
        "schema_version": "1",
        "run_id": '"r"',
        "sequence": "1",
        "event_id": f'"{ID}"',
        "timestamp": '"2026-03-01T12:00:00Z"',
        "event": event,
        **changes,
    }
    shown = ",".join(f'"{name}":{text}' for name, text in members.items() if text)
    return "{" + shown + "}\n"


STARTED = '{"type":"run_started"}'

VERBATIM = [
    line(STARTED),
    line(STARTED, schema_version=""),
    line(STARTED, schema_version="7"),
    line(STARTED, timestamp='"2026-03-01T12:00:00.123456789Z"'),
    line(STARTED, timestamp='"2026-03-01T12:00:00.100Z"'),
    line(STARTED, timestamp='"2026-03-01T12:00:00+00:00"'),
    line('{"type":"run_completed","output":1.0}'),
    line('{"type":"run_completed","output":1E400}'),
    line('{"type":"run_completed","output":-0.0}'),
    line('{"type":"run_completed","output":123456789012345678901234567890}'),
    line('{"type":"run_completed","output":"\\u00e9\\ud800\\u0000é😀\u2028"}'),
    line('{"type":"run_completed","output":{"type":"inner","b":1,"a":{"type":2}}}'),
    line('{"type":"run_completed","output":{ "spaced" : [ 1 , 2 ] }}'),
    line('{"type":"run_completed","output":"}{\\"type\\":\\"x\\",}"}'),
    line('{"type":"signal_received","signal":{"name":"later engines know more"}}'),
    line('{"type":"run_completed","output":{"a":1,"a":2}}'),
    line(STARTED, run_id='"\\u00e9"').replace("\\u00e9", "é"),
]


@pytest.mark.parametrize("text", VERBATIM)
def test_what_was_read_is_written_again_byte_for_byte(text: str) -> None:
    (envelope,) = load_history(text)
    assert dump_history([envelope]) == text
    # Also after someone has looked at it.
    assert "type" not in envelope.data
    assert dump_history([envelope]) == text


def test_one_event_of_each_type_comes_back_equal() -> None:
    history = envelopes(*ONE_OF_EACH)
    text = dump_history(history)
    assert load_history(text) == history
    assert dump_history(load_history(text)) == text
    assert text.count("\n") == len(history)


def test_the_shape_of_a_line_is_the_one_engines_exchange() -> None:
    stored = FlowEventEnvelope(
        "r",
        2,
        ID,
        NOW,
        events.STEP_STARTED,
        payload='{"step_id":"a","attempt":1}',
        schema_version=1,
    )
    assert dump_history([stored]) == (
        f'{{"schema_version":1,"run_id":"r","sequence":2,"event_id":"{ID}",'
        '"timestamp":"2026-03-01T12:00:00Z",'
        '"event":{"type":"step_started","step_id":"a","attempt":1}}\n'
    )


def test_an_absent_schema_version_stays_absent_and_reads_as_one() -> None:
    text = line(STARTED, schema_version="")
    (old,) = load_history(text)
    (new,) = load_history(line(STARTED))
    assert old.schema_version is None
    assert old == new
    assert dump_history([old]) == text


def test_a_time_finer_than_a_microsecond_is_rounded_up_and_written_as_it_was() -> None:
    text = line(STARTED, timestamp='"2026-03-01T12:00:00.000000001Z"')
    (envelope,) = load_history(text)
    assert envelope.recorded_at.microsecond == 1
    assert dump_history([envelope]) == text


def test_a_type_that_does_not_stand_first_is_moved_there_and_the_rest_kept_verbatim() -> None:
    (envelope,) = load_history(line('{"output":1.0,"type":"run_completed","extra":1E2}'))
    assert envelope.type == "run_completed"
    assert envelope.payload == '{"output":1.0,"extra":1E2}'
    assert dump_history([envelope]) == line('{"type":"run_completed","output":1.0,"extra":1E2}')


def test_white_space_and_the_order_of_envelope_members_become_the_usual_ones() -> None:
    text = (
        f'  {{ "event" : {{ "type" : "run_completed" , "output" : [1, 2] }}, "sequence": 1,\t'
        f'"timestamp":"2026-03-01T12:00:00Z","event_id":"{ID}","run_id":"r" }} \r\n\n  \n'
    )
    (envelope,) = load_history(text)
    written = dump_history([envelope])
    assert written == line('{"type":"run_completed","output" : [1, 2]}', schema_version="")
    assert load_history(written) == [envelope]


def test_a_payload_that_a_store_keeps_over_several_lines_is_written_on_one() -> None:
    payload = '\n {\n  "output": [\n1,\n2]\n}\n'
    stored = FlowEventEnvelope("r", 1, ID, NOW, events.RUN_COMPLETED, payload=payload)
    text = dump_history([stored])
    assert text.count("\n") == 1
    assert load_history(text) == [stored]


def test_the_last_line_feed_may_be_missing_and_an_empty_text_is_an_empty_history() -> None:
    assert len(load_history(line(STARTED).rstrip("\n"))) == 1
    assert load_history("") == load_history("\n \n") == []
    assert dump_history([]) == ""


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        ("{", "is not valid JSON"),
        ("", "is not valid JSON"),
        ("[1]", "not an event envelope"),
        ("null", "not an event envelope"),
        (line(STARTED, surprise="1"), "unknown members"),
        (line(STARTED)[:-2] + ',"run_id":"other"}', "member twice"),
        (line('{"type":"run_started","type":"run_failed"}'), "more than one type"),
        (line(STARTED, run_id="5"), "run_id must be a text"),
        (line(STARTED, run_id='""'), "run_id must be a text"),
        (line(STARTED, run_id=""), "run_id must be a text"),
        (line(STARTED, sequence="0"), "sequence must be a number from 1"),
        (line(STARTED, sequence="1.0"), "sequence must be a number from 1"),
        (line(STARTED, sequence="true"), "sequence must be a number from 1"),
        (line(STARTED, sequence=""), "sequence must be a number from 1"),
        (line(STARTED, event_id='"abc"'), "event_id a UUID"),
        (line(STARTED, event_id='"{0b0a4d0e-5f0d-4a45-9d9e-9f7a5b1f1c11}"'), "event_id a UUID"),
        (line(STARTED, timestamp='"yesterday"'), "timestamp must be an RFC 3339 time"),
        (line(STARTED, timestamp="5"), "timestamp must be a text"),
        (line(STARTED, schema_version="null"), "schema_version must be a number"),
        (line(STARTED, schema_version='"1"'), "schema_version must be a number"),
        (line(STARTED, schema_version="-1"), "schema_version must be a number"),
        (line("5"), "event must be an object"),
        (line("{}"), "type must be a text"),
        (line('{"type":5}'), "type must be a text"),
        (line('{"type":"run_completed","output":NaN}'), "not valid JSON"),
        (line('{"type":"run_completed","output":' + "[" * 250 + "]" * 250 + "}"), "200 levels"),
    ],
)
def test_a_line_that_is_no_envelope_is_named_by_its_number(bad: str, message: str) -> None:
    text = line(STARTED) + bad.rstrip("\n") + "\n" + line(STARTED)
    with pytest.raises(SerializationError, match=message) as caught:
        load_history(text)
    assert str(caught.value).startswith("line 2 of the history")


def test_a_torn_last_line_is_an_error_and_not_a_shorter_history() -> None:
    text = dump_history(envelopes(created(), events.run_started(), step("a")))
    with pytest.raises(SerializationError, match="line 3"):
        load_history(text[:-20])


def test_errors_show_no_value() -> None:
    for bad in (
        line('{"type":"run_failed","error":"s3cret"', schema_version="1"),
        line('{"type":["s3cret"]}'),
        line(STARTED, event_id='"s3cret"'),
    ):
        with pytest.raises(SerializationError) as caught:
            load_history(bad)
        assert "s3cret" not in str(caught.value)


def test_a_payload_that_is_no_object_cannot_be_written() -> None:
    with pytest.raises(SerializationError, match=f"event 1 of run '{RUN}'"):
        dump_history([FlowEventEnvelope(RUN, 1, ID, NOW, events.RUN_STARTED, payload="[1]")])

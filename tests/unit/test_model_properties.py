"""Properties of JSON text, retry delays, ids, times and exchanged histories."""

import json
from datetime import UTC, datetime, timedelta
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from flowpg.errors import InvalidArgument, InvalidTransition, SerializationError
from flowpg.model import jsontext
from flowpg.model.events import NewEvent
from flowpg.model.jsonl import dump_history, load_history
from flowpg.model.retry import RetryPolicy
from flowpg.model.times import format_time, parse_time
from tests.unit.generators import (
    any_text,
    examples,
    json_values,
    legal_histories,
    plain_text,
    policies,
)
from tests.unit.histories import envelopes


def exact(value: Any) -> str:
    """A text that tells apart what Python's equality does not: 1, 1.0 and True; 0.0 and -0.0."""
    return repr(value)


# -- JSON -----------------------------------------------------------------------------------------


@examples(150)
@given(json_values)
def test_every_json_value_comes_back_as_it_was(value: Any) -> None:
    text = jsontext.encode(value)
    text.encode()
    assert exact(jsontext.decode(text)) == exact(value)
    assert exact(jsontext.decode(text.encode())) == exact(value)
    stored_text, stored = jsontext.stored(value)
    assert (stored_text, exact(stored)) == (text, exact(value))
    assert exact(jsontext.copied(value)) == exact(value)
    assert jsontext.equal(value, stored)
    # The encoder that is kept writes what the standard one does.
    if text.isascii() or not any(0xD800 <= ord(c) < 0xE000 for c in json.loads(json.dumps(text))):
        plain = json.dumps(value, ensure_ascii=False, separators=(",", ":"))
        assert text in (plain, json.dumps(value, separators=(",", ":")))


@examples(150)
@given(json_values, json_values)
def test_equality_is_symmetric_and_follows_the_text(left: Any, right: Any) -> None:
    assert jsontext.equal(left, right) == jsontext.equal(right, left)
    if jsontext.encode(left) == jsontext.encode(right):
        assert jsontext.equal(left, right)


@examples(150)
@given(st.text(st.sampled_from('[]{}",:\\ue0123456789.+-EntfalsrINy \n\ud800'), max_size=30))
def test_any_text_is_decoded_or_refused_with_the_one_error(text: str) -> None:
    try:
        value = jsontext.decode(text)
    except SerializationError:
        return
    assert exact(json.loads(text)) == exact(value)


# -- retries --------------------------------------------------------------------------------------


@examples(150)
@given(policies, any_text, any_text, st.integers(1, 200))
def test_a_retry_delay_is_within_its_bounds_and_always_the_same(
    policy: RetryPolicy, run_id: str, step_id: str, attempt: int
) -> None:
    policy.check()
    delay = policy.delay_after(run_id, step_id, attempt)
    assert delay == RetryPolicy.read(policy.wire()).delay_after(run_id, step_id, attempt)
    if policy.max_delay_ms:
        cap = min(policy.max_delay_ms, policy.delay_ms * 2 ** (attempt - 1))
        assert timedelta(milliseconds=1) <= delay <= timedelta(milliseconds=cap)
    else:
        assert delay == timedelta(milliseconds=policy.delay_ms)


@examples(100)
@given(
    st.integers(0, 10**6),
    st.timedeltas(min_value=timedelta(0), max_value=timedelta(days=30000)),
    st.timedeltas(min_value=timedelta(0), max_value=timedelta(days=30000)),
)
def test_every_policy_that_can_be_built_is_valid_and_not_shorter_than_asked_for(
    attempts: int, initial: timedelta, maximum: timedelta
) -> None:
    fixed = RetryPolicy.fixed(attempts, initial)
    growing = RetryPolicy.exponential(attempts, initial, maximum)
    for policy in (fixed, growing, growing.continue_workflow_on_failure()):
        policy.check()
        assert policy.attempts >= 1
        assert RetryPolicy.read(policy.wire()) == policy
    assert timedelta(milliseconds=fixed.delay_ms) >= initial


@examples(150)
@given(
    st.one_of(
        json_values,
        st.dictionaries(
            st.sampled_from(["max_attempts", "delay_ms", "backoff", "max_delay_ms", "more"]),
            st.one_of(json_values, st.integers(-1, 5), st.sampled_from(["fixed", "exponential"])),
        ),
    )
)
def test_any_json_is_read_as_a_valid_policy_or_refused_with_the_one_error(wire: Any) -> None:
    try:
        policy = RetryPolicy.read(wire)
    except InvalidTransition:
        return
    policy.check()
    if wire is not None:
        assert all(
            exact(policy.wire().get(key, value)) == exact(value) for key, value in wire.items()
        )


# -- times ----------------------------------------------------------------------------------------


@examples(150)
@given(st.datetimes(timezones=st.just(UTC)), st.text(st.sampled_from("0123456789"), max_size=12))
def test_a_time_comes_back_exactly_and_finer_digits_never_make_it_earlier(
    moment: datetime, digits: str
) -> None:
    assert parse_time(format_time(moment)) == moment
    finer = format_time(moment.replace(microsecond=0))[:-1] + (f".{digits}Z" if digits else "Z")
    try:
        read = parse_time(finer)
    except InvalidArgument:
        assert moment.year == 9999
        return
    exact_fraction = int(digits.ljust(12, "0")) if digits else 0
    picoseconds = (read - moment.replace(microsecond=0)) // timedelta(microseconds=1) * 10**6
    assert 0 <= picoseconds - exact_fraction < 10**6


@examples(100)
@given(
    st.one_of(any_text, st.datetimes().map(str), st.datetimes(timezones=st.timezones()).map(str))
)
def test_any_text_is_read_as_a_time_or_refused_with_the_one_error(text: str) -> None:
    try:
        moment = parse_time(text)
    except InvalidArgument:
        return
    assert parse_time(format_time(moment)) == moment


# -- exchanged histories --------------------------------------------------------------------------


@examples(75)
@given(legal_histories(), st.data())
def test_an_exchanged_history_comes_back_equal_and_byte_for_byte(
    history: list[NewEvent], data: st.DataObject
) -> None:
    stored = envelopes(*history)
    for one in stored:
        one.schema_version = data.draw(st.sampled_from([None, 1]))
    text = dump_history(stored)
    back = load_history(text)
    assert back == stored
    assert [one.schema_version for one in back] == [one.schema_version for one in stored]
    assert [one.payload for one in back] == [one.payload for one in stored]
    assert dump_history(back) == text


@examples(100)
@given(
    st.dictionaries(any_text.filter(lambda name: name != "type"), json_values, max_size=4),
    plain_text,
    st.sampled_from(["Z", ".5Z", ".123456789Z", "+02:00", ".000-11:30"]),
    st.booleans(),
)
def test_whatever_another_engine_wrote_compactly_is_written_again_byte_for_byte(
    payload: dict[str, Any], kind: str, zone: str, escaped: bool
) -> None:
    event = {"type": kind, **payload}
    event_text = json.dumps(event, separators=(",", ":")) if escaped else jsontext.encode(event)
    text = (
        '{"run_id":"r","sequence":1,"event_id":"0b0a4d0e-5f0d-4a45-9d9e-9f7a5b1f1c11",'
        f'"timestamp":"2026-03-01T12:00:00{zone}","event":{event_text}}}\n'
    )
    (envelope,) = load_history(text)
    if jsontext.encode(kind) in text:
        assert dump_history([envelope]) == text
    assert exact(envelope.data) == exact(payload)


@examples(100)
@given(legal_histories(4), st.data())
def test_a_damaged_text_is_a_history_or_the_one_error_that_names_a_line(
    history: list[NewEvent], data: st.DataObject
) -> None:
    text = dump_history(envelopes(*history))
    place = data.draw(st.integers(0, len(text) - 1))
    width = data.draw(st.integers(0, 3))
    patch = data.draw(st.text(st.sampled_from('{}[]",:\\\n 0anull\ud800'), max_size=3))
    message = ""
    try:
        load_history(text[:place] + patch + text[place + width :])
    except SerializationError as error:
        message = str(error)
    assert message == "" or message.startswith("line ")

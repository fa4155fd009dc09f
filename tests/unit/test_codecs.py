"""Chains of codecs: what is sealed comes back at its own place, and nowhere else."""

import base64
import subprocess
import sys
import zlib
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flowpg.errors import EngineFault, InvalidArgument, UndecodablePayload, UnknownKey
from flowpg.model import codecs
from flowpg.model.codecs import (
    HOOK_PAYLOAD,
    NO_CODECS,
    RUN_ERROR,
    STEP_INPUT,
    STEP_OUTPUT,
    CodecChain,
    Compression,
)
from flowpg.model.encryption import Encryption

OLD, NEW = bytes(range(32)), bytes(range(32, 64))
CHAIN = CodecChain([Compression(least=0), Encryption({"old": OLD})])
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)  # fmt: skip


@given(value=JSON, subject=st.text(max_size=5))
def test_what_is_sealed_comes_back(value: Any, subject: str) -> None:
    sealed = CHAIN.seal(value, "run", STEP_INPUT, subject)
    assert codecs.is_sealed(sealed)
    assert CHAIN.open(sealed, "run", STEP_INPUT, subject) == value
    assert CHAIN.seal(value, "run", STEP_INPUT, subject) == sealed
    assert CHAIN.seal(sealed, "run", STEP_INPUT, subject) == sealed


@pytest.mark.parametrize(
    "place",
    [
        ("other", STEP_OUTPUT, "s"),
        ("run", STEP_INPUT, "s"),
        ("run", STEP_OUTPUT, "t"),
        ("run", HOOK_PAYLOAD, "s"),
        ("run", STEP_OUTPUT + "s", ""),
    ],
)
def test_a_value_that_was_moved_does_not_decrypt(place: tuple[str, str, str]) -> None:
    sealed = CHAIN.seal("secret", "run", STEP_OUTPUT, "s")
    with pytest.raises(UndecodablePayload, match="belongs to another run or event") as caught:
        CHAIN.open(sealed, *place)
    assert repr(place[0]) in str(caught.value)
    assert not isinstance(caught.value, UnknownKey)


def test_a_changed_bit_anywhere_is_found() -> None:
    sealed = CHAIN.seal({"a": 1}, "run", STEP_OUTPUT, "s")
    raw = base64.b64decode(sealed["v"])
    for at in range(len(raw)):
        changed = bytearray(raw)
        changed[at] ^= 1
        with pytest.raises(UndecodablePayload):
            CHAIN.open({**sealed, "v": base64.b64encode(changed).decode()}, "run", STEP_OUTPUT, "s")


@pytest.mark.parametrize(
    "broken",
    [
        {"$": "sealed"},
        {"$": "sealed", "c": [], "v": 1},
        {"$": "sealed", "c": 3, "v": ""},
        {"$": "sealed", "c": [], "v": "?"},
        {"$": "sealed", "c": [], "v": "bm8="},
        {"$": "sealed", "c": ["zlib"], "v": "AAAA"},
        {"$": "sealed", "c": ["zlib"], "v": base64.b64encode(zlib.compress(b"1")[:-1]).decode()},
        {"$": "sealed", "c": ["aes-gcm:old"], "v": "AAAA"},
        {"$": "sealed", "c": ["rot13"], "v": "AAAA"},
    ],
)
def test_malformed_values_are_undecodable(broken: dict[str, Any]) -> None:
    with pytest.raises(UndecodablePayload, match=r"run\.output.*run 'r'") as caught:
        CHAIN.open(broken, "r", "run.output")
    assert isinstance(caught.value, EngineFault)


def test_keys_are_rotated() -> None:
    sealed = CHAIN.seal("v", "run", STEP_OUTPUT, "s")
    both = CodecChain([Encryption({"old": OLD, "new": NEW})])
    assert both.open(sealed, "run", STEP_OUTPUT, "s") == "v"
    both = CodecChain([Compression(), Encryption({"old": OLD, "new": NEW})])
    assert both.open(sealed, "run", STEP_OUTPUT, "s") == "v"
    newer = both.seal("v", "run", STEP_OUTPUT, "s")
    assert newer["c"] == ["aes-gcm:new"]
    with pytest.raises(UnknownKey, match="key 'new', which this process does not have"):
        CHAIN.open(newer, "run", STEP_OUTPUT, "s")
    careful = CodecChain([Encryption({"old": OLD, "new": NEW}, encrypt_with="old")])
    assert careful.seal("v", "run", STEP_OUTPUT, "s")["c"] == ["aes-gcm:old"]


def test_a_key_that_appears_later_is_found() -> None:
    keys = {"old": OLD}
    chain = CodecChain([Encryption(keys)])
    sealed = CodecChain([Encryption({"new": NEW})]).seal(1, "run", STEP_OUTPUT)
    with pytest.raises(UnknownKey):
        chain.open(sealed, "run", STEP_OUTPUT)
    keys["new"] = NEW
    assert chain.open(sealed, "run", STEP_OUTPUT) == 1
    keys["new"] = OLD  # another key under the same id
    with pytest.raises(UndecodablePayload, match="another key of the same id"):
        chain.open(sealed, "run", STEP_OUTPUT)


def test_short_values_and_those_that_do_not_shrink_are_not_compressed() -> None:
    chain = CodecChain([Compression()])
    assert chain.seal("short", "run", STEP_OUTPUT)["c"] == []
    assert chain.seal("long" * 1000, "run", STEP_OUTPUT)["c"] == ["zlib"]
    assert len(chain.seal("long" * 1000, "run", STEP_OUTPUT)["v"]) < 200


def test_a_bomb_is_not_expanded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(codecs, "MAX_EXPANDED", 1000)
    chain = CodecChain([Compression()])
    sealed = chain.seal("x" * 2000, "run", STEP_OUTPUT)
    with pytest.raises(UndecodablePayload, match="longer than 1000 bytes"):
        chain.open(sealed, "run", STEP_OUTPUT)


@pytest.mark.parametrize("length", [0, 10, 5_000, 100_000])
def test_error_texts_keep_their_type_and_fit_into_an_event(length: int) -> None:
    noise = "".join(chr(33 + (n * n * 7919 + n) % 90) for n in range(length))
    body = f"{noise}\n  caused by KeyError: 'x'\nflowpg.error: {{}}"
    for chain in (CHAIN, CodecChain([Encryption({"old": OLD})])):
        sealed = chain.seal_error(body, "run", RUN_ERROR)
        assert len(sealed) <= 30_100
        assert "caused" not in sealed
        found = chain.open_error(f"ValueError: {sealed}", "run", RUN_ERROR)
        assert found.startswith("ValueError: ")
        if length < 10_000:
            assert found == f"ValueError: {body}"
        else:
            assert found.endswith("\nflowpg.error: {}")
    assert CHAIN.open_error("ValueError: plain", "run", RUN_ERROR) == "ValueError: plain"
    assert NO_CODECS.seal_error(body, "run", RUN_ERROR) == body


def test_answers_are_sealed_by_hook_or_by_token() -> None:
    fake = {"$": "sealed", "c": [], "v": "MQ=="}
    for sealed in (
        CHAIN.seal_answer(fake, "run", "approval"),
        CHAIN.seal_answer_by_token("the token", fake),
    ):
        assert "the token" not in str(sealed)
        assert CHAIN.open_answer(sealed, "run", "approval", "the token") == fake
        with pytest.raises(UndecodablePayload):
            CHAIN.open_answer(sealed, "other", "other", "other token")


def test_without_codecs_nothing_is_sealed_and_plain_values_are_read() -> None:
    assert NO_CODECS.seal({"a": 1}, "run", STEP_OUTPUT) == {"a": 1}
    assert NO_CODECS.seal_answer({"a": 1}, "run", "h") == {"a": 1}
    assert CHAIN.open({"a": 1}, "run", STEP_OUTPUT) == {"a": 1}
    sealed = CHAIN.seal({"a": 1}, "run", STEP_OUTPUT)
    with pytest.raises(UndecodablePayload, match="codec 'aes-gcm', which is not here"):
        NO_CODECS.open(sealed, "run", STEP_OUTPUT)


@pytest.mark.parametrize(
    "make",
    [
        lambda: Encryption({}),
        lambda: Encryption({"a": b"short"}),
        lambda: Encryption({"a": OLD}, encrypt_with="b"),
        lambda: Encryption({"": OLD}),
        lambda: Encryption({"k" * 101: OLD}),
        lambda: Compression(least=-1),
        lambda: Compression(level=10),
        lambda: CodecChain([Compression(), Compression()]),
    ],
)
def test_bad_settings_are_refused(make: Any) -> None:
    with pytest.raises(InvalidArgument):
        make()


def test_no_key_is_ever_shown() -> None:
    shown = f"{Encryption({'old': OLD, 'new': NEW})!r}"
    assert shown == "<Encryption with key 'new' of 2>"


def test_the_package_is_needed_for_encryption_alone() -> None:
    program = (
        "import sys; sys.modules['cryptography'] = None\n"
        "import flowpg\n"
        "from flowpg.model.codecs import CodecChain, Compression\n"
        "CodecChain([Compression()])\n"
        "from flowpg.model.encryption import Encryption\n"
        "try: Encryption({'a': bytes(32)})\n"
        "except flowpg.InvalidArgument as error: print(error)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False
    )
    assert "pip install 'flowpg[encryption]'" in done.stdout, done.stderr


def test_the_stored_form_is_the_documented_one() -> None:
    """Whoever wants to read a database without flowpg can."""
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM

    chain = CodecChain([Encryption({"k": OLD})])
    sealed = chain.seal({"a": [1]}, "run-1", STEP_OUTPUT, "charge#1")
    assert (sealed["$"], sealed["c"]) == ("sealed", ["aes-gcm:k"])
    raw = base64.b64decode(sealed["v"])
    place = b"flowpg.value.v1"
    for part in (b"run-1", b"step.output", b"charge#1"):
        place += len(part).to_bytes(4, "big") + part
    assert AESGCM(OLD).decrypt(raw[:12], raw[12:], place) == b'{"a":[1]}'

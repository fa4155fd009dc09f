"""What was stored once is repeated by the code of today."""

import pytest

from flowpg import dump_history, load_history
from flowpg.testing import replay
from tests.behaviours.programs import PROGRAMS, app
from tests.behaviours.recording import HISTORIES, record


@pytest.mark.parametrize("name", PROGRAMS)
async def test_a_history_that_was_kept_is_repeated_by_the_code_of_today(name: str) -> None:
    kept = HISTORIES / f"{name}.jsonl"
    await replay(app, kept)
    # And is written as it was read.
    text = kept.read_text()
    assert dump_history(load_history(text)) == text


def test_every_kept_history_has_its_program() -> None:
    assert sorted(path.stem for path in HISTORIES.glob("*.jsonl")) == sorted(PROGRAMS)


async def test_a_program_has_one_history_however_often_it_is_recorded() -> None:
    for name in PROGRAMS:
        first, again = await record(name), await record(name)
        assert first == again

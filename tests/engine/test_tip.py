"""What a drive begins with: a history and the row of its run, read in one moment."""

from dataclasses import replace

import pytest

from flowpg.engine.tip import RunTip
from flowpg.errors import InvalidTransition
from tests.engine.support import SPEC, EngineStore, Script, echo, one_step


@pytest.mark.parametrize("by", [-1, 1])
async def test_a_row_and_a_history_that_someone_has_set_apart_are_refused_with_both_numbers(
    engine_store: EngineStore, by: int
) -> None:
    engine = await engine_store.engine(Script(one_step(), {"work": echo}))
    run_id = await engine.start(SPEC)
    loaded = (await engine.store.load_runs([run_id]))[run_id]
    assert RunTip(loaded).stored == loaded.head_sequence
    said = f"ends at event {loaded.head_sequence}, but its row says {loaded.head_sequence + by}"
    with pytest.raises(InvalidTransition, match=said) as refused:
        RunTip(replace(loaded, head_sequence=loaded.head_sequence + by))
    assert refused.value.run_id == run_id

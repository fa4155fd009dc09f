"""Differences between history and replay are shown; hook tokens in them never are."""

from collections.abc import Callable
from typing import Any

import pytest

from flowpg.errors import NonDeterministic
from flowpg.model import events
from flowpg.model.operations import ChildOperationReference, WorkflowProgress
from flowpg.model.retry import DEFAULT_RETRY
from tests.unit.histories import plan, running

TOLD: dict[str, tuple[Callable[[str], events.NewEvent], Callable[[Any, str], Any]]] = {
    "a step": (
        lambda token: events.step_created("s", "mail", {"link": f"/{token}"}, DEFAULT_RETRY.wire()),
        lambda ctx, token: ctx.schedule_step("s", "mail", {"link": f"/other/{token}"}),
    ),
    "a progress report": (
        lambda token: events.NewEvent(
            events.RUN_PROGRESS_RECORDED,
            {"progress": {"progress_id": "p", "completed": 1, "details": token}},
        ),
        lambda ctx, token: ctx.record_progress(
            WorkflowProgress(progress_id="p", completed=2, details=token)
        ),
    ),
    "a link": (
        lambda token: events.NewEvent(
            events.CHILD_OPERATION_LINKED,
            {"child": {"reference_id": "c", "kind": "k", "operation_id": "o", "metadata": token}},
        ),
        lambda ctx, token: ctx.link_child_operation(
            ChildOperationReference(
                reference_id="c", kind="other", operation_id="o", metadata=token
            )
        ),
    ),
    "the metadata of another hook": (
        lambda token: events.hook_created("g", "token", {"beside": token}),
        lambda ctx, token: ctx.create_hook("g", "token", {"instead": token}),
    ),
}


@pytest.mark.parametrize("teller", TOLD)
@pytest.mark.parametrize("token", ['s3cret"tok\\en', "s3cret-token"])
def test_a_token_is_redacted_wherever_a_difference_tells_of_it(teller: str, token: str) -> None:
    recorded, again = TOLD[teller]
    known = running(events.hook_created("h", token, None), recorded(token))
    with pytest.raises(NonDeterministic) as caught:
        plan(known, lambda ctx: again(ctx, token))
    assert "s3cret" not in str(caught.value)

    decided = running(recorded(token))
    with pytest.raises(NonDeterministic) as caught:
        plan(decided, lambda ctx: again(ctx, token), lambda ctx: ctx.create_hook("h", token))
    assert "s3cret" not in str(caught.value)


def test_a_hook_that_has_no_token_hides_nothing() -> None:
    run = running(
        events.hook_conflicted("h", "owner", "theirs"),
        events.step_created("s", "work", {}, DEFAULT_RETRY.wire()),
    )
    with pytest.raises(NonDeterministic, match='history="work"; replay="other"'):
        plan(run, lambda ctx: ctx.schedule_step("s", "other"))


def test_a_token_that_is_part_of_another_leaves_nothing_of_it() -> None:
    run = running(
        events.hook_created("h", "s3c", None),
        events.hook_created("g", "s3cret", None),
        events.step_created("s", "s3cret", {"s3cret": 1}, DEFAULT_RETRY.wire()),
    )
    with pytest.raises(NonDeterministic) as caught:
        plan(run, lambda ctx: ctx.schedule_step("s", "other"))
    assert 'history="<redacted>"' in str(caught.value)
    assert "ret" not in str(caught.value).partition("history=")[2]
    with pytest.raises(NonDeterministic) as caught:
        plan(run, lambda ctx: ctx.schedule_step("s", "s3cret", {}))
    assert "differs at $.<redacted> (history: number; replay: absent)" in str(caught.value)

"""Group commit: appends share calls, keep their order, and fail on their own."""

import asyncio
from collections.abc import Sequence
from datetime import UTC, datetime

import pytest

from flowpg.errors import InvalidArgument, SchemaBehind, StoreError, StoreUnavailable
from flowpg.model import events
from flowpg.model.records import Append, AppendOutcome, AppendResult
from flowpg.postgres.group_commit import MAX_RUNS, GroupCommit
from tests.waiting import turns


class Server:
    """Answers calls when the test says so."""

    def __init__(self) -> None:
        self.calls: list[list[str]] = []
        self.waiting: list[asyncio.Future[None]] = []
        self.poison: set[str] = set()
        self.error: Exception = InvalidArgument("refused")

    async def send(self, appends: Sequence[Append]) -> list[AppendResult]:
        self.calls.append([name(append) for append in appends])
        gate: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.waiting.append(gate)
        await gate
        if self.poison & {append.run_id for append in appends}:
            raise self.error
        at = datetime(2030, 1, 1, tzinfo=UTC)
        return [AppendResult(append.run_id, AppendOutcome.APPENDED, 7, at) for append in appends]

    async def answer(self) -> None:
        """Let every call that is in flight end, and what follows from that happen."""
        gates, self.waiting = self.waiting, []
        for gate in gates:
            gate.set_result(None)
        await settle()

    async def answer_all(self) -> None:
        while self.waiting:
            await self.answer()


def name(append: Append) -> str:
    return f"{append.run_id}{append.expected or ''}"


def append(run_id: str, number: int | None = None) -> Append:
    return Append(run_id, [events.run_started()], number)


async def settle() -> None:
    """Let everything run that can run now."""
    await turns(10)


@pytest.fixture
def server() -> Server:
    return Server()


@pytest.fixture
def group(server: Server) -> GroupCommit:
    return GroupCommit(server.send)


async def test_a_lone_append_is_sent_at_once(server: Server, group: GroupCommit) -> None:
    task = asyncio.create_task(group.append(append("a")))
    await settle()
    assert server.calls == [["a"]]
    await server.answer()
    assert (await task).run_id == "a"


async def test_appends_made_together_share_a_call(server: Server, group: GroupCommit) -> None:
    tasks = [asyncio.create_task(group.append(append(run_id))) for run_id in "abc"]
    await settle()
    assert server.calls == [["a", "b", "c"]]
    await server.answer()
    assert [(await task).run_id for task in tasks] == ["a", "b", "c"]


async def test_at_most_two_calls_are_in_flight_while_others_collect(
    server: Server, group: GroupCommit
) -> None:
    tasks = []
    for run_id in "abcd":
        tasks.append(asyncio.create_task(group.append(append(run_id))))
        await settle()
    assert server.calls == [["a"], ["b"]]
    await server.answer()
    assert server.calls == [["a"], ["b"], ["c", "d"]]
    await server.answer_all()
    await asyncio.gather(*tasks)


async def test_a_call_holds_a_hundred_runs_at_most(server: Server, group: GroupCommit) -> None:
    tasks = [asyncio.create_task(group.append(append(f"r{number}"))) for number in range(220)]
    await settle()
    assert [len(call) for call in server.calls] == [MAX_RUNS, MAX_RUNS]
    await server.answer_all()
    assert sum(len(call) for call in server.calls) == 220
    await asyncio.gather(*tasks)


async def test_appends_of_one_run_go_into_different_calls_in_order(
    server: Server, group: GroupCommit
) -> None:
    order = [append("a", 1), append("a", 2), append("b", 1), append("a", 3), append("b", 2)]
    tasks = [asyncio.create_task(group.append(item)) for item in order]
    await settle()
    # Two calls could be in flight, but the second append of a run waits for the first's answer.
    assert server.calls == [["a1", "b1"]]
    await server.answer()
    assert server.calls[1] == ["a2", "b2"]
    await server.answer_all()
    assert server.calls[2] == ["a3"]
    await asyncio.gather(*tasks)


async def test_a_later_append_does_not_overtake_one_that_was_passed_over(
    server: Server, group: GroupCommit
) -> None:
    tasks = [asyncio.create_task(group.append(append("a", 1)))]
    await settle()
    tasks += [asyncio.create_task(group.append(append("a", number))) for number in (2, 3)]
    tasks.append(asyncio.create_task(group.append(append("b"))))
    await settle()
    assert server.calls == [["a1"], ["b"]]
    await server.answer()
    assert server.calls[2:] == [["a2"]]
    await server.answer_all()
    assert server.calls[3:] == [["a3"]]
    await asyncio.gather(*tasks)


async def test_a_refused_call_is_repeated_one_by_one_so_that_only_the_culprit_fails(
    server: Server, group: GroupCommit
) -> None:
    server.poison = {"b"}
    tasks = [asyncio.create_task(group.append(append(run_id))) for run_id in "abc"]
    await settle()
    await server.answer_all()
    results = await asyncio.gather(*tasks, return_exceptions=True)
    assert isinstance(results[1], InvalidArgument)
    assert [isinstance(result, AppendResult) for result in results] == [True, False, True]
    assert server.calls == [["a", "b", "c"], ["a"], ["b"], ["c"]]


@pytest.mark.parametrize(
    "error", [StoreUnavailable("lost"), SchemaBehind("odd answer"), KeyError("bug")]
)
async def test_a_call_with_an_unknown_outcome_is_not_repeated(
    server: Server, group: GroupCommit, error: Exception
) -> None:
    server.poison, server.error = {"b"}, error
    tasks = [asyncio.create_task(group.append(append(run_id))) for run_id in "abc"]
    await settle()
    await server.answer_all()
    results = await asyncio.gather(*tasks, return_exceptions=True)
    assert [type(result) for result in results] == [type(error)] * 3
    assert server.calls == [["a", "b", "c"]]


async def test_a_failed_call_fails_only_its_own_members(server: Server, group: GroupCommit) -> None:
    server.poison, server.error = {"a"}, StoreUnavailable("lost")
    first = asyncio.create_task(group.append(append("a")))
    await settle()
    second = asyncio.create_task(group.append(append("b")))
    await settle()
    third = asyncio.create_task(group.append(append("c")))
    await server.answer_all()
    await settle()
    await server.answer_all()
    results = await asyncio.gather(first, second, third, return_exceptions=True)
    assert [isinstance(result, AppendResult) for result in results] == [False, True, True]


async def test_members_of_a_lost_call_get_an_exception_each(
    server: Server, group: GroupCommit
) -> None:
    server.poison, server.error = {"a"}, StoreUnavailable("lost")
    tasks = [asyncio.create_task(group.append(append(run_id))) for run_id in "ab"]
    await settle()
    await server.answer_all()
    first, second = await asyncio.gather(*tasks, return_exceptions=True)
    assert first is not second
    assert str(first) == str(second) == "lost"


async def test_an_append_cancelled_before_it_is_sent_is_never_sent(
    server: Server, group: GroupCommit
) -> None:
    tasks = [asyncio.create_task(group.append(append(run_id))) for run_id in "ab"]
    await settle()
    tasks += [asyncio.create_task(group.append(append(run_id))) for run_id in "cd"]
    await settle()  # c and d are in the second call
    late = [asyncio.create_task(group.append(append(run_id))) for run_id in "ef"]
    await settle()
    late[0].cancel()
    await settle()
    await server.answer_all()
    assert server.calls == [["a", "b"], ["c", "d"], ["f"]]
    assert late[0].cancelled()
    assert (await late[1]).appended
    await asyncio.gather(*tasks)


async def test_an_append_cancelled_in_flight_does_not_harm_its_neighbours(
    server: Server, group: GroupCommit
) -> None:
    tasks = [asyncio.create_task(group.append(append(run_id))) for run_id in "abc"]
    await settle()
    tasks[1].cancel()
    await settle()
    await server.answer_all()
    results = await asyncio.gather(*tasks, return_exceptions=True)
    assert isinstance(results[1], asyncio.CancelledError)
    assert (await tasks[0]).appended
    assert (await tasks[2]).appended


async def test_closing_waits_for_what_is_in_flight_and_refuses_more(
    server: Server, group: GroupCommit
) -> None:
    task = asyncio.create_task(group.append(append("a")))
    await settle()
    closing = asyncio.create_task(group.close())
    await settle()
    assert not closing.done()
    with pytest.raises(StoreError, match="closed"):
        await group.append(append("b"))
    await server.answer_all()
    await closing
    assert (await task).appended


async def test_an_append_made_in_the_moment_all_calls_end_is_sent(server: Server) -> None:
    commits = GroupCommit(server.send)

    async def twice() -> None:
        await commits.append(append("a", 1))
        await commits.append(append("a", 2))  # at once, when the calls have only just ended

    work = [asyncio.create_task(twice())]
    await settle()
    work.append(asyncio.create_task(once(commits)))
    await settle()
    assert server.calls == [["a1"], ["b1"]]
    await server.answer()
    assert server.calls == [["a1"], ["b1"], ["a2"]]
    await server.answer_all()
    await asyncio.gather(*work)


async def once(commits: GroupCommit) -> None:
    """One append and no more."""
    await commits.append(append("b", 1))

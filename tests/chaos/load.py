"""The clients of a storm: they start runs, answer them in bursts, call them off."""

import asyncio
import contextlib
from collections import Counter
from dataclasses import dataclass, field
from random import Random
from typing import Any

from flowpg.engine.flow_engine import FlowEngine
from flowpg.errors import (
    HookConflict,
    HookTokenNotFound,
    InvalidTransition,
    RunTerminal,
    StoreUnavailable,
)
from flowpg.model.events import HOOK_RECEIVED, WAIT_COMPLETED, FlowEventEnvelope
from flowpg.model.snapshot import RunStatus, WorkflowRunSnapshot
from tests.chaos import workload
from tests.waiting import until_async
from tests.weather import pause

_KINDS = ("chain", "chain", "spread", "race", "ask", "called_off")
_BURST = 5
_LOOK_AGAIN = 0.2
_PATIENCE = 3600
"""Seconds; what a storm is given to end in is its own."""


@dataclass
class Load:
    """Starts runs until it is stopped; ``started`` are those a client was told of."""

    engine: FlowEngine
    random: Random
    prefix: str = "storm"
    started: dict[str, tuple[str, int]] = field(default_factory=dict)
    answers: Counter[str] = field(default_factory=Counter)
    _clients: set[asyncio.Task[None]] = field(default_factory=set)

    async def start(self) -> None:
        """One more run, and whoever answers it."""
        number = len(self.started)
        kind = self.random.choice(_KINDS)
        run_id = f"{self.prefix}-{number}-{kind}"
        workflow = getattr(workload, kind)
        await self._sure(
            lambda: self.engine.start_with_id(run_id, workflow.spec, workflow.input(number))
        )
        self.started[run_id] = (kind, number)
        if kind in ("race", "ask", "called_off"):
            task = asyncio.ensure_future(getattr(self, f"_{kind}")(run_id, number))
            self._clients.add(task)

    async def finish(self, seconds: float) -> list[str]:
        """Wait until every run has ended; returns those that have not in this time."""
        open_runs = set(self.started)

        async def ended() -> bool:
            for run_id in sorted(open_runs):
                info = await self._sure(lambda run_id=run_id: self.engine.run_info(run_id))
                if info.status.terminal:
                    open_runs.discard(run_id)
            return not open_runs

        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await until_async(ended, "every run has ended", _PATIENCE, _LOOK_AGAIN)
        for result in await self.close():
            if isinstance(result, Exception):
                raise result
        return sorted(open_runs)

    async def close(self) -> list[BaseException | None]:
        """Send the clients home; returns how each of them ended."""
        for task in self._clients:
            task.cancel()
        return await asyncio.gather(*self._clients, return_exceptions=True)

    # -- clients --------------------------------------------------------------------------------

    async def _race(self, run_id: str, number: int) -> None:
        # Around the deadline, so that either may win.
        await pause(workload.TIMER + self.random.uniform(0, 1.5))
        await self._burst(f"race-{number}", number)

    async def _ask(self, run_id: str, number: int) -> None:
        for name in ("first", "second"):

            async def answered(name: str = name) -> bool:
                if await self._burst(f"{name}-{number}", f"{name} {number}"):
                    return True
                info = await self._sure(lambda: self.engine.run_info(run_id))
                return bool(info.status.terminal)

            await until_async(answered, f"{run_id} is answered", _PATIENCE, _LOOK_AGAIN)

    async def _called_off(self, run_id: str, number: int) -> None:
        await pause(self.random.uniform(0, 2))
        await self._sure(lambda: self.engine.request_cancellation(run_id, "storm"))

    async def _burst(self, token: str, payload: Any) -> bool:
        """The same answer several times at once; whether any came through or was known."""
        answers = [self._answer(token, payload) for _ in range(_BURST)]
        return any(await asyncio.gather(*answers))

    async def _answer(self, token: str, payload: Any) -> bool:
        try:
            await self._sure(lambda: self.engine.resume_hook_by_token(token, payload))
        except (HookTokenNotFound, HookConflict, RunTerminal, InvalidTransition) as error:
            self.answers[type(error).__name__] += 1
            return False
        self.answers["answered"] += 1
        return True

    async def _sure(self, verb: Any) -> Any:
        """Repeat a verb until the server has answered: every one may be repeated."""

        async def said() -> tuple[Any] | None:
            try:
                return (await verb(),)
            except StoreUnavailable:
                return None

        return (await until_async(said, "the server answers", _PATIENCE, _LOOK_AGAIN))[0]


def wrong_end(
    kind: str, number: int, snapshot: WorkflowRunSnapshot, history: list[FlowEventEnvelope]
) -> str | None:
    """What is wrong with how a run ended, None if nothing is."""
    if kind == "called_off":
        return None if snapshot.status is RunStatus.CANCELLED else f"ended {snapshot.status}"
    if snapshot.status is not RunStatus.COMPLETED:
        return f"ended {snapshot.status}: {snapshot.error}"
    wanted: Any
    if kind == "chain":
        wanted = number + 4
    elif kind == "spread":
        wanted = sum(number + n + 1 for n in range(5)) + 1
    elif kind == "ask":
        wanted = [f"first {number}", f"second {number}"]
    else:
        first = next(e.type for e in history if e.type in _RACERS)
        won = ["hook", number] if first == HOOK_RECEIVED else ["timer", None]
        wanted = [*won, number + 1]
    return None if snapshot.output == wanted else f"returned {snapshot.output}, not {wanted}"


_RACERS = (HOOK_RECEIVED, WAIT_COMPLETED)

"""One run of a test: answer it, cancel it, let it come to its end, look at it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Generic, TypeVar

from flowpg.authoring.workflows import WorkflowBase
from flowpg.errors import FlowError, InvalidArgument
from flowpg.model.events import FlowEventEnvelope
from flowpg.model.snapshot import WorkflowRunSnapshot

if TYPE_CHECKING:
    from flowpg.testing.environment import WorkflowEnvironment

R = TypeVar("R")


class RunWaits(FlowError):
    """The run waits for what the test has to bring: no deadline is left that the clock could jump
    to."""

    def __init__(self, run_id: str, waits_for: str) -> None:
        super().__init__(f"run {run_id!r} waits for {waits_for}, and no deadline is left")
        self.run_id = run_id


class TestedRun(Generic[R]):
    """A run that was started in an environment. Every method first lets happen what happens by
    itself; ``result`` lets time pass too."""

    __test__ = False  # for pytest: not a class of tests

    def __init__(
        self, env: WorkflowEnvironment, run_id: str, workflow: WorkflowBase[..., R] | None
    ) -> None:
        self._env = env
        self._workflow = workflow
        self.id = run_id

    async def result(self) -> R:
        """Let time pass until the run has ended, and return what its workflow returned (of a run
        that was started by its spec: its output).

        WorkflowFailed if it ended in another way, with the workflow's own error as its cause;
        RunWaits if it waits for an answer; the fault that blocks it, such as NonDeterministic.
        """
        snapshot = await self.finish()
        if self._workflow is None:
            return snapshot.output  # type: ignore[no-any-return]
        return self._workflow.result(snapshot)

    async def finish(self) -> WorkflowRunSnapshot:
        """Let time pass until the run has ended, however that is. RunWaits; its fault."""
        while True:
            if await self._ended():
                return await self.snapshot()
            if not await self._env.skip():
                snapshot = await self.snapshot()
                raise RunWaits(self.id, _waits_for(snapshot))

    async def snapshot(self) -> WorkflowRunSnapshot:
        """Where the run stands. Raises the fault that blocks it."""
        await self._settle()
        return await self._env.engine.snapshot(self.id)

    async def history(self) -> list[FlowEventEnvelope]:
        """Its events so far."""
        await self._env.settle()
        return await self._env.engine.history(self.id)

    async def hooks(self) -> list[str]:
        """The ids of the hooks that can be answered now."""
        return list((await self.snapshot()).open.hooks)

    async def answer(self, hook: str, value: Any) -> None:
        """Answer a hook by its name or id, with what a sender may send. InvalidArgument if the run
        has no such hook open, AnswerRejected if the answer does not fit it."""
        hook_id = await self._hook(hook)
        await self._env.engine.resume_hook(self.id, hook_id, value, drive=False)
        self._env.drive(self.id)
        await self._env.settle()

    async def withdraw(self, hook: str) -> None:
        """Withdraw a hook, as an operator may."""
        await self._env.engine.dispose_hook(self.id, await self._hook(hook), drive=False)
        self._env.drive(self.id)
        await self._env.settle()

    async def cancel(self, reason: str | None = None) -> None:
        """Ask the run to cancel; let it clean up."""
        await self._env.settle()
        await self._env.engine.request_cancellation(self.id, reason, drive=False)
        self._env.drive(self.id)
        await self._env.settle()

    async def _hook(self, wanted: str) -> str:
        found = await self.hooks()
        for hook_id in found:
            if hook_id == wanted or hook_id.rpartition("#")[0] == wanted:
                return hook_id
        opened = ", ".join(map(repr, found)) or "none"
        raise InvalidArgument(f"run {self.id!r} has no hook {wanted!r} open now; open: {opened}")

    async def _ended(self) -> bool:
        # Asked after every jump of the clock: it must not cost as much as the history is long.
        await self._settle()
        return (await self._env.engine.run_info(self.id)).status.terminal

    async def _settle(self) -> None:
        await self._env.settle()
        fault = self._env.fault(self.id)
        if fault is not None:
            raise fault

    def __repr__(self) -> str:
        return f"<run {self.id!r} under test>"


def _waits_for(snapshot: WorkflowRunSnapshot) -> str:
    hooks = ", ".join(map(repr, snapshot.open.hooks))
    if hooks:
        return f"an answer to the hook {hooks} (`await run.answer(...)`)"
    return f"something that never comes; it is {snapshot.status.value}"

"""Which steps of a run its driver leaves to workers of another queue."""

from __future__ import annotations

from flowpg.engine.commit import PatientStore
from flowpg.replay.plan import StepLaunch


class Routes:
    """Of one drive. A store without a queue of tasks leaves nothing to anybody: whoever drives the
    run then runs all of its steps."""

    def __init__(self, store: PatientStore, run_id: str) -> None:
        self._store = store
        self._run_id = run_id
        self._own = ""  # the queue of the run, once it was read
        self.doubts = True
        """Whether tasks of attempts that were begun before may be missing, as in a history that was
        imported. Not where this process has driven the run before."""

    async def take(self, launches: list[StepLaunch]) -> list[StepLaunch]:
        """Take those out of ``launches`` that are not to be launched here, and return the ones to
        make a task of. An attempt that was begun before has its task already."""
        if not self._store.routes:
            return []
        if not self._own:
            self._own = await self._store.queue_of(self._run_id)
        elsewhere = [step for step in launches if step.queue not in (None, self._own)]
        launches[:] = [step for step in launches if step.queue in (None, self._own)]
        begun = [step for step in elsewhere if step.again]
        if begun and self.doubts:
            self.doubts = False
            await self._store.ensure_tasks(self._run_id, begun)
        return [step for step in elsewhere if not step.again]

"""What steps at work say, as the store in memory keeps it."""

from __future__ import annotations

from collections.abc import Sequence

from flowpg.model.records import StepHeartbeat
from flowpg.store.memory_state import State


class StepMemory:
    """The part of the store that knows of heartbeats of steps."""

    _state: State

    async def record_heartbeats(self, beats: Sequence[StepHeartbeat]) -> list[str]:
        """Keep what steps at work say."""
        return [self._hear(beat) for beat in beats]

    async def step_heartbeat(self, run_id: str, step_id: str) -> str | None:
        """What the latest heartbeat of a step said."""
        return self._state.heartbeats.get((run_id, step_id))

    def _hear(self, beat: StepHeartbeat) -> str:
        run, key = self._state.runs.get(beat.run_id), (beat.run_id, beat.step_id)
        if run is None or run.lease_epoch != beat.epoch:
            return "lost"
        if beat.details is None:
            self._state.heartbeats.pop(key, None)
        elif run.terminal:
            return "lost"
        else:
            self._state.heartbeats[key] = beat.details
        return "recorded"

"""Heartbeats from a thread and over a connection of their own.

A step that blocks the event loop, or keeps the interpreter busy, would otherwise lose its lease
while it works. A loop that has not answered for very long is not trusted for ever, though: past
``max_wedged`` its leases run out, and other workers go on.
"""

from __future__ import annotations

import asyncio
import logging
import os
import sys
import threading
import traceback
from collections.abc import Sequence
from datetime import timedelta
from time import monotonic

from flowpg.authoring.errors import TurnTooLong
from flowpg.authoring.watchdog import open_turns
from flowpg.engine.errortext import blocked_delay, blocked_reason
from flowpg.engine.lease import OnHeartbeat
from flowpg.errors import FlowError, StoreUnavailable
from flowpg.model.arguments import MAX_PAGE
from flowpg.model.records import Heartbeat, RunLease
from flowpg.postgres import verbs
from flowpg.postgres.session import DirectSession
from flowpg.postgres.task_verbs import release_tasks

logger = logging.getLogger("flowpg.fleet.heartbeat")

_STUCK = 70
"""The exit code of a process that ends because workflow code blocks it."""

_LONGEST_REST = 6
"""As `blocked_delay` counts: the code that blocked this process would block the next one."""

_REPORT_AFTER = 5.0
"""Seconds that the event loop may be silent before its stack is logged."""


class HeartbeatThread:
    """Extends every held lease each ``interval`` to ``lease`` from then, as a ``Keeper`` does.

    To be made in the event loop whose drives it serves. ``max_wedged`` is how long that loop may
    give no sign of life before its leases are left to run out. With ``exits`` the process ends then
    if workflow code is what blocks it: that run is blocked, the others are given back at once.
    """

    def __init__(
        self,
        session: DirectSession,
        lease: timedelta,
        interval: timedelta,
        max_wedged: timedelta = timedelta(minutes=10),
        *,
        exits: bool = False,
    ) -> None:
        self._session = session
        self._lease = lease
        self._interval = interval.total_seconds()
        self._max_wedged = max_wedged.total_seconds()
        self._exits = exits
        self._loop = asyncio.get_running_loop()
        self._loop_thread = threading.get_ident()
        self._held: dict[tuple[str, int], tuple[RunLease, OnHeartbeat]] = {}
        self._lock = threading.Lock()
        self._calls = threading.Lock()
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None
        self._answered = monotonic()
        self._asked = False
        self._reported = False
        self._given_up = False

    def hold(self, lease: RunLease, on_heartbeat: OnHeartbeat) -> None:
        """Keep this lease until it is dropped; ``on_heartbeat`` gets the answer of each heartbeat,
        in the event loop."""
        with self._lock:
            self._held[lease.run_id, lease.epoch] = (lease, on_heartbeat)
        if self._thread is None:
            self._answered = monotonic()
            self._thread = threading.Thread(target=self._work, name="flowpg-beat", daemon=True)
            self._thread.start()

    def drop(self, lease: RunLease) -> None:
        """Stop extending this lease; it is neither given back nor released by that."""
        with self._lock:
            self._held.pop((lease.run_id, lease.epoch), None)

    async def close(self) -> None:
        """Stop the thread. Leases still held run out by themselves."""
        self._stop.set()
        thread, self._thread = self._thread, None
        if thread is not None:
            await asyncio.to_thread(thread.join, self._interval + 1)

    def give_back_all(self, stuck: TurnTooLong | None = None) -> int:
        """Give every held lease back, from any thread, for a process that ends without its event
        loop; returns how many were. Nothing may run under these leases any more. The run that is
        ``stuck`` is blocked."""
        self._stop.set()
        with self._lock:
            leases = [lease for lease, _ in self._held.values()]
            self._held.clear()
        blocked = stuck.run_id if stuck is not None else None
        at_once = [lease for lease in leases if lease.task_id and lease.run_id != blocked]
        given = 0
        with self._calls:
            try:
                held: list[bool] = self._session.run(release_tasks(at_once)) if at_once else []
            except FlowError as error:
                logger.warning("leases run out by themselves: %s", error)
                return given
            done = {lease.run_id for lease, was in zip(at_once, held, strict=True) if was}
            given += len(done)
            for lease in leases:
                if lease.run_id in done:
                    continue
                try:
                    delay, reason = timedelta(0), None
                    if stuck is not None and stuck.run_id == lease.run_id:
                        delay, reason = blocked_delay(_LONGEST_REST), blocked_reason(stuck)
                    given += self._session.run(verbs.give_back(lease, delay, reason))
                except StoreUnavailable as error:
                    logger.warning("leases run out by themselves: %s", error)
                    break
                except FlowError as error:
                    logger.warning("the lease of run %r was kept: %s", lease.run_id, error)
        return given

    @property
    def silent_for(self) -> float:
        """Seconds since the event loop last answered this thread, while leases are held."""
        return monotonic() - self._answered

    # -- in the thread --------------------------------------------------------------------------

    def _work(self) -> None:
        while not self._stop.wait(self._interval):
            try:
                self._look_at_loop()
                if not self._given_up:
                    self._beat()
            except StoreUnavailable as error:
                # The append's fence decides whether the leases were lost meanwhile.
                logger.warning("%d leases are not extended: %s", len(self._held), error)
            except FlowError as error:
                logger.error("leases could not be extended: %s", error)
            except Exception as error:  # noqa: BLE001  the next beat may do better than none
                if self._loop.is_closed():
                    break  # and with it every drive
                logger.error("leases could not be extended: %s", type(error).__name__)
        with self._calls:
            self._session.close()

    def _look_at_loop(self) -> None:
        silent = self.silent_for
        if not self._asked:
            self._asked = True
            self._loop.call_soon_threadsafe(self._alive)
        if silent > max(_REPORT_AFTER, 2 * self._interval) and not self._reported:
            self._reported = True
            logger.warning(
                "the event loop has been blocked for %.0f s, and every run of this worker with it; "
                "run what blocks it in a thread. It is here:\n%s",
                silent,
                _stack_of(self._loop_thread),
            )
        if silent > self._max_wedged and not self._given_up and self._held:
            self._given_up = True
            logger.error(
                "the event loop has been blocked for %.0f s: %d leases are no longer extended, "
                "other workers will take the runs",
                silent,
                len(self._held),
            )
            self._leave_if_stuck(silent)

    def _leave_if_stuck(self, silent: float) -> None:
        turn = open_turns.get(self._loop_thread)
        if self._exits and turn is not None:
            # Nothing in this process can interrupt it. Its other runs need not wait for that.
            given = self.give_back_all(TurnTooLong(turn.run_id, silent))
            logger.critical("%s blocks this process, which ends; %d runs go on", turn, given - 1)
            logging.shutdown()
            os._exit(_STUCK)

    def _alive(self) -> None:
        self._answered = monotonic()
        self._asked = self._reported = self._given_up = False

    def _beat(self) -> None:
        with self._lock:
            held = list(self._held.values())
        for start in range(0, len(held), MAX_PAGE):
            asked = held[start : start + MAX_PAGE]
            with self._calls:
                answers = self._session.run(
                    verbs.heartbeat([lease for lease, _ in asked], self._lease)
                )
            self._loop.call_soon_threadsafe(self._tell, asked, answers)

    def _tell(
        self, asked: Sequence[tuple[RunLease, OnHeartbeat]], answers: Sequence[Heartbeat]
    ) -> None:
        for (lease, on_heartbeat), answer in zip(asked, answers, strict=True):
            # Dropped while the call was on its way: its answer says nothing any more.
            if (lease.run_id, lease.epoch) in self._held:
                on_heartbeat(answer)


def _stack_of(thread: int) -> str:
    frame = sys._current_frames().get(thread)
    # Places in code alone: values of variables stay where they are.
    return "".join(traceback.format_stack(frame)[-8:]) if frame is not None else "(unknown)"

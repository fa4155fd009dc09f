"""Hooks whose code goes on when the history says whose their token is.

A decision is recorded whole, and only then are those hooks told, in the order of the log: what one
of them gives up may have been recorded beside it. So a turn and every replay of it do the same.
"""

from __future__ import annotations

from collections.abc import Iterator

from flowpg.authoring.ledger import Ledger
from flowpg.authoring.operations import HookOperation
from flowpg.authoring.seen import DECISIONS
from flowpg.errors import HookTokenConflict
from flowpg.model import events
from flowpg.model.records import AnyEvent
from flowpg.model.snapshot import HookSnapshot


class Claims:
    """What the history says of the tokens of hooks, until it is told."""

    __slots__ = ("_ledger", "_news", "_waiting")

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self._waiting: dict[str, HookOperation] = {}  # until their events come
        self._news: list[tuple[HookOperation, AnyEvent]] = []

    @property
    def open(self) -> bool:
        """Whether there is anything to be told, or to be waited for."""
        return bool(self._waiting or self._news)

    def wait_for(self, hook: HookOperation) -> None:
        """The code of this hook goes on when it is told."""
        self._waiting[hook.id] = hook

    def record(self, event: AnyEvent) -> None:
        """The ledger has recorded the hook of this event."""
        hook_id = event.data["hook_id"]
        waiting = self._waiting.pop(hook_id, None)
        if waiting is not None or event.type == events.HOOK_CONFLICTED:
            self._news.append((self._ledger.hooks[hook_id], event))

    def never_recorded(self, event: AnyEvent, hooks: dict[str, HookSnapshot]) -> bool:
        """Let the code of a hook go on that no event records, although this decision comes after
        it: its run was begun when that code did not wait, and gave the hook up in the same turn."""
        hook = self._ledger.next_hook() if event.type in DECISIONS else None
        if hook is None or hook.id in hooks or self._waiting.pop(hook.id, None) is None:
            return False
        if not hook.claimed.done():
            hook.claimed.set_result(None)
        return True

    def tell(self) -> Iterator[AnyEvent]:
        """Once a decision is recorded: tell one hook after the other, and yield its event before
        its code goes on."""
        if self._ledger.asks:
            return
        news, self._news = self._news, []
        self._waiting = {key: hook for key, hook in self._waiting.items() if not hook.dropped}
        for hook, event in news:
            if event.type == events.HOOK_CONFLICTED:
                self._refuse(hook, event)
            elif not hook.claimed.done():
                hook.claimed.set_result(None)
            else:
                continue
            yield event

    def _refuse(self, hook: HookOperation, event: AnyEvent) -> None:
        self._ledger.take_hook(hook.id)
        data = event.data
        error = HookTokenConflict("", data["owner_run_id"], data["owner_hook_id"])
        for future in (hook.claimed, hook.future):
            if future is not None and not future.done():
                future.set_exception(error)
                future.exception()  # a hook that is open need not be awaited

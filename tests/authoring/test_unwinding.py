"""Putting plain functions aside, in the middle of what the interpreter itself calls."""

import sys
from collections.abc import Iterator
from typing import Any

import pytest

from flowpg import sync
from flowpg.authoring.app import FlowApp
from tests.authoring.support import both


async def test_a_generator_whose_end_waits_is_put_aside_without_a_word(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    reported: list[Any] = []
    monkeypatch.setattr(sys, "unraisablehook", reported.append)

    def build(app: FlowApp) -> None:
        @app.step
        def work(x: int) -> int:
            return x

        def numbers() -> Iterator[int]:
            try:
                yield from map(work, range(9))
            finally:
                work(100)

        @app.workflow
        def main(start: int) -> list[int]:
            found = []
            try:
                with sync.timeout(5):
                    for number in numbers():  # nobody else refers to it
                        found.append(number)
                        sync.sleep(2)
            except TimeoutError:
                return found
            return []

    played = await both(build, 0)
    assert played.result == [0, 1, 2]
    assert played.types()[-2].startswith("step_completed work#")
    assert not reported

"""A client without codecs does not put an input beside sealed ones by mistake."""

from contextlib import nullcontext
from typing import Any

import psycopg
import pytest

from flowpg.client import FlowClient
from flowpg.errors import InvalidArgument, InvalidWorkflow
from flowpg.model.codecs import CodecChain, Compression
from flowpg.model.records import StartRequest
from flowpg.model.spec import WorkflowSpec
from flowpg.postgres.enlist import run_enlisted_sync

SEALING = [Compression(least=0)]
MAIN, OTHER = WorkflowSpec.python("main", "1"), WorkflowSpec.python("other", "1")


@pytest.mark.parametrize("enlisted", [False, True])
def test_a_run_beside_sealed_ones_is_refused_with_its_neighbours(
    direct_dsn: str, enlisted: bool
) -> None:
    with FlowClient(direct_dsn, codecs=SEALING) as sealing, FlowClient(direct_dsn) as client:
        first = sealing.start(MAIN, "x" * 100).run_id
        with psycopg.connect(direct_dsn) if enlisted else nullcontext() as own:
            for start in (
                lambda: client.start(MAIN, 1, connection=own),
                lambda: client.start_many(
                    [StartRequest(OTHER, 1), StartRequest(MAIN, 1)], connection=own
                ),
            ):
                with pytest.raises(InvalidArgument, match=f"'main', {first}, has sealed.*codecs="):
                    start()
        assert client.summary().total == 1


def test_what_is_sealed_already_or_meant_is_started(direct_dsn: str) -> None:
    sealed = CodecChain(SEALING).seal("x" * 100, "r", "run.input")
    with FlowClient(direct_dsn, codecs=SEALING) as sealing, FlowClient(direct_dsn) as client:
        sealing.start(MAIN, "x" * 100)
        # Whoever has sealed it needs no codecs to send it.
        assert client.start(MAIN, sealed, run_id="r").applied
        with FlowClient(direct_dsn, codecs=[]) as meant:
            assert meant.start(MAIN, 1).applied
        # By now the newest run has a plain input.
        assert client.start(MAIN, 2).applied


def test_each_workflow_is_looked_at_once(direct_dsn: str, monkeypatch: pytest.MonkeyPatch) -> None:
    sent: list[str] = []

    def watched(connection: Any, call: Any, *args: Any, **kwargs: Any) -> Any:
        sent.append(call.function.name)
        return run_enlisted_sync(connection, call, *args, **kwargs)

    monkeypatch.setattr("flowpg.client.run_enlisted_sync", watched)
    with FlowClient(direct_dsn, codecs=[]) as meant:
        meant.start(MAIN)
    assert sent == ["flow_start"]
    sent.clear()
    with FlowClient(direct_dsn) as client:
        client.start(MAIN)
        client.start_many([StartRequest(MAIN), StartRequest(MAIN)])
        client.start(MAIN)
        with pytest.raises(InvalidWorkflow):
            client.start(WorkflowSpec.python("", "1"))
    assert sent == ["flow_list_runs", "flow_history", "flow_start", "flow_start_many", "flow_start"]

"""The demo, whole, and its workflow in both styles."""

import subprocess
import sys
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from examples.invoice_approval import SPEC, InvoiceApproval
from examples.invoice_workflow import app, approve_invoice
from flowpg import FlowEngine, FlowRuntime, InMemoryEventStore
from flowpg.model.snapshot import WorkflowRunSnapshot
from flowpg.model.spec import WorkflowSpec
from flowpg.postgres.binaries import Binaries


def test_the_demo_kills_a_worker_and_the_run_completes(binaries: Binaries, tmp_path: Path) -> None:
    root = Path(__file__).parents[2]
    demo = subprocess.run(
        [sys.executable, "-m", "examples.demo"],
        cwd=tmp_path,
        env={
            "PATH": "/usr/bin:/bin",
            "PYTHONPATH": str(root),
            "FLOWPG_PG_BIN": str(binaries.directory),
        },
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert demo.returncode == 0, demo.stdout + demo.stderr
    assert "SIGKILL" in demo.stdout
    assert "completed" in demo.stdout
    assert "2026-0001 paid, approved by the demo" in demo.stdout


async def played(runtime: FlowRuntime, spec: WorkflowSpec, input: Any) -> WorkflowRunSnapshot:
    """A run whose timers pass at once and whose hook is answered."""
    store = InMemoryEventStore()
    async with FlowEngine(store, runtime) as engine:
        await engine.start_with_id("invoice-1", spec, input)
        while not (await engine.snapshot("invoice-1")).terminal:
            wakeup = await store.next_wakeup()
            if wakeup is not None:
                store.advance(max(wakeup.due_at - await store.now(), timedelta(0)))
                await engine.drive("invoice-1")
            else:
                await engine.resume_hook_by_token(
                    "approve-invoice-1", {"approved": True, "by": "ada"}
                )
        return await engine.snapshot("invoice-1")


async def test_both_styles_do_the_same_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("FLOWPG_DSN", raising=False)
    by_hand = await played(InvoiceApproval(), SPEC, {"invoice_id": "7"})
    written = await played(app, approve_invoice.spec, approve_invoice.input("7"))
    assert by_hand.output["paid"] is True
    assert written.output.startswith("7 paid, approved by ada")
    names = [
        step.step_name.replace("_invoice", "").replace("_vendor", "")
        for step in by_hand.steps.values()
    ]
    assert names == [step.step_name.replace("_vendor", "") for step in written.steps.values()]
    attempts = [step.attempt for step in by_hand.steps.values()]
    assert attempts == [step.attempt for step in written.steps.values()] == [1, 1, 1, 3, 1]

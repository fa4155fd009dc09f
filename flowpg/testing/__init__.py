"""What users test their workflows with.

``WorkflowEnvironment`` runs workflows in memory under a clock that jumps; ``Faults`` and
``every_fault`` let its process die or its commits get lost. ``replay`` replays a recorded history.
"""

from flowpg.testing.environment import WorkflowEnvironment
from flowpg.testing.faults import Fault, Faults, every_fault
from flowpg.testing.mocks import Call
from flowpg.testing.replaying import replay
from flowpg.testing.runs import RunWaits, TestedRun

__all__ = [
    "Call",
    "Fault",
    "Faults",
    "RunWaits",
    "TestedRun",
    "WorkflowEnvironment",
    "every_fault",
    "replay",
]

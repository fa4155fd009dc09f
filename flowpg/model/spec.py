"""What a run executes: its workflow's identity, fixed for the life of the run."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, model_serializer, model_validator

from flowpg.errors import InvalidTransition, InvalidWorkflow
from flowpg.model.ids import check_id


class WorkflowRuntime(BaseModel):
    """Where the workflow's code lives: the kind of runtime, an entry point and the name in it."""

    model_config = ConfigDict(frozen=True, extra="allow")

    type: Literal["python", "rust_embedded", "native_ts"] = "python"
    entrypoint: str
    export_name: str = "main"


class WorkflowSpec(BaseModel):
    """Name, version and runtime of a workflow, and the build it is pinned to, if any.

    Two starts of the same run id must carry equal specs. A spec that was written by hand, in SQL
    say, may leave the runtime out: it is then the one that ``python`` gives.
    """

    model_config = ConfigDict(frozen=True, extra="allow")

    name: str
    version: str
    runtime: WorkflowRuntime
    runtime_build: str | None = Field(default=None)

    @model_validator(mode="before")
    @classmethod
    def _usual_runtime(cls, given: Any) -> Any:
        if isinstance(given, dict) and isinstance(name := given.get("name"), str):
            return {"runtime": {"entrypoint": name}, **given}
        return given

    @classmethod
    def python(
        cls, name: str, version: str = "1", entrypoint: str | None = None, export_name: str = "main"
    ) -> WorkflowSpec:
        """A workflow in Python, found by its ``name``; the entry point is for readers."""
        return cls(
            name=name,
            version=version,
            runtime=WorkflowRuntime(entrypoint=entrypoint or name, export_name=export_name),
        )

    @classmethod
    def read(cls, wire: Any) -> WorkflowSpec:
        """The spec that a ``run_created`` event holds, checked. ValidationError or InvalidWorkflow.

        The runs of a workflow share one object: there are few specs and many runs.
        """
        key = repr(wire)
        spec = _read.get(key)
        if spec is None:
            spec = cls.model_validate(wire)
            spec.check()
            if not (spec.model_extra or spec.runtime.model_extra) and len(key) <= _LONGEST_KEY:
                if len(_read) >= _MAX_READ:
                    _read.clear()
                _read[key] = spec
        return spec

    def with_runtime_build(self, build: str) -> WorkflowSpec:
        """The same spec, pinned: only engines that admit ``build`` may replay its runs."""
        return self.model_copy(update={"runtime_build": build})

    def check(self) -> None:
        """InvalidWorkflow if a name, the version or the entry point is blank or not plain text."""
        try:
            check_id(self.name, "workflow name", 255)
            check_id(self.version, "workflow version", 255)
            check_id(self.runtime.entrypoint, "workflow entry point")
            check_id(self.runtime.export_name, "workflow export name")
            if self.runtime_build is not None:
                check_id(self.runtime_build, "runtime build", 128)
        except InvalidTransition as error:
            raise InvalidWorkflow(error.reason) from None

    @model_serializer(mode="plain")
    def _wire(self) -> dict[str, Any]:
        return self.wire()

    def wire(self) -> dict[str, Any]:
        """The JSON object of this spec; ``runtime_build`` is left out when there is none."""
        shape: dict[str, Any] = {
            "name": self.name,
            "version": self.version,
            "runtime": {
                "type": self.runtime.type,
                "entrypoint": self.runtime.entrypoint,
                "export_name": self.runtime.export_name,
                **(self.runtime.model_extra or {}),
            },
        }
        if self.runtime_build is not None:
            shape["runtime_build"] = self.runtime_build
        return {**shape, **(self.model_extra or {})}


# Of specs without members of their own, which are as unchangeable as they look.
_read: dict[str, WorkflowSpec] = {}
_MAX_READ = 1024
_LONGEST_KEY = 2048

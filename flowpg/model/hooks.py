"""What a hook tells operators and callback routers about itself; it never holds the token."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel, ConfigDict, Field


class HookCallbackRoute(BaseModel):
    """Method and path under which a host receives the callback; ``{token}`` marks the token."""

    model_config = ConfigDict(frozen=True)

    method: str
    path: str

    @classmethod
    def post(cls, path: str) -> HookCallbackRoute:
        """A POST route at ``path``."""
        return cls(method="POST", path=path)

    @classmethod
    def get(cls, path: str) -> HookCallbackRoute:
        """A GET route at ``path``."""
        return cls(method="GET", path=path)


class HookMetadata(BaseModel):
    """The usual shape of a hook's metadata; any JSON value is allowed in its place."""

    model_config = ConfigDict(frozen=True)

    kind: str
    label: str | None = None
    callback_route: HookCallbackRoute | None = None
    data: dict[str, Any] = Field(default_factory=dict)

    @classmethod
    def human_approval(cls, label: str) -> HookMetadata:
        """A person is asked to approve what ``label`` names."""
        return cls(kind="human_approval", label=label)

    @classmethod
    def webhook(cls, label: str) -> HookMetadata:
        """Another system calls back about what ``label`` names."""
        return cls(kind="webhook", label=label)

    def with_callback_route(self, route: HookCallbackRoute) -> HookMetadata:
        """The same metadata with a callback route."""
        return self.model_copy(update={"callback_route": route})

    def with_data(self, name: str, value: Any) -> HookMetadata:
        """The same metadata with one more data entry; ``value`` is any JSON value."""
        return self.model_copy(update={"data": {**self.data, name: value}})

    def wire(self) -> dict[str, Any]:
        """The JSON object of this metadata; absent parts are left out."""
        return self.model_dump(mode="json", exclude_none=True, exclude_defaults=False)

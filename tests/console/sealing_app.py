"""An application whose values are encrypted, and the same with another key."""

import contextlib
from typing import Any

from flowpg.authoring.app import FlowApp
from flowpg.authoring.context import hook
from flowpg.model.codecs import Compression
from flowpg.model.encryption import Encryption

CANARY = "canary-4711"
OLD, NEW = bytes(32), bytes(range(32))


def made(**keys: bytes) -> FlowApp:
    """The application with these keys, the last of which encrypts."""
    app = FlowApp("sealing", codecs=[Compression(), Encryption(keys)] if keys else [])

    @app.step
    async def double(text: str) -> str:
        return text * 2

    @app.step
    async def refuse(text: str) -> None:
        raise ValueError(text)

    @app.workflow
    async def main(text: str) -> list[Any]:
        doubled = await double(text)
        with contextlib.suppress(ValueError):
            await refuse(text)
        return [doubled, await hook("go", token=f"token of {text}")]

    @app.workflow
    async def failing(text: str) -> None:
        raise LookupError(await hook("why", str, token="the token") + text)

    return app


app = made(old=OLD)
rotated = made(old=OLD, new=NEW)
other = made(old=NEW)
keyless = made()

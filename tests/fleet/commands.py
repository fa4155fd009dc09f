"""``flowpg worker`` as a process, for tests that watch it from outside."""

import asyncio
import os
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

EXIT_SECONDS = 20


@asynccontextmanager
async def worker_process(
    dsn: str,
    *options: str,
    app: str = "tests.fleet.apps:Marked",
    says: bytes = b"worker on queue",
    environ: dict[str, str] | None = None,
) -> AsyncIterator[asyncio.subprocess.Process]:
    """A worker that is ready; killed at the end if it still runs."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "flowpg", "worker", "--app", app, *options),
        env={**os.environ, "FLOWPG_DSN": dsn, **(environ or {})},
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    try:
        await line(process.stderr, says)
        yield process
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()


async def line(stream: asyncio.StreamReader | None, wanted: bytes) -> bytes:
    """The first line from here on that holds ``wanted``."""
    assert stream is not None
    seen = []
    async with asyncio.timeout(EXIT_SECONDS):
        while found := await stream.readline():
            seen.append(found)
            if wanted in found:
                return found
    raise AssertionError(f"no line with {wanted!r} in {seen}")


async def exit_code(process: asyncio.subprocess.Process) -> int:
    """How the process ends; waited for with a deadline."""
    async with asyncio.timeout(EXIT_SECONDS):
        return await process.wait()

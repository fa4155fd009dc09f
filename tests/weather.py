"""How long a fault, a client or a step of a storm takes, drawn by lot.

These are no waits for a result: they are what is tested against. Everything else waits on a
condition (``tests/waiting.py``).
"""

import asyncio
import time


async def pause(seconds: float) -> None:
    """Let real time pass in the event loop."""
    await asyncio.sleep(seconds)


def pause_in_thread(seconds: float) -> None:
    """Let real time pass in a thread."""
    time.sleep(seconds)

"""What an event loop can do and a replay cannot: each method says what to write instead."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from flowpg.authoring.errors import NotDurable

_STEP = "do it in a step (@app.step) and await that"
_SIGNALS = "signals belong to the process; a run is told something through hook(...)"
_HOOK = "what comes from outside reaches a run through hook(...)"

REFUSED = {
    "call_soon_threadsafe": _HOOK,
    "run_in_executor": "a step that is a plain function runs in a thread: make the function one",
    "getaddrinfo": _STEP,
    "getnameinfo": _STEP,
    "create_connection": _STEP,
    "create_server": _HOOK,
    "sendfile": _STEP,
    "start_tls": _STEP,
    "create_unix_connection": _STEP,
    "create_unix_server": _HOOK,
    "connect_accepted_socket": _STEP,
    "create_datagram_endpoint": _STEP,
    "connect_read_pipe": _STEP,
    "connect_write_pipe": _STEP,
    "subprocess_shell": _STEP,
    "subprocess_exec": _STEP,
    "add_reader": _STEP,
    "remove_reader": _STEP,
    "add_writer": _STEP,
    "remove_writer": _STEP,
    "sock_recv": _STEP,
    "sock_recv_into": _STEP,
    "sock_recvfrom": _STEP,
    "sock_recvfrom_into": _STEP,
    "sock_sendall": _STEP,
    "sock_sendto": _STEP,
    "sock_connect": _STEP,
    "sock_accept": _HOOK,
    "sock_sendfile": _STEP,
    "add_signal_handler": _SIGNALS,
    "remove_signal_handler": _SIGNALS,
    "set_task_factory": "tasks of a run are made by the run",
    "set_default_executor": "steps that are plain functions have threads of their own",
    "run_forever": "the run is being driven already; await what is to be waited for",
    "run_until_complete": "the run is being driven already; await what is to be waited for",
    "stop": "return from the workflow, or raise, to end the run",
    "close": "return from the workflow, or raise, to end the run",
    "shutdown_default_executor": "steps that are plain functions have threads of their own",
}
"""Methods of ``asyncio.AbstractEventLoop`` that a run's loop refuses, and what to do instead."""


def _refusing(name: str, instead: str) -> Callable[..., Any]:
    def refuse(self: object, *args: object, **kwargs: object) -> Any:
        raise NotDurable(f"loop.{name}()", instead)

    refuse.__name__ = name
    return refuse


class RefusingLoop(asyncio.AbstractEventLoop):
    """Raises NotDurable where a real loop would touch the world."""


for _name, _instead in REFUSED.items():
    setattr(RefusingLoop, _name, _refusing(_name, _instead))

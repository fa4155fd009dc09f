"""What names in a source file stand for, and which of them workflow code had better not call."""

from __future__ import annotations

import ast
from typing import NamedTuple

from flowpg.authoring.hazards import CHANCE, IDS, IN_STEP, NOW, SECRET, SETTINGS, SLEEP, THREADS


class Rule(NamedTuple):
    """A code, and what to write instead."""

    code: str
    instead: str


CLOCK = Rule("FLW101", NOW)
RANDOM = Rule("FLW102", CHANCE)
SECRETS = Rule("FLW102", SECRET)
UUIDS = Rule("FLW103", IDS)
ENVIRONMENT = Rule("FLW104", SETTINGS)
BLOCKING = Rule("FLW105", SLEEP)
NETWORK = Rule("FLW106", IN_STEP)
FILES = Rule("FLW107", IN_STEP)
THREAD = Rule("FLW108", THREADS)
SET_ORDER = Rule("FLW109", "sort it: the order of a set is another one in every process")
SHARED = Rule("FLW110", "keep it in a local variable: every replay would change it again")
UNAWAITED = Rule("FLW111", "write `await`, or keep the task: nobody waits for it")
LOOP = Rule("FLW112", IN_STEP)

TITLES = {
    "FLW101": "the clock",
    "FLW102": "chance",
    "FLW103": "ids made by chance or the clock",
    "FLW104": "the environment of the process",
    "FLW105": "a sleep that blocks",
    "FLW106": "the network",
    "FLW107": "files and processes",
    "FLW108": "threads",
    "FLW109": "the order of a set",
    "FLW110": "state shared by all runs",
    "FLW111": "a step that is not awaited",
    "FLW112": "an asyncio call that is not durable",
}
"""What each rule looks for."""

_EXACT: dict[str, Rule] = {
    **dict.fromkeys(
        (
            "datetime.datetime.now", "datetime.datetime.utcnow", "datetime.datetime.today",
            "datetime.date.today", "time.time", "time.time_ns", "time.monotonic",
            "time.monotonic_ns", "time.perf_counter", "time.perf_counter_ns", "time.process_time",
            "time.localtime", "time.gmtime", "time.ctime",
        ),
        CLOCK,
    ),
    "time.sleep": BLOCKING,
    "os.urandom": SECRETS,
    "os.getenv": ENVIRONMENT,
    "os.environ": ENVIRONMENT,
    "sys.argv": ENVIRONMENT,
    **dict.fromkeys(("uuid.uuid1", "uuid.uuid4", "uuid.uuid6", "uuid.uuid7"), UUIDS),
    **dict.fromkeys(("open", "input", "io.open"), FILES),
    **dict.fromkeys(
        ("os." + name for name in (
            "open", "listdir", "scandir", "walk", "remove", "unlink", "rename", "replace", "mkdir",
            "makedirs", "rmdir", "stat", "system", "popen", "fork",
        )),
        FILES,
    ),
    **dict.fromkeys(
        ("asyncio." + name for name in (
            "open_connection", "open_unix_connection", "start_server", "start_unix_server",
            "create_subprocess_exec", "create_subprocess_shell", "run", "new_event_loop",
            "run_coroutine_threadsafe",
        )),
        LOOP,
    ),
}  # fmt: skip
_MODULES: dict[str, Rule] = {
    "random": RANDOM,
    "numpy.random": RANDOM,
    "secrets": SECRETS,
    **dict.fromkeys(("shutil", "subprocess", "tempfile"), FILES),
    **dict.fromkeys(("threading", "multiprocessing", "concurrent.futures", "_thread"), THREAD),
    **dict.fromkeys(
        ("requests", "httpx", "aiohttp", "urllib.request", "urllib3", "socket", "http.client",
         "smtplib", "ftplib", "websockets", "psycopg", "asyncpg", "redis", "boto3"),
        NETWORK,
    ),
}  # fmt: skip
FILE_METHODS = frozenset({"read_text", "read_bytes", "write_text", "write_bytes", "iterdir"})
LOOP_METHODS = frozenset({"run_in_executor", "add_signal_handler", "create_connection"})
_HARMLESS = frozenset({"socket.timeout", "requests.exceptions"})


def rule_of(name: str) -> Rule | None:
    """The rule that a call or use of a full name breaks, None for a harmless one."""
    if name in _EXACT:
        return _EXACT[name]
    if name.rpartition(".")[2].endswith(("Error", "Exception")):
        return None
    part = name
    while part and part not in _HARMLESS:
        part = part.rpartition(".")[0]
        if part in _MODULES:
            return _MODULES[part]
    return None


class Names:
    """The imports of one source file: what its names stand for."""

    def __init__(self, tree: ast.AST) -> None:
        self._full: dict[str, str] = {}
        for node in ast.walk(tree):
            if isinstance(node, ast.Import):
                for alias in node.names:
                    if alias.asname:
                        self._full[alias.asname] = alias.name
                    else:
                        root = alias.name.partition(".")[0]
                        self._full[root] = root
            elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
                for alias in node.names:
                    self._full[alias.asname or alias.name] = f"{node.module}.{alias.name}"

    def full(self, node: ast.expr) -> str | None:
        """The full name of an expression such as ``dt.datetime.now``; None if it is no name, or
        one of the file's own."""
        parts: list[str] = []
        while isinstance(node, ast.Attribute):
            parts.append(node.attr)
            node = node.value
        if not isinstance(node, ast.Name):
            return None
        root = self._full.get(node.id)
        if root is None:
            return node.id if not parts and node.id in ("open", "input") else None
        return ".".join([root, *reversed(parts)])

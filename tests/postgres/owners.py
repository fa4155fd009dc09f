"""Processes that own an embedded server, so that a test may kill them."""

import json
import os
import pwd
import signal
import subprocess
import sys
import sysconfig
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psycopg

from tests.waiting import until

ROOT = Path(__file__).resolve().parents[2]

_OWN = """
import json, os, sys
from pathlib import Path
from flowpg.postgres.binaries import inspect_binaries
from flowpg.postgres.embedded import EmbeddedPostgres
directory, programs, throwaway = sys.argv[1:4]
server = EmbeddedPostgres(
    None if throwaway == "throwaway" else Path(directory),
    throwaway=throwaway == "throwaway",
    binaries=inspect_binaries(Path(programs), "the test"),
)
print(json.dumps({"owner": os.getpid()}), flush=True)
server.start()
said = {"server": server.pid, "dsn": server.dsn, "directory": str(server.directory)}
print(json.dumps({**said, "uid": os.geteuid()}), flush=True)
for line in sys.stdin:
    exec(line)
"""


def value(dsn: str, query: str) -> object:
    """The one value of a query."""
    with psycopg.connect(dsn, autocommit=True) as connection:
        row = connection.execute(query.encode()).fetchone()
    assert row is not None
    return row[0]


def execute(dsn: str, statement: str) -> None:
    """Run one statement."""
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute(statement.encode())


def gone(pid: int) -> bool:
    """Whether a process has ended, even if nobody has collected it yet."""
    try:
        status = Path(f"/proc/{pid}/stat").read_text()
    except FileNotFoundError:
        return Path("/proc").exists() or not _exists(pid)
    except ProcessLookupError:
        return True
    return status.rpartition(")")[2].split()[0] in "ZX"


def until_gone(pid: int) -> None:
    """Wait until a process has ended."""
    until(lambda: gone(pid), f"process {pid} ends")


@dataclass
class Owner:
    """A process that starts an embedded server and then waits to be told what to do."""

    process: subprocess.Popen[str]

    def read(self) -> dict[str, Any]:
        """The next thing it says; fails with its error if it ended instead."""
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line:
            assert self.process.stderr is not None
            raise AssertionError(f"the owner ended: {self.process.stderr.read()}")
        said = json.loads(line)
        assert isinstance(said, dict)
        return said

    def tell(self, statement: str) -> None:
        """Have it run one line of Python; ``server`` is its server."""
        assert self.process.stdin is not None
        self.process.stdin.write(statement + "\n")
        self.process.stdin.flush()

    def kill(self) -> None:
        """SIGKILL, and collect it."""
        self.process.kill()
        self.process.wait()

    def close(self) -> None:
        """Let it end the ordinary way, and collect it."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        self.process.wait()
        for stream in (self.process.stdin, self.process.stdout, self.process.stderr):
            if stream is not None:
                stream.close()


def start_owner(
    directory: Path,
    programs: Path,
    *,
    throwaway: bool = False,
    python: str = sys.executable,
    user: pwd.struct_passwd | None = None,
) -> Owner:
    """Start one, as another user if named. Read twice: when it begins, and when its server runs."""
    identity: dict[str, Any] = {}
    if user is not None:
        identity = {"user": user.pw_uid, "group": user.pw_gid, "extra_groups": []}
    return Owner(
        subprocess.Popen(
            [python, "-c", _OWN, str(directory), str(programs), "throwaway" if throwaway else "no"],
            cwd="/",
            env=environment(),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            **identity,
        )
    )


def environment() -> dict[str, str]:
    """An environment in which any interpreter of this version finds flowpg and its driver."""
    path = os.pathsep.join((str(ROOT), sysconfig.get_path("purelib")))
    return {"PATH": os.defpath, "PYTHONPATH": path, "PYTHONDONTWRITEBYTECODE": "1"}


def python_for(user: pwd.struct_passwd, programs: Path) -> str | None:
    """An interpreter that ``user`` can run, with flowpg, its driver and ``programs`` in reach."""
    name = f"python{sys.version_info.major}.{sys.version_info.minor}"
    trial = f"import flowpg.postgres.embedded, os; assert os.access({str(programs)!r}, os.X_OK)"
    for candidate in (sys.executable, f"/usr/bin/{name}", f"/usr/local/bin/{name}"):
        try:
            done = subprocess.run(
                [candidate, "-c", trial],
                cwd="/",
                env=environment(),
                capture_output=True,
                check=False,
                user=user.pw_uid,
                group=user.pw_gid,
                extra_groups=[],
            )
        except OSError:
            continue
        if done.returncode == 0:
            return candidate
    return None


def _exists(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True

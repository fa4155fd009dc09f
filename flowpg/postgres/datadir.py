"""The directory of one embedded server: who owns it, what is in it, and how it is made.

::

    flowpg-owner.lock    held by the process that owns the server, for as long as it lives
    flowpg-server.lock   held by the server itself and its children, handed on by inheritance
    data                 PostgreSQL's data directory; appears complete, by rename, or not at all
    data.unfinished      an initdb that is under way, or was cut off
    socket               the unix socket, closed to others
    server.log           what the server said since it started; server.log.1 is the run before

Both locks are given up by the kernel when their holders die, so nothing here trusts a process id
that was written down by a process that is gone.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import signal
import stat
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from flowpg.errors import StoreError
from flowpg.postgres.binaries import Binaries
from flowpg.postgres.identity import Identity

_LONGEST_SOCKET_DIRECTORY = 80
"""Bytes. The name of a socket may have 103 to 107 in all, ``/.s.PGSQL.65535`` included."""

_POLL = 0.01
"""Seconds between two looks at a condition of another process."""


class EmbeddedServerError(StoreError):
    """The embedded server could not do what was asked; the message says why and what to do."""


class DirectoryInUse(EmbeddedServerError):
    """Another live process owns the server of this directory."""


class WrongMajorVersion(EmbeddedServerError):
    """The directory was made by another major version of PostgreSQL than the programs found."""


class ServerDirectory:
    """One directory of an embedded server, opened by at most one process at a time."""

    def __init__(self, path: Path, identity: Identity) -> None:
        self.path = path
        self.data = path / "data"
        self.log = path / "server.log"
        self.socket = _socket_directory(path)
        self.identity = identity
        self._owner_lock: int | None = None
        self._server_lock: int | None = None

    @property
    def server_lock(self) -> int:
        """The file descriptor that the server has to inherit."""
        assert self._server_lock is not None
        return self._server_lock

    def open(self, patience: float) -> None:
        """Become the owner, making the directory where it is missing.

        Waits up to ``patience`` seconds for the server of an owner that was killed to shut down.
        Raises `DirectoryInUse` when another process owns the directory, and `EmbeddedServerError`
        when it holds something else, or when the old server stays.
        """
        self._make()
        try:
            self._owner_lock = self._lock("flowpg-owner.lock")
            if self._owner_lock is None:
                raise DirectoryInUse(
                    f"the embedded server in {self.path} belongs to {self._owner_in_words()}; "
                    "stop that one, connect to it with --dsn, or set FLOWPG_DATA to another "
                    "directory"
                )
            os.truncate(self._owner_lock, 0)
            os.pwrite(self._owner_lock, f"{os.getpid()}\n".encode(), 0)
            self._outlive_previous_server(patience)
            self._adopt()
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Stop being the owner. A server that still runs keeps its own lock."""
        for lock in (self._server_lock, self._owner_lock):
            if lock is not None:
                os.close(lock)
        self._server_lock = self._owner_lock = None

    def prepare(self, binaries: Binaries, *, durable: bool) -> None:
        """Make sure that there is a data directory the server can start in.

        Raises `WrongMajorVersion` when there is one that these programs cannot run, and
        `EmbeddedServerError` when it is damaged or initdb fails.
        """
        self._refuse_obstacle(binaries.postgres, "set FLOWPG_PG_BIN to programs that it can")
        if self.data.exists():
            self._check_version(binaries)
            self._forget_dead_postmaster()
        else:
            self._initialise(binaries, durable=durable)
        self._make_socket_directory()
        if self.log.exists():
            self.log.replace(self.path / "server.log.1")

    def state(self) -> tuple[int, str]:
        """The postmaster's process id and its state, or ``(0, "")`` while there is none."""
        try:
            lines = (self.data / "postmaster.pid").read_text().splitlines()
            return int(lines[0]), lines[7].strip() if len(lines) > 7 else ""
        except (OSError, ValueError, IndexError):
            return 0, ""

    def port(self) -> int | None:
        """The port in the name of the socket of a server that is ready, whoever owns it."""
        if self.state()[1] != "ready":
            return None
        try:
            return int((self.data / "postmaster.pid").read_text().splitlines()[3])
        except (OSError, ValueError, IndexError):
            return None

    def log_tail(self, lines: int = 6) -> str:
        """The last lines the server wrote since it was started, on one line."""
        try:
            said = self.log.read_text(errors="replace").splitlines()
        except OSError:
            return ""
        return " | ".join(line.strip() for line in said[-lines:])

    def remove_socket(self) -> None:
        """Remove the socket's directory after the server is gone."""
        shutil.rmtree(self.socket, ignore_errors=True)

    def _make(self) -> None:
        self._refuse_obstacle(self.path, "set FLOWPG_DATA to a directory that it can")
        try:
            self.path.mkdir(mode=0o700, parents=True, exist_ok=True)
            entries = {entry.name for entry in self.path.iterdir()}
        except OSError as error:
            raise EmbeddedServerError(
                f"{self.path} cannot hold the embedded server: {error.strerror}; "
                "set FLOWPG_DATA to a directory that can be written"
            ) from error
        if entries and "flowpg-owner.lock" not in entries:
            raise EmbeddedServerError(
                f"{self.path} is not empty and was not made for an embedded server; "
                "set FLOWPG_DATA to a new or empty directory"
            )
        if not entries:
            self.identity.give(self.path)
            (self.path / "flowpg-owner.lock").touch(mode=0o600)
            # A server in a working copy must never end up in a commit.
            (self.path / ".gitignore").write_text("*\n")

    def _refuse_obstacle(self, path: Path, way_out: str) -> None:
        closed = self.identity.obstacle(path)
        if closed is not None:
            raise EmbeddedServerError(
                f"PostgreSQL does not run as root, this system gives no user namespace to hide "
                f"root in, and user {self.identity.uid} cannot reach {path}, since {closed} is "
                f"closed to it: {way_out}, or run this as an ordinary user"
            )

    def _lock(self, name: str) -> int | None:
        try:
            lock = os.open(self.path / name, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise EmbeddedServerError(
                f"{self.path} cannot be opened by user {os.geteuid()}: {error.strerror}; "
                "set FLOWPG_DATA to a directory of your own"
            ) from error
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(lock)
            return None
        return lock

    def _owner_in_words(self) -> str:
        try:
            return f"process {int((self.path / 'flowpg-owner.lock').read_text())}"
        except (OSError, ValueError):
            return "another process"

    def _outlive_previous_server(self, patience: float) -> None:
        # We are the owner, so whoever holds the server's lock was left behind by a killed one. It
        # was told to stop by the kernel, except where the system knows no such thing.
        deadline = time.monotonic() + patience
        told = False
        while (lock := self._lock("flowpg-server.lock")) is None:
            pid, _ = self.state()
            if pid and not told and _works_in(pid, self.data) is not False:
                _tell(pid, signal.SIGINT)
                told = True
            if time.monotonic() > deadline:
                raise EmbeddedServerError(
                    f"the server that a killed process left in {self.path} still shuts down after "
                    f"{patience:.0f} s (process {pid or 'unknown'}); try again when it is gone"
                )
            time.sleep(_POLL)
        self._server_lock = lock

    def _adopt(self) -> None:
        # Files that root made inside a user namespace are root's. Without such namespaces the
        # server runs as somebody else, who has to own them.
        if self.identity.mode != "setuid":
            return
        for path in [self.path, *self.path.rglob("*")]:
            if path.lstat().st_uid != self.identity.uid:
                os.chown(path, self.identity.uid, self.identity.gid, follow_symlinks=False)

    def _check_version(self, binaries: Binaries) -> None:
        try:
            made_by = (self.data / "PG_VERSION").read_text().strip()
        except OSError as error:
            raise EmbeddedServerError(
                f"{self.data} is damaged: its PG_VERSION cannot be read ({error.strerror}); "
                f"restore it from a backup, or remove {self.path} to start empty"
            ) from error
        if made_by != str(binaries.major):
            raise WrongMajorVersion(
                f"{self.path} was made by PostgreSQL {made_by}, and {binaries.directory} is "
                f"PostgreSQL {binaries.version}: set FLOWPG_PG_BIN to the programs of version "
                f"{made_by}, or FLOWPG_DATA to another directory"
            )

    def _forget_dead_postmaster(self) -> None:
        # The server itself sees through a stale postmaster.pid unless the number was given to some
        # other process since, which is common in containers.
        pid, _ = self.state()
        if not pid:
            return
        if _works_in(pid, self.data) is False:
            (self.data / "postmaster.pid").unlink(missing_ok=True)
        elif _works_in(pid, self.data):
            raise DirectoryInUse(
                f"a PostgreSQL server that flowpg did not start runs in {self.data} "
                f"(process {pid}); stop it, or set FLOWPG_DATA to another directory"
            )

    def _initialise(self, binaries: Binaries, *, durable: bool) -> None:
        unfinished = self.path / "data.unfinished"
        for locale in ("C.UTF-8", "C"):
            shutil.rmtree(unfinished, ignore_errors=True)
            unfinished.mkdir(mode=0o700)
            self.identity.give(unfinished)
            done = subprocess.run(
                self.identity.command(
                    binaries.initdb,
                    f"--pgdata={unfinished}",
                    "--username=postgres",
                    # Whoever can open the socket's directory is its owner; the network has to
                    # know a password.
                    "--auth-local=trust",
                    "--auth-host=scram-sha-256",
                    "--encoding=UTF8",
                    "--locale-provider=libc",
                    f"--locale={locale}",
                    *(() if durable else ("--no-sync",)),
                ),
                env=server_environment(),
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                errors="replace",
                check=False,
                # An initdb that a killed owner left behind tidies up after itself, in a directory
                # of the very name that the next one makes: the lock keeps them apart.
                pass_fds=(self.server_lock,),
            )
            if done.returncode == 0 or "locale" not in done.stderr:
                break
        if done.returncode != 0:
            shutil.rmtree(unfinished, ignore_errors=True)
            why = " | ".join(line.strip() for line in done.stderr.splitlines()[-4:])
            raise EmbeddedServerError(
                f"initdb could not make a database in {self.path}: {why or done.returncode}"
            )
        unfinished.rename(self.data)
        if durable:
            folder = os.open(self.path, os.O_RDONLY)
            try:
                os.fsync(folder)
            finally:
                os.close(folder)

    def _make_socket_directory(self) -> None:
        if self.socket.is_symlink() or self.socket.exists():
            found = self.socket.lstat()
            ours = found.st_uid in (os.geteuid(), self.identity.uid)
            if not (stat.S_ISDIR(found.st_mode) and ours and not found.st_mode & 0o077):
                raise EmbeddedServerError(
                    f"{self.socket} is not a private directory of ours: remove it, or set "
                    "FLOWPG_DATA to a directory with a shorter name"
                )
            # What a killed server left there would keep the next one out, if its process id was
            # given to some other process since. Both locks say that no server is there.
            self.remove_socket()
        self.socket.mkdir(mode=0o700)
        self.identity.give(self.socket)


def server_environment() -> dict[str, str]:
    """The environment of PostgreSQL's programs: ours, without what would steer them."""
    kept = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("PG", "LC_", "LANG"))
    }
    return {**kept, "LC_ALL": "C"}


def _socket_directory(path: Path) -> Path:
    inside = path / "socket"
    if len(os.fsencode(inside)) <= _LONGEST_SOCKET_DIRECTORY:
        return inside
    mark = hashlib.sha256(os.fsencode(path)).hexdigest()[:12]
    short = f"flowpg-{os.geteuid()}-{mark}"
    for parent in (tempfile.gettempdir(), "/tmp"):
        if len(os.fsencode(Path(parent, short))) <= _LONGEST_SOCKET_DIRECTORY:
            return Path(parent, short)
    return inside


def _works_in(pid: int, data: Path) -> bool | None:
    """Whether process ``pid`` has ``data`` as its working directory, as a postmaster does."""
    if not sys.platform.startswith("linux"):
        return None
    try:
        return Path(f"/proc/{pid}/cwd").readlink() == data
    except FileNotFoundError:
        return False
    except OSError:
        return None


def _tell(pid: int, what: signal.Signals) -> None:
    try:
        os.kill(pid, what)
    except (ProcessLookupError, PermissionError):
        return

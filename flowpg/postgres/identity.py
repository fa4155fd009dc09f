"""As whom the embedded server runs. PostgreSQL refuses root, so root needs another face."""

from __future__ import annotations

import os
import pwd
import subprocess
import sys
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Literal

from flowpg.postgres import _launch

_PREFERRED = ("postgres", "nobody")


@dataclass(frozen=True)
class Identity:
    """A way to run a program as somebody PostgreSQL accepts."""

    mode: Literal["same", "namespace", "setuid"]
    uid: int
    gid: int

    def command(self, *program: str | os.PathLike[str]) -> list[str]:
        """The command line that runs ``program`` under this identity as a child of this process."""
        return [
            sys.executable,
            "-I",
            "-S",
            _launch.__file__,
            str(os.getpid()),
            self.mode,
            str(self.uid),
            str(self.gid),
            *(os.fspath(part) for part in program),
        ]

    def obstacle(self, path: Path) -> Path | None:
        """The directory on the way to ``path`` that keeps the server out, if there is one.

        Permissions are read, never changed. Only a process that becomes another user can be kept
        out of where its owner came in.
        """
        if self.mode != "setuid":
            return None
        for directory in reversed(path.parents):
            try:
                found = directory.stat()
            except FileNotFoundError:
                return None
            shift = 6 if found.st_uid == self.uid else 3 if found.st_gid == self.gid else 0
            if not found.st_mode >> shift & 0o1:
                return directory
        return None

    def give(self, path: Path) -> None:
        """Make ``path``, which the caller has just made, belong to whoever the server runs as."""
        if self.mode == "setuid":
            os.chown(path, self.uid, self.gid)


def choose_identity(directory: Path) -> Identity:
    """As whom the server of ``directory`` runs when this process starts it.

    An ordinary user runs it as itself. Root runs it as the ordinary user who owns the directory, if
    one does; else in a user namespace that shows root as an ordinary user, so that the files stay
    root's; else, where the system has no such namespaces, as ``postgres`` or ``nobody``.
    """
    uid, gid = os.geteuid(), os.getegid()
    if uid != 0:
        if _has_name(uid):
            return Identity("same", uid, gid)
        # initdb insists on a user with a name; containers often run under a bare number.
        stand_in = _ordinary_user()
        return Identity("namespace", stand_in.pw_uid, stand_in.pw_gid)
    if directory.exists():
        owner = directory.stat()
        if owner.st_uid != 0 and _has_name(owner.st_uid):
            return Identity("setuid", owner.st_uid, owner.st_gid)
    stand_in = _ordinary_user()
    mode: Literal["namespace", "setuid"] = "namespace" if has_user_namespaces() else "setuid"
    return Identity(mode, stand_in.pw_uid, stand_in.pw_gid)


@cache
def has_user_namespaces() -> bool:
    """Whether this process may make a user namespace; found out by making one."""
    if not sys.platform.startswith("linux"):
        return False
    trial = Identity("namespace", 65534, 65534).command(sys.executable, "-I", "-S", "-c", "")
    return subprocess.run(trial, capture_output=True, check=False).returncode == 0


def _has_name(uid: int) -> bool:
    try:
        pwd.getpwuid(uid)
    except KeyError:
        return False
    return True


def _ordinary_user() -> pwd.struct_passwd:
    for name in _PREFERRED:
        try:
            return pwd.getpwnam(name)
        except KeyError:
            continue
    # Every system has some user beside root; without one initdb says what is missing.
    return next((user for user in pwd.getpwall() if user.pw_uid != 0), pwd.getpwuid(0))

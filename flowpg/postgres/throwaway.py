"""Where a throwaway server keeps its data: in memory where there is room, else on disk.

Making and dropping a database is mostly files that come and go, so it takes a fraction of the time
where files are memory. What a killed owner left there holds memory until it is removed: whoever
comes next does that.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

MEMORY = Path("/dev/shm")
"""The file system in memory that Linux gives everybody."""

ROOM = 4 << 30
"""Bytes that have to be free, in the file system and in the machine, for a server to live there."""

_PREFIX = "flowpg-"


def make_directory() -> Path:
    """Make a directory for a throwaway server: below ``TMPDIR`` if that is set, in memory where
    there is room, else where temporary files are."""
    if any(os.environ.get(name) for name in ("TMPDIR", "TEMP", "TMP")):
        return Path(tempfile.mkdtemp(prefix=_PREFIX))
    with contextlib.suppress(OSError):
        remove_leftovers(MEMORY)
        if room_in(MEMORY) >= ROOM:
            return Path(tempfile.mkdtemp(prefix=_PREFIX, dir=MEMORY))
    return Path(tempfile.mkdtemp(prefix=_PREFIX))


def room_in(memory: Path) -> int:
    """How many bytes a file system in memory can take: what is free there, or in the machine,
    whichever is less. Raises OSError where the system has no such thing."""
    place = os.statvfs(memory)
    for line in Path("/proc/meminfo").read_text().splitlines():
        if line.startswith("MemAvailable:"):
            return min(place.f_bavail * place.f_frsize, int(line.split()[1]) * 1024)
    return 0


def remove_leftovers(parent: Path) -> None:
    """Remove the directories of servers whose owners were killed, of this user, below ``parent``.

    The locks tell, since the kernel gives them up with their holders; a directory whose owner is
    not written down yet is just being made.
    """
    for directory in parent.glob(_PREFIX + "*"):
        with contextlib.suppress(OSError):
            owner = directory / "flowpg-owner.lock"
            if directory.lstat().st_uid != os.geteuid() or not owner.stat().st_size:
                continue
            with _free(owner) as nobody_owns, _free(directory / "flowpg-server.lock") as no_server:
                if nobody_owns and no_server:
                    shutil.rmtree(directory, ignore_errors=True)


@contextlib.contextmanager
def _free(lock: Path) -> Iterator[bool]:
    """Whether nobody holds ``lock``; nobody else takes it meanwhile."""
    with lock.open("rb") as held:
        try:
            fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            yield False
        else:
            yield True

"""Become an ordinary user, ask to die with the owner, then become a PostgreSQL program.

It is run as ``python -I _launch.py OWNER MODE UID GID PROGRAM ARGUMENT...``, a program of its own:
between fork and exec, a process with threads may do almost nothing, while a fresh interpreter may
do anything. It imports nothing of flowpg, and the program keeps its process id.

OWNER is the process that must be our parent. MODE is ``same`` (stay who we are), ``namespace`` (a
user namespace that shows our user as UID and GID, so that files stay ours) or ``setuid`` (become
UID and GID for good).
"""

import ctypes
import os
import signal
import sys
from pathlib import Path
from typing import NoReturn

CANNOT_LAUNCH = 125
"""Exit code when the program was not started; standard error says why, in one sentence."""

_CLONE_NEWUSER = 0x10000000
_PR_SET_PDEATHSIG = 1


def _refuse(sentence: str) -> NoReturn:
    print(sentence, file=sys.stderr)
    sys.exit(CANNOT_LAUNCH)


def _enter_namespace(uid: int, gid: int) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    outer_uid, outer_gid = os.geteuid(), os.getegid()
    if not hasattr(libc, "unshare") or libc.unshare(_CLONE_NEWUSER) != 0:
        _refuse(f"no user namespace to be had: {os.strerror(ctypes.get_errno())}")
    try:
        # The kernel takes a group map from an unprivileged writer only after setgroups is denied.
        Path("/proc/self/setgroups").write_text("deny")
        Path("/proc/self/uid_map").write_text(f"{uid} {outer_uid} 1")
        Path("/proc/self/gid_map").write_text(f"{gid} {outer_gid} 1")
    except OSError as error:
        _refuse(f"no user namespace to be had: {error.strerror}")


def _become(uid: int, gid: int) -> None:
    os.setgroups([])
    os.setgid(gid)
    os.setuid(uid)


def _die_with(owner: int) -> None:
    if not sys.platform.startswith("linux"):
        return  # nothing like it elsewhere: a server of a killed owner is stopped by the next one
    # SIGINT is PostgreSQL's fast shutdown. A change of user clears this request, so it comes last.
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, int(signal.SIGINT), 0, 0, 0)
    if os.getppid() != owner:
        _refuse("the owner of this server was gone before the server started")


def main(arguments: list[str]) -> None:
    """Carry out the command line; returns only by raising `SystemExit`."""
    owner, mode, uid, gid, program = arguments[:5]
    if mode == "namespace":
        _enter_namespace(int(uid), int(gid))
    elif mode == "setuid":
        _become(int(uid), int(gid))
    os.umask(0o077)
    os.chdir("/")
    _die_with(int(owner))
    try:
        os.execv(program, [program, *arguments[5:]])
    except OSError as error:
        _refuse(f"user {os.geteuid()} cannot run {program}: {error.strerror}")


if __name__ == "__main__":
    main(sys.argv[1:])

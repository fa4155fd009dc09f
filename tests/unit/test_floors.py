"""Rooms import only from lower floors, and the ground floors stay pure. Read from the source."""

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

PACKAGE = Path(__file__).resolve().parents[2] / "flowpg"

# From the ground up. Rooms of one floor do not know each other, with the exceptions below.
FLOORS: tuple[frozenset[str], ...] = (
    frozenset({"errors"}),
    frozenset({"model"}),
    frozenset({"replay"}),
    frozenset({"resources"}),
    frozenset({"store", "postgres"}),
    frozenset({"engine", "authoring", "client"}),
    frozenset({"fleet", "lint", "sync"}),
    frozenset({"console", "testing"}),
)

# Neighbours that may be imported: the store's PostgreSQL half is a caller of the verbs.
NEIGHBOURS = {("store", "postgres")}

# Files that are no room: the public names, and `python -m flowpg`.
ROOF = {"__init__", "__main__"}

PURE = {"model", "replay"}
IMPURE_MODULES = {
    "alembic",
    "asyncio",
    "psycopg",
    "psycopg_pool",
    "random",
    "socket",
    "sqlalchemy",
    "subprocess",
    "threading",
    "time",
}
CLOCKS = {
    ("datetime", "now"),
    ("datetime", "today"),
    ("datetime", "utcnow"),
    ("date", "today"),
    ("time", "time"),
    ("time", "time_ns"),
    ("time", "monotonic"),
    ("time", "monotonic_ns"),
    ("time", "perf_counter"),
}


@dataclass(frozen=True)
class Import:
    """One imported module, by its full name, and where."""

    module: str
    where: str


def floor_of(room: str) -> int:
    """How high a room is."""
    return next(height for height, rooms in enumerate(FLOORS) if room in rooms)


def room_of(path: Path, package: Path = PACKAGE) -> str:
    """The room that a source file belongs to."""
    return path.relative_to(package).parts[0].removesuffix(".py")


def sources(room: str | None = None) -> list[Path]:
    """The source files of one room, or of the whole package."""
    return [path for path in sorted(PACKAGE.rglob("*.py")) if room in (None, room_of(path))]


def imports_of(path: Path, package: Path = PACKAGE) -> Iterator[Import]:
    """Every import of a file, those inside functions and for types alone included."""
    parts = path.relative_to(package.parent).with_suffix("").parts
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            base = ".".join(parts[: -node.level]) if node.level else ""
            origin = ".".join(name for name in (base, node.module) if name)
            # `from flowpg import postgres` imports a room as well as a name.
            names = [f"{origin}.{alias.name}" for alias in node.names]
        else:
            continue
        for name in names:
            yield Import(name, f"{path.relative_to(package.parent)}:{node.lineno}")


def complaints(path: Path, package: Path = PACKAGE) -> list[str]:
    """What a file imports from its own floor or from above, in words."""
    room = room_of(path, package)
    found = []
    for item in imports_of(path, package):
        parts = item.module.split(".")
        if parts[0] != package.name:
            continue
        other = parts[1] if len(parts) > 1 else "__init__"
        if other == room or (room, other) in NEIGHBOURS:
            continue
        if not any(other in rooms for rooms in FLOORS):
            found.append(f"{item.where} imports {item.module}: take the name from its own room")
        elif floor_of(other) >= floor_of(room):
            found.append(f"{item.where} imports {other}, which is not on a floor below {room}")
    return found


def clock_readings(tree: ast.AST) -> list[int]:
    """The lines of a tree that read a clock."""
    return [
        node.lineno
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute)
        and isinstance(node.value, ast.Name | ast.Attribute)
        and (getattr(node.value, "id", getattr(node.value, "attr", "")), node.attr) in CLOCKS
    ]


def test_every_room_has_a_floor() -> None:
    known = frozenset().union(*FLOORS)
    assert {room_of(path) for path in sources()} - ROOF <= known


@pytest.mark.parametrize("room", sorted(frozenset().union(*FLOORS)))
def test_a_room_imports_only_from_lower_floors(room: str) -> None:
    assert [words for path in sources(room) for words in complaints(path)] == []


@pytest.mark.parametrize("room", sorted(PURE))
def test_a_pure_room_does_no_input_or_output(room: str) -> None:
    found = [
        f"{item.where} imports {item.module}"
        for path in sources(room)
        for item in imports_of(path)
        if item.module.split(".")[0] in IMPURE_MODULES
    ]
    assert found == []


@pytest.mark.parametrize("room", sorted(PURE))
def test_a_pure_room_reads_no_clock(room: str) -> None:
    found = [
        f"{path.relative_to(PACKAGE.parent)}:{line}"
        for path in sources(room)
        for line in clock_readings(ast.parse(path.read_text()))
    ]
    assert found == []


@pytest.mark.parametrize(
    "line",
    [
        "from flowpg.engine import drive",
        "from flowpg.store.protocol import FlowEventStore",
        "import flowpg.console.main",
        "from flowpg import store",
        "from ..engine import drive",
        "from flowpg import FlowEngine",
    ],
)
def test_an_import_upwards_or_sideways_is_found(tmp_path: Path, line: str) -> None:
    room = tmp_path / "flowpg" / "postgres"
    room.mkdir(parents=True)
    (room / "sample.py").write_text(f"def later() -> None:\n    {line}\n")
    assert len(complaints(room / "sample.py", tmp_path / "flowpg")) == 1


@pytest.mark.parametrize("line", ["datetime.now(UTC)", "datetime.datetime.now()", "time.time()"])
def test_a_clock_reading_is_found(line: str) -> None:
    assert clock_readings(ast.parse(line)) == [1]

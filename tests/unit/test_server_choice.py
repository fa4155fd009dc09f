"""Which server a test run takes."""

import socketserver
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from psycopg.conninfo import conninfo_to_dict

from flowpg.postgres.binaries import Binaries
from flowpg.testing.servers import choose, engine_answers, with_database

NOBODY = {"DOCKER_HOST": "unix:///nonexistent/docker.sock"}


class Engine(socketserver.ThreadingUnixStreamServer):
    """Answers a request on a unix socket the way it is told to."""

    answer = b""


class Handler(socketserver.StreamRequestHandler):
    """Reads one request line and sends the engine's answer."""

    def handle(self) -> None:
        assert isinstance(self.server, Engine)
        self.rfile.readline()
        self.wfile.write(self.server.answer)


@pytest.fixture
def engine(tmp_path: Path) -> Iterator[Engine]:
    """Something that listens where a Docker engine might."""
    with Engine(str(tmp_path / "sock"), Handler) as server:
        server.answer = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nOK"
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield server
        server.shutdown()


def test_a_named_server_comes_first_and_its_password_stays_out_of_the_header(
    engine: Engine,
) -> None:
    env = {
        "FLOWPG_TEST_DSN": "postgresql://me:secret@db.example:5433/x",
        "DOCKER_HOST": f"unix://{engine.server_address!s}",
    }
    choice = choose(env)
    assert choice.kind == "dsn"
    assert choice.label == "FLOWPG_TEST_DSN (db.example:5433)"


def test_a_container_is_taken_where_an_engine_answers(engine: Engine) -> None:
    env = {"DOCKER_HOST": f"unix://{engine.server_address!s}"}
    assert choose(env).label == "testcontainers, image postgres:18"
    assert choose({**env, "FLOWPG_TEST_IMAGE": "postgres:16"}).value == "postgres:16"


@pytest.mark.parametrize("name", ["FLOWPG_TEST_PG_BIN", "FLOWPG_PG_BIN"])
def test_named_programs_come_before_a_container(
    engine: Engine, binaries: Binaries, name: str
) -> None:
    env = {name: str(binaries.directory), "DOCKER_HOST": f"unix://{engine.server_address!s}"}
    choice = choose(env)
    assert choice.kind == "embedded"
    assert choice.label == f"throwaway PostgreSQL {binaries.version} from {name}"


@pytest.mark.usefixtures("binaries")
def test_without_an_engine_it_is_a_throwaway_server() -> None:
    assert choose(NOBODY).kind == "embedded"


@pytest.mark.parametrize("answer", [b"HTTP/1.1 503 Busy\r\n\r\n", b"nonsense\r\n", b""])
def test_something_that_is_no_engine_is_not_taken_for_one(engine: Engine, answer: bytes) -> None:
    engine.answer = answer
    assert not engine_answers(f"unix://{engine.server_address!s}")


def test_an_engine_that_hangs_is_given_up(tmp_path: Path) -> None:
    # Listens, and never accepts.
    with Engine(str(tmp_path / "sock"), Handler):
        assert not engine_answers(f"unix://{tmp_path / 'sock'}", timeout=0.05)


@pytest.mark.parametrize("host", ["tcp://127.0.0.1:1", "unix:///nonexistent", "npipe://x", ""])
def test_a_place_without_an_engine_is_no_error(host: str) -> None:
    assert not engine_answers(host)


def test_a_dsn_is_turned_to_another_database_with_everything_else_kept() -> None:
    dsn = "host='/a b' user='o@x' password='p/w&=' sslmode=disable dbname=one"
    assert conninfo_to_dict(with_database(dsn, "two ?")) == {
        "host": "/a b",
        "user": "o@x",
        "password": "p/w&=",
        "sslmode": "disable",
        "dbname": "two ?",
    }

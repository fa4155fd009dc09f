"""A PgBouncer in transaction mode in front of the tests' server, started by the test run itself."""

import shutil
import subprocess
from pathlib import Path

import psycopg
from psycopg.conninfo import conninfo_to_dict

from flowpg.postgres.identity import choose_identity
from flowpg.testing.servers import PostgresServer, with_database
from tests.waiting import until

PORT = "6432"
"""Only the name of a unix socket: nothing listens on the network."""


def find_pgbouncer() -> str | None:
    """The pgbouncer program of this machine, if it has one."""
    return shutil.which("pgbouncer") or shutil.which("pgbouncer", path="/usr/sbin:/usr/local/sbin")


class PgBouncer:
    """Starts with its construction; `close` ends it."""

    def __init__(self, server: PostgresServer, directory: Path) -> None:
        program = find_pgbouncer()
        if program is None:
            raise FileNotFoundError(
                "FLOWPG_TEST_PGBOUNCER is set and no pgbouncer program was found: install it "
                "(Debian: apt install pgbouncer) or unset the variable"
            )
        self._directory = directory
        self._settings = directory / "pgbouncer.ini"
        self._settings.write_text(_settings(server, directory))
        self._log = (directory / "pgbouncer.log").open("wb")
        # Like PostgreSQL it refuses root, so it runs as whoever the embedded server would run as.
        identity = choose_identity(directory)
        for path in (directory, self._settings):
            identity.give(path)
        self._process = subprocess.Popen(
            identity.command(program, self._settings),
            stdin=subprocess.DEVNULL,
            stdout=self._log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        try:
            until(self._answers, "PgBouncer answers")
        except BaseException:
            self.close()
            raise

    def dsn_of(self, dsn: str, database: str) -> str:
        """``dsn`` of the server, turned into the URL of ``database`` through this pooler."""
        user = str(conninfo_to_dict(dsn).get("user") or "postgres")
        through = {"host": str(self._directory), "port": PORT, "user": user}
        return with_database("", database, **through)

    def close(self) -> None:
        """End the process."""
        self._process.terminate()
        self._process.wait()
        self._log.close()

    def _answers(self) -> bool:
        if self._process.poll() is not None:
            said = (self._directory / "pgbouncer.log").read_text(errors="replace")
            raise AssertionError(f"PgBouncer ended at once: {said}")
        try:
            psycopg.connect(
                host=str(self._directory), port=PORT, dbname="pgbouncer", user="admin"
            ).close()
        except psycopg.OperationalError:
            return False
        return True


def _settings(server: PostgresServer, directory: Path) -> str:
    target = conninfo_to_dict(server.admin_dsn)
    names = {"host": "host", "port": "port", "user": "user", "password": "password"}
    upstream = " ".join(
        f"{ours}='{str(target[libpq]).replace(chr(39), chr(39) * 2)}'"
        for libpq, ours in names.items()
        if target.get(libpq)
    )
    return "\n".join(
        (
            "[databases]",
            f"* = {upstream}",
            "[pgbouncer]",
            "pool_mode = transaction",
            f"unix_socket_dir = {directory}",
            f"listen_port = {PORT}",
            # Who may open the socket's directory may come in, as the user of the line above.
            "auth_type = any",
            "admin_users = admin",
            "max_client_conn = 500",
            "default_pool_size = 20",
            # A test's database is dropped at its end: keep nothing connected to it for long.
            "server_idle_timeout = 10",
            "log_connections = 0",
            "log_disconnections = 0",
            "",
        )
    )

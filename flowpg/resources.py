"""Where the SQL and the migrations are, in a wheel, an editable install and a clone alike."""

from __future__ import annotations

from pathlib import Path

_PACKAGE = Path(__file__).resolve().parent


def sql_root() -> Path:
    """The directory of the newest schema, one object a file (``sql/`` in a clone).

    Raises `FileNotFoundError` when this installation is incomplete.
    """
    return _find("sql", "tables")


def migrations_root() -> Path:
    """The directory of Alembic's environment (``migrations/`` in a clone).

    Raises `FileNotFoundError` when this installation is incomplete.
    """
    return _find("migrations", "env.py")


def _find(name: str, sign: str) -> Path:
    # A wheel carries the directory inside the package; a clone, and so an editable install, has it
    # beside the package. The sign keeps a stranger's sql/ in site-packages from being taken.
    for directory in (_PACKAGE / name, _PACKAGE.parent / name):
        if (directory / sign).exists():
            return directory
    raise FileNotFoundError(
        f"this installation of flowpg has no {name}/ (looked in {_PACKAGE} and beside it): "
        "install flowpg again from a complete wheel or clone"
    )

"""``python -m flowpg``: the same as the ``flowpg`` command."""

from flowpg.console.main import app

if __name__ == "__main__":
    app(prog_name="flowpg")

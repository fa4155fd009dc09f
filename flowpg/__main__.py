"""``python -m flowpg`` is the ``flowpg`` command."""

from flowpg.console.main import app

app(prog_name="flowpg")

"""The ``flowpg`` command."""

"""flowpg as a contestant: at its default settings, like any user's program."""

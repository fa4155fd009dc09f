"""What talks to the server: pool, verbs, migrations, and a server of our own for local use."""

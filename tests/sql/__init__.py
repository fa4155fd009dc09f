"""Tests of sql/: what the functions do, under any number of connections, against a real server."""

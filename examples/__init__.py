"""Runnable examples. Each takes its server from FLOWPG_DSN, or starts the embedded one."""

"""Durable asyncio: workflows and steps as plain functions, over the same commands and events."""

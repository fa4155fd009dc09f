"""Processes that take runs from the queue and drive them."""

"""What in the source of workflows a replay could not repeat. Reads it, and runs none of it."""

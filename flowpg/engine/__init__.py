"""The engine: drives runs against a store, and is the asynchronous way to talk to them."""

"""How fast flowpg is, side by side with its peers and with the server's own limit.

One module a question; ``python -m benchmarks --list`` names them. Each prints one JSON line.
"""

"""Where histories are kept: the contract, the reference model in memory, and PostgreSQL."""

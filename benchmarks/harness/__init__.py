"""What every question needs: a server, contestants, rounds of measurement, a result."""

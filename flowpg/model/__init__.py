"""What is stored and said: plain values, without I/O and without a clock."""

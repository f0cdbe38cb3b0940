"""How fast the lock is, side by side with others: `python -m benchmarks`, or `make bench`."""

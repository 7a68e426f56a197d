"""What things cost: `make bench` for the ways to a broker, and smaller ones for single parts (docs/benchmarks.md)."""

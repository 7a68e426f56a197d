"""What the proxy costs, as ratios within one run: `python -m benchmarks.relay`."""

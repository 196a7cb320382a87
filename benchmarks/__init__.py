"""Both sides of every claim, measured in the same run: `python -m benchmarks.NAME [--quick] [--json FILE]`."""

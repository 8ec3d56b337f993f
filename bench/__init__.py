"""What is measured: run with `python -m bench.NAME` in a checkout."""

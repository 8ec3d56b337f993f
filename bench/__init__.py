"""The benchmarks: `python -m bench.NAME` in a checkout runs one."""

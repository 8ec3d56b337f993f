"""The live page of a run and its replay, and Prometheus metrics."""

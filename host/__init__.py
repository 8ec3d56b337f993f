"""A worker: gradients in, aggregates out.

One gradient's way through the files: `train` -> `residual` -> `compress` -> `protocol` -> `wire` -> `transport`.
"""

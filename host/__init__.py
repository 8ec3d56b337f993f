"""A worker: gradients in, aggregates out.

One gradient's way through the files: `train` -> `residual` -> `compress` -> `lanes` -> `protocol` -> `wire`
-> `transport`.
"""

import os

os.environ.setdefault("GRPC_VERBOSITY", "NONE")  # read when gRPC is imported; what fails is said once, by us

"""The agreements of the distributions of kofn: configuration, messages, packets, the files of a run."""

import os

os.environ.setdefault("GRPC_VERBOSITY", "NONE")  # read when gRPC is imported; kofn reports each failure once

"""One worker process: gradients in, aggregates out.

worker/ puts it together. In the order of a gradient: workload/ computes it, training/ loops, agent/ joins encoder and
engine, compression/ encodes it and keeps the ledger, protocol/ decides what to send, wire/ is the packet, engine/ the
thread that moves packets, transport/ the socket, membership/ the line to controller and peers. collectives/ has
communicators and a parameter server; kernels/ the arithmetic on whole arrays; zero/ optimizers whose state is sharded.
protocol/, engine/ and kernels/ are C (native.py).
"""

import os

from kofn_common import check_name

os.environ.setdefault("GRPC_VERBOSITY", "NONE")  # read when gRPC is imported; kofn reports each failure once

check_name(__name__)

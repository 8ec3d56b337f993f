"""One worker process: gradients in, aggregates out.

worker/ puts the other folders together. In the order in which a gradient passes through them: workload/ computes the
gradient, training/ repeats the steps of an iteration, agent/ joins encoder and engine, compression/ encodes the
gradient and keeps the ledger, protocol/ decides which packets to send, engine/ has the thread that moves packets,
transport/ has the socket, and membership/ has the connections to controller and peers. collectives/ has communicators
and a parameter server; kernels/ has the arithmetic on whole arrays; schedule/ has the order of a layered model's
gradients; zero/ has optimizers whose state is sharded; checkpoint/ writes and reads checkpoints. protocol/, engine/,
kernels/ and a part of compression/ are C (native.py).
"""

from kofn_common import check_name

check_name(__name__)

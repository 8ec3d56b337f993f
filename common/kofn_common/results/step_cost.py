"""The cost of a step of sharded training for a worker. The script of examples/experiments/zero-network.toml writes it
beside the metrics."""

import msgspec

STEPS_FILE = "steps-{rank}.json"
"""The file of a trial with a StepCost for each step of a worker."""


class StepCost(msgspec.Struct, frozen=True, kw_only=True):
    """The cost from a batch to parameters that all workers have, with bytes of Ethernet frames at the worker's
    interface."""

    time_s: float
    up: int
    down: int

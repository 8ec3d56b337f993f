"""What a step of a sharded training cost a worker, as kofn.torch.scripts.sharded_steps writes it beside its metrics."""

import msgspec

STEPS_FILE = "steps-{rank}.json"
"""Of a trial: a StepCost for each step of a worker."""


class StepCost(msgspec.Struct, frozen=True, kw_only=True):
    """From a batch to parameters that all workers have; bytes of Ethernet frames at its interface."""

    time_s: float
    up: int
    down: int

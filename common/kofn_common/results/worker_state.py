"""The state of a worker, in words."""

STARTING = "starting"
"""The worker's process runs, but has not attached to the controller yet."""


def worker_state(said: str, iteration: int) -> str:
    """Return `said`, or another state if `said` is empty. `iteration`: the newest finished iteration; 0: none.

    The controller says "absent" for a starting worker and for a worker that has left.
    """
    if not iteration and said in ("", "absent"):
        return STARTING
    return said or "training"

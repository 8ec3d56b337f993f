"""The state of a worker, in words."""

STARTING = "starting"
"""Its process runs, and has not attached to the controller yet."""


def worker_state(said: str, iteration: int) -> str:
    """Return `said`, or its state where that says nothing; `iteration`: the newest that it has finished, 0: none.

    The controller says "absent" of a worker that starts, and of one that has gone.
    """
    if not iteration and said in ("", "absent"):
        return STARTING
    return said or "training"

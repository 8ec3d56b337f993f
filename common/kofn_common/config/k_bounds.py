"""The bounds of k, the number of contributions that close a block."""


def bound_k(k: int, workers: int) -> int:
    """Return the k nearest to `k` that `workers` workers permit: 1 to `workers`. A valid `k` is returned unchanged.

    `workers` are all workers of a job where a text names k (check_objective, the parameter server's --k), and the live
    workers where k comes into force (ControlLoop). Each bound has one reason:

    - At least 1: only a contribution closes a block.
    - At most the live workers: the others contribute nothing, so a block would stay open. When a worker leaves, k
      follows at once; when a worker joins, k may grow again.
    - Lanes set no lower bound: a codec's widths and scale leave room for one contribution of each of the job's workers
      (CompressSection.widths, `room` of OnlySwitch). A slot without room for more closes with fewer than k.
    - Racks set no bound: the root of a tree counts contributions, not racks.
    - policy.include_after sets no bound: an inclusion chooses the largest k until the worker is in a sum.
    - A rule that repeats gradients (batch-sync) makes the largest k expensive, not invalid (`starving` of the objective
      progress).

    >>> [bound_k(k, workers=4) for k in (0, 3, 9)]
    [1, 3, 4]
    """
    return max(min(k, workers), 1)

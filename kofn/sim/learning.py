"""The training of all workers at once: replicas are bit-identical, so one replica stands for all.

Workers may be in different iterations: the parameters of an iteration are kept while a worker needs them.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from kofn_common.collectives.job_collective import load_collective
from kofn_common.config.schema import Config
from kofn_host.arrays import Floats
from kofn_host.compression.aggregate import Sums, aggregate, missed
from kofn_host.compression.alignment import Alignment, Direction, agreement
from kofn_host.compression.encoder import Finished
from kofn_host.kernels.sample import sample
from kofn_host.protocol.results import BlockResults
from kofn_host.training import Aggregate, JobCoding, Plan
from kofn_host.training.divergence import Divergence
from kofn_host.workload import load_workload
from kofn_host.workload.evaluation import Evaluation
from kofn_host.workload.replica import Replica


@dataclass(frozen=True, slots=True, kw_only=True)
class After:
    """The state that all replicas share after an iteration."""

    evaluation: Evaluation
    direction: Direction  # direction of the iteration's aggregate
    looked_at: Floats  # a sample of the aggregate
    diverged: bool


class Learning:
    """The model, the optimizer, and all workers' workloads."""

    def __init__(self, config: Config) -> None:
        job, model = config.job, config.model
        self.average = model.average
        self._workers = [load_workload(config, rank) for rank in range(job.workers)]
        all_alike = load_workload(config, 0)
        self._newest = parameters = all_alike.parameters
        self._divergence = Divergence(parameters) if all_alike.metric else None
        self.elements = len(parameters)
        self.coding = JobCoding.of(job, config.compress, self.elements, follows=True)
        blocks = self.coding.layout.blocks if load_collective(job.collective).ledger else 0
        self.replica = Replica(all_alike, config, blocks, self.coding.planner.first())
        self._alignment = Alignment(self.elements)
        self._parameters = {0: parameters.copy()}  # by iteration, while a worker may need the parameters
        self._after: dict[int, After] = {}
        self._sums: dict[int, Sums] = {}  # by iteration, while some worker lacks results
        self._known: dict[int, npt.NDArray[np.bool_]] = {}  # by iteration: which blocks are in the sums (blocks,)
        self._aggregates: dict[int, Aggregate] = {}  # aggregates of the first worker with all results, by iteration
        self._computed = [0] * job.workers  # each worker's latest computed iteration

    def gradient(self, rank: int, iteration: int, number: int = 0) -> tuple[float | None, Floats]:
        """Return a worker's loss and gradient over its batch `number` of an iteration, with the parameters after the
        previous iteration."""
        worker = self._workers[rank]
        worker.parameters[:] = self._parameters[iteration - 1]
        self._computed[rank] = iteration
        self._forget(min(self._computed) - 1)
        return worker.gradient(iteration, number)

    def agreement(self, gradient: Floats, iteration: int) -> float:
        """Return the agreement of a gradient with the previous iteration's aggregate (host.compression.alignment); 0
        without a previous aggregate."""
        before = self._after.get(iteration - 1)
        return agreement(sample(gradient), before.looked_at) if before else 0.0

    def take(self, results: BlockResults, plan: Plan) -> None:
        """Add a worker's results of an iteration with this plan. Results are the same for all workers, and are decoded
        once."""
        iteration, blocks = results.iteration, results.blocks
        if iteration not in self._sums:
            self._sums[iteration] = Sums(self.coding, plan, self.average)
            self._known[iteration] = np.zeros(self.coding.layout.total, np.bool_)
        known = self._known[iteration]
        self._sums[iteration].add(results[~known[blocks]])
        known[blocks] = True

    def aggregate(self, finished: Finished, rank: int) -> Aggregate:
        """Return an iteration's aggregate for a worker with all results; workers' aggregates differ only in `missed`
        and `encoding`."""
        results = finished.results
        if results.iteration not in self._aggregates:
            sums = self._sums[results.iteration]
            first = aggregate(finished, self.coding, rank=rank, average=self.average, sums=sums)
            self._aggregates[results.iteration] = first
        alike = self._aggregates[results.iteration]
        return replace(alike, missed=missed(results, self.coding.places[rank]), encoding=finished.encoding)

    def mean(self, iteration: int, gradients: Sequence[Floats]) -> Aggregate:
        """Return an iteration's aggregate of all workers' gradients, by rank, which a ring sums."""
        return Aggregate.of_all(iteration, ring_mean(gradients), len(gradients), self.coding.planner.first())

    def apply(self, aggregate: Aggregate) -> After:
        """Step the replica by this aggregate, unless an earlier call did so; return the state after the step.

        Aggregates must come in the order of iterations.
        """
        if aggregate.iteration not in self._after:
            evaluation = self.replica.apply(aggregate.iteration, aggregate.mean, aggregate.checksums, aggregate.plan)
            direction = self._alignment.direction(aggregate.mean)
            looked_at = sample(aggregate.mean).copy()
            diverged = self._divergence is not None and self._divergence.seen()
            after = After(evaluation=evaluation, direction=direction, looked_at=looked_at, diverged=diverged)
            self._after[aggregate.iteration] = after
            self._parameters[aggregate.iteration] = self._newest.copy()
        return self._after[aggregate.iteration]

    def _forget(self, iteration: int) -> None:
        """Drop the states before this iteration: all workers have computed this iteration or a later iteration."""
        for old in [known for known in self._parameters if known < iteration]:
            del self._parameters[old]
            self._after.pop(old, None)
            self._sums.pop(old, None)
            self._known.pop(old, None)
            self._aggregates.pop(old, None)


def ring_mean(gradients: Sequence[Floats]) -> Floats:
    """Return the mean of arrays of shape (elements,), with the bytes that a ring's workers get.

    Segment r begins at worker r, and each next worker adds its values (kofn_host.collectives.kinds.ring).
    """
    workers, mean = len(gradients), np.empty_like(gradients[0])
    for first, part in enumerate(segments(mean.size, workers)):
        total = gradients[first][part].copy()
        for step in range(1, workers):
            total += gradients[(first + step) % workers][part]
        mean[part] = total / np.float32(workers)
    return mean


def segments(elements: int, workers: int) -> list[slice]:
    """Return a ring's segments of an array, by the rank of the worker at which a segment begins."""
    ends = [elements * rank // workers for rank in range(workers + 1)]
    return [slice(begin, end) for begin, end in pairwise(ends)]

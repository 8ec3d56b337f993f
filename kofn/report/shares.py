"""The fate of each worker's gradients in a trial, from the metrics: shares of the sums, ages, pending gradients."""

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Self

from kofn_common.results.account import Account
from kofn_common.results.worker_metrics import WorkerMetrics


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerShares:
    """Values by worker; summary.TrialSummary explains them."""

    entered: tuple[float, ...]
    summed: tuple[float, ...]
    share: tuple[float, ...]
    age: tuple[float, ...]
    age_most: int
    waiting: tuple[float, ...]
    late_for: int
    discarded: tuple[float, ...]
    starved: tuple[int, ...]

    @classmethod
    def of(cls, workers: Sequence[WorkerMetrics]) -> Self:
        """Compute the values from the workers' lines; zeros for a worker without lines."""
        accounts = [_account(worker) for worker in workers]
        ages = [[line.age for line in worker.iterations if line.age is not None] for worker in workers]
        whole = sum(account.summed for account in accounts)
        end = max((line.iteration for worker in workers for line in worker.iterations), default=0)
        return cls(
            entered=tuple(account.entered for account in accounts),
            summed=tuple(account.summed for account in accounts),
            share=tuple(account.summed / max(whole, 1e-300) for account in accounts),
            age=tuple(fmean(several) if several else 0.0 for several in ages),
            age_most=max((age for several in ages for age in several), default=0),
            waiting=tuple(account.waiting for account in accounts),
            late_for=max((end - account.late_since for account in accounts if account.late_since), default=0),
            discarded=tuple(account.discarded for account in accounts),
            starved=tuple(map(_longest_unheard, workers)) if whole else (),
        )


def _account(worker: WorkerMetrics) -> Account:
    """Return the worker's account at its end, or after its last iteration if the worker was killed."""
    if worker.totals is not None and worker.totals.account is not None:
        return worker.totals.account
    for line in reversed(worker.iterations):
        if line.account is not None:
            return line.account
    return Account()


def _longest_unheard(worker: WorkerMetrics) -> int:
    """Return the largest number of gradients in a row that added nothing to a sum. Without accounts, return the number
    of all iterations."""
    if not any(line.account for line in worker.iterations):
        return len(worker.iterations)
    longest = row = 0
    before = 0.0
    for line in worker.iterations:
        if line.account is not None:
            row = 0 if line.account.summed > before else row + 1
            longest, before = max(longest, row), line.account.summed
    return longest

"""DeepSpeed's scheme among threads equals its formulas for all workers together."""

import threading

import numpy as np
import pytest

from kofn_host.zero import Bytes, TwoSidedMean
from tests.system.zero.crews import all_of

pytestmark = pytest.mark.slow

WORKERS, ELEMENTS = 3, 50


class Shared:
    """Rows of all workers in one array."""

    def __init__(self, rank: int, board: dict[int, Bytes], barrier: threading.Barrier) -> None:
        self.rank, self.workers, self._board, self._barrier = rank, WORKERS, board, barrier

    def all_to_all(self, rows: Bytes) -> Bytes:
        return self._all(rows)[:, self.rank]

    def all_gather(self, row: Bytes) -> Bytes:
        return self._all(row)

    def _all(self, own: Bytes) -> Bytes:
        self._board[self.rank] = own
        self._barrier.wait(20)
        found = np.stack([self._board[rank] for rank in range(WORKERS)])
        self._barrier.wait(20)
        return found


def test_two_sided_mean_equals_the_formulas() -> None:
    board, barrier = dict[int, Bytes](), threading.Barrier(WORKERS)
    given = np.random.default_rng(2).normal(size=(6, WORKERS, ELEMENTS)).astype(np.float32)
    means = [TwoSidedMean(Shared(rank, board, barrier), ELEMENTS) for rank in range(WORKERS)]
    found = all_of(WORKERS, lambda rank: [means[rank].all_reduce(given[step, rank].copy()) for step in range(6)])

    padded = 72
    worker_error, server_error = np.zeros((WORKERS, padded)), np.zeros((WORKERS, padded // WORKERS))
    for step in range(6):
        x = worker_error + np.pad(given[step], ((0, 0), (0, padded - ELEMENTS)))
        sent = np.linalg.norm(x, axis=1, keepdims=True) / np.sqrt(padded) * np.where(x >= 0, 1, -1)
        worker_error = x - sent
        s = sent.mean(0).reshape(WORKERS, -1) + server_error
        back = np.linalg.norm(s, axis=1, keepdims=True) / np.sqrt(padded // WORKERS) * np.where(s >= 0, 1, -1)
        server_error = s - back
        for rank in range(WORKERS):
            assert np.abs(found[rank][step] - back.reshape(-1)[:ELEMENTS]).max() < 1e-5

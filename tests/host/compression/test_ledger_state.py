"""A ledger's state: copied between two iterations, taken over by one worker or merged into another's."""

from pathlib import Path

import numpy as np
import pytest

from kofn_common.config.compress import Residual
from kofn_common.wire.packet import bit_of
from kofn_host.compression.codecs.fixed_point import FixedPoint
from kofn_host.compression.ledger import Ledger
from kofn_host.compression.ledger_state import multiples, summed_by_others
from kofn_host.compression.ledger_storage import KEPT, LedgerStorage
from kofn_host.errors import CheckpointError, LedgerError
from tests.host.compression.test_ledger import result
from tests.host.lab import add, ledger_of, send

BLOCKS, LANES, CODEC = 5, 16, FixedPoint(workers=4)


def trained(rank: int, residual: Residual, iterations: int = 3) -> Ledger:
    """Return a ledger after some iterations; the sums of the last one lack this worker's odd blocks."""
    ledger = ledger_of(LedgerStorage.in_memory(blocks=BLOCKS, lanes=LANES, residual=residual), CODEC, rank)
    random = np.random.default_rng(rank)
    for iteration in range(1, iterations + 1):
        ledger.begin(iteration)
        add(ledger, random.normal(size=BLOCKS * LANES).astype(np.float32), iteration)
        send(ledger, iteration, CODEC)
        for block in range(BLOCKS):
            there = block % 2 == 0 or iteration < iterations
            ledger.settle_results(result(iteration, block, bit_of(3, 0) | (bit_of(rank, 0) if there else 0)))
    return ledger


def new(residual: Residual, rank: int = 0) -> Ledger:
    return ledger_of(LedgerStorage.in_memory(blocks=BLOCKS, lanes=LANES, residual=residual), CODEC, rank)


@pytest.mark.parametrize("residual", KEPT)
def test_restored_ledger_is_the_one_that_was_copied(residual: Residual) -> None:
    before, after = trained(1, residual), new(residual, 1)
    assert before.accounts.account().waiting > 0
    after.state.restore(3, [before.state.copy()])
    assert np.array_equal(after.residual.pending, before.residual.pending)
    assert after.accounts.account() == before.accounts.account()
    for name in ("gradients", "aggregated", "pending", "discarded"):
        assert np.array_equal(getattr(after.accounts.totals(), name), getattr(before.accounts.totals(), name))
    assert (after.begun, after.entered) == (3, 3)
    assert after.accounts.late_since == before.accounts.late_since


@pytest.mark.parametrize("residual", KEPT)
def test_ledger_that_takes_over_another_has_the_gradients_of_both(residual: Residual) -> None:
    ledgers, heir = [trained(rank, residual) for rank in (0, 1)], new(residual)
    heir.state.restore(3, [each.state.copy() for each in ledgers])
    totals, each = heir.accounts.totals(), [ledger.accounts.totals() for ledger in ledgers]
    assert totals.conserved
    for name in ("gradients", "aggregated"):
        assert np.array_equal(getattr(totals, name), sum(getattr(one, name) for one in each))
    accounts = [ledger.accounts.account() for ledger in ledgers]
    assert heir.accounts.account().waiting == sum(account.waiting for account in accounts)
    if residual == "exact":
        assert np.array_equal(heir.residual.pending, sum(ledger.residual.pending for ledger in ledgers))


def test_heir_of_missing_workers_has_what_they_had_in_sums_and_nothing_pending() -> None:
    ledgers = [trained(rank, "exact") for rank in range(3)]
    results = np.sum([ledger.accounts.totals().aggregated for ledger in ledgers], axis=0)
    known = [ledger.state.copy() for ledger in ledgers[:2]]
    heir = new("exact")
    heir.state.restore(3, [known[0], summed_by_others(results, known, known[0])])
    totals = heir.accounts.totals()
    assert totals.conserved
    assert np.array_equal(totals.aggregated + ledgers[1].accounts.totals().aggregated, results)
    assert np.array_equal(heir.residual.pending, ledgers[0].residual.pending)


def test_only_a_new_ledger_takes_over_a_state_that_fits() -> None:
    state = trained(0, "exact").state.copy()
    with pytest.raises(LedgerError, match="this one is in iteration 3"):
        trained(0, "exact").state.restore(3, [state])
    with pytest.raises(CheckpointError, match=r"pending must be int8 \(5, 16\), got int64 \(5, 16\)"):
        new("int8").state.restore(3, [state])


def test_ledger_of_a_process_that_died_while_restoring_is_new_again(tmp_path: Path) -> None:
    path, state = tmp_path / "0.ledger", trained(0, "exact").state.copy()

    def opened() -> Ledger:
        return ledger_of(LedgerStorage.in_file(path, job=1, rank=0, blocks=BLOCKS, lanes=LANES), CODEC)

    with pytest.raises(CheckpointError):
        opened().state.restore(3, [state, {}])  # the first one is taken over
    assert opened().begun == 0
    assert not opened().residual.pending.any()
    opened().state.restore(3, [state])
    assert opened().begun == 3
    assert opened().residual.pending.any()


def test_copies_are_kept_at_multiples_until_they_are_taken() -> None:
    ledger = trained(0, "exact")
    ledger.state.ended(3, 3)
    assert ledger.state.take(3) is None
    ledger.state.copy_every = 5
    ledger.state.ended(4, 11)
    assert ledger.state.take(4) is None
    assert ledger.state.take(5) is not None
    assert ledger.state.take(5) is None
    assert ledger.state.take(10) is not None


def test_multiples_of_nothing_are_none() -> None:
    assert [*multiples(10, 1, 30)] == [10, 20, 30]
    assert not multiples(10, 11, 19)
    assert not multiples(0, 1, 100)

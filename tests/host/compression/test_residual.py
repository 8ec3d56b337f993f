"""Residuals in fewer bits: rounded correctly, the rest counted as discarded, in less memory."""

from typing import Any, get_args

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from kofn_common.config.compress import Residual
from kofn_host.compression.codec import UNIT, statistics
from kofn_host.compression.codecs.onebit import OneBit
from kofn_host.compression.ledger import Ledger
from kofn_host.compression.ledger_native import Gradient
from kofn_host.compression.ledger_storage import LedgerStorage
from tests.host.compression.test_ledger import result, same_ledger
from tests.host.lab import add, checksums_of, ledger_of, send, to_fixed

BLOCKS, LANES = 3, 64

Values = npt.NDArray[Any]

GRADIENTS = arrays(np.float32, BLOCKS * LANES, elements=st.floats(-1000, 1000, width=32))


def made(residual: Residual) -> Ledger:
    ledger = ledger_of(LedgerStorage.in_memory(blocks=BLOCKS, lanes=LANES, residual=residual), OneBit())
    ledger.begin(1)
    return ledger


def bfloat16(values: Values) -> Values:
    """Round to eight significant bits, ties to even."""
    size = np.abs(values).astype(np.float64)
    step = 2.0 ** (np.floor(np.log2(np.maximum(size, 1))) - 7)
    rounded: Values = (np.sign(values) * np.round(size / step) * step).astype(np.int64)
    return rounded


def int8(values: Values) -> Values:
    """Round to the smallest steps of which the block's largest value has at most 127."""
    most = np.abs(values).max(1, keepdims=True).astype(np.float64)
    step = 2.0 ** np.maximum(0, np.ceil(np.log2(np.maximum(most, 1) / 127)))
    rounded: Values = (np.floor(values / step + np.where(step > 1, 0.5, 0)) * step).astype(np.int64)
    return rounded


@pytest.mark.parametrize(("residual", "oracle"), [("bfloat16", bfloat16), ("int8", int8)])
@given(gradient=GRADIENTS)
def test_residual_is_rounded_and_the_rest_is_discarded(residual: Residual, oracle: Any, gradient: Values) -> None:
    """float32 has 24 bits, so rounding to it first changes nothing."""
    ledger, fixed = made(residual), to_fixed(gradient).reshape(BLOCKS, LANES)
    add(ledger, gradient, 1)
    assert np.array_equal(ledger.residual.pending, oracle(fixed))
    totals = ledger.accounts.totals()
    assert totals.conserved
    assert np.array_equal(totals.discarded, checksums_of(ledger, (fixed - oracle(fixed)).ravel()))
    assert ledger.residual.lost_norm == pytest.approx(UNIT * np.linalg.norm((fixed - oracle(fixed)).astype(np.float64)))
    add(ledger, np.zeros_like(gradient), 2)
    assert np.array_equal(ledger.residual.pending, oracle(fixed)), "rounding errors stay pending"


@pytest.mark.parametrize("residual", get_args(Residual))
@given(first=GRADIENTS, second=GRADIENTS)
def test_look_enters_a_gradient_and_returns_the_statistics(residual: Residual, first: Values, second: Values) -> None:
    ledger, other = made(residual), made(residual)
    for iteration, gradient in ((1, first), (2, second)):
        found = ledger.look(Gradient.of(gradient, iteration))
        add(other, gradient, iteration)
        same_ledger(ledger, other)
        for looked in found, ledger.look(None):
            assert np.array_equal(looked, statistics(other.residual.pending))


@pytest.mark.parametrize("residual", ["bfloat16", "int8"])
def test_error_feedback_keeps_all_but_the_discarded_values(residual: Residual) -> None:
    """The sent values and the residual equal the given gradients, but for what the ledger reports as discarded."""
    ledger, given, counted = made(residual), np.zeros(BLOCKS * LANES), np.zeros((BLOCKS, LANES), np.int64)
    for iteration in range(1, 200):
        gradient = np.random.default_rng(iteration).normal(0.3, 1, BLOCKS * LANES).astype(np.float32)
        ledger.begin(iteration)
        add(ledger, gradient, iteration)
        given += to_fixed(gradient)
        send(ledger, iteration, OneBit())
        before = ledger.residual.pending
        counted += before - ledger.left_over(np.arange(BLOCKS), iteration)
        ledger.settle_results(*(result(iteration, block, 0b1) for block in range(BLOCKS)))
    missing = UNIT * np.linalg.norm(given - counted.ravel() - ledger.residual.pending.ravel())
    assert ledger.accounts.totals().conserved
    assert 0 < missing <= np.sqrt(2 * 199) * ledger.residual.lost_norm, (
        "each step has two roundings, which may have the same sign"
    )
    assert missing < 0.01 * UNIT * np.linalg.norm(given)


def test_narrow_residuals_take_less_memory() -> None:
    kept = {residual: made(residual).accounts.memory.residuals for residual in ("exact", "bfloat16", "int8")}
    assert kept == {"exact": 8 * BLOCKS * LANES, "bfloat16": 2 * BLOCKS * LANES, "int8": BLOCKS * LANES}

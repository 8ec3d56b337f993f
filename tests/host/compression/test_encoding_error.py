"""The expected error of narrow lanes against the true one, and the lanes that are refused because of it."""

from typing import Any

import numpy as np
import pytest

from kofn_common.config.compress import CompressSection
from kofn_common.config.job import JobSection
from kofn_host.compression.codec import UNIT, statistics
from kofn_host.compression.codecs.fixed_point import FixedPoint
from kofn_host.compression.encoding import misfits_of
from kofn_host.compression.encoding_error import expected_error
from kofn_host.compression.job_coding import JobCoding
from kofn_host.compression.plan import Planner
from kofn_host.compression.summary_block import ONE, Magnitudes, SummaryBlock
from tests.host.lab import to_fixed

VALUES = {
    "normal": lambda random, shape: random.normal(size=shape),
    "laplace": lambda random, shape: random.laplace(size=shape),
    "heavy tails": lambda random, shape: random.standard_t(3, size=shape),
    "uniform": lambda random, shape: random.uniform(-1, 1, size=shape),
    "blocks of all sizes": lambda random, shape: random.normal(size=shape) * np.exp(random.normal(size=(shape[0], 1))),
}


@pytest.mark.parametrize(
    ("sample", "share"), [([], 0), ([0, 0], 0), ([0, 1, -0.25, 0.24], 1 / 3), ([0, -2, 2.0**31, -0.1, 0.1], 3 / 4)]
)
def test_misfits_are_the_nonzero_elements_that_are_lost_or_clipped(sample: list[float], share: float) -> None:
    codec = FixedPoint(workers=1)
    assert misfits_of(np.array(sample, np.float32), codec, np.array([1])) == pytest.approx(share)


@pytest.mark.parametrize("name", VALUES)
@pytest.mark.parametrize(("workers", "width"), [(2, 16), (2, 8), (2, 4), (4, 8), (4, 4), (16, 8), (64, 8)])
def test_expected_error_is_near_the_true_encoding_error(name: str, workers: int, width: int) -> None:
    values = to_fixed((1e-4 * VALUES[name](np.random.default_rng(1), (100, 512))).astype(np.float32))
    mean, largest = statistics(values)
    codec = FixedPoint(workers=workers, width=width)
    scale = codec.scale(mean, largest)[:, None]
    left_over = (values - codec.decode(codec.encode(values, scale), scale, 1)) * UNIT
    true = np.square(left_over).sum() / np.square(values * UNIT).sum()
    found = expected_error(codec, Magnitudes(mean=mean, largest=largest))
    assert true / 2 < found < 1.5 * true + 1e-9


def test_zero_gradient_has_no_encoding_error() -> None:
    nothing = Magnitudes(mean=np.zeros(3), largest=np.zeros(3))
    assert expected_error(FixedPoint(workers=4, width=4), nothing) == 0


def planner(**compress: Any) -> Planner:
    """Return a planner for four workers, where 4-bit lanes have a single step up and down."""
    return JobCoding.of(
        JobSection(words=8), CompressSection(codec="auto", ratio_control="deliverable", **compress), 16 * 512
    ).planner


NOISE = Magnitudes(mean=np.full(16, 2.0**-10), largest=np.full(16, 2.0**-7))
"""Magnitudes of a gradient of which 4-bit lanes lose three quarters."""


def said(wish: float) -> SummaryBlock:
    return SummaryBlock(wish=round(wish * ONE), magnitudes=NOISE)


@pytest.mark.parametrize(
    ("compress", "wish", "width"),
    [
        ({}, 0.1, 4),
        ({"max_encoding_error": 0.5}, 0.1, 8),
        ({"error_feedback": False}, 0.1, 8),
        ({"error_feedback": False, "max_encoding_error": 1.0}, 0.1, 4),
        ({"error_feedback": False}, 0.3, 8),
        ({"max_encoding_error": 1e-4}, 0.3, 16),
        ({"max_encoding_error": 1e-12}, 0.3, 32),
        ({"error_feedback": False, "ratio": 0.125}, 0.1, 4),
    ],
    ids=str,
)
def test_lanes_are_narrowed_as_far_as_the_gradient_permits(
    compress: dict[str, object], wish: float, width: int
) -> None:
    made = planner(**compress)
    plan = made.after(made.first(), said(wish))
    assert made.widths[plan.lanes] == width
    refused = made.refused(plan)
    if width > made.asked(wish):
        assert refused is not None
        assert refused[0] == made.asked(wish)
        assert refused[1] > made.error_max
        assert len(plan.blocks) == 16, "all blocks are sent, because leaving some out costs more than narrow lanes"
    else:
        assert refused is None
    assert made.narrowest(NOISE) <= width


def test_no_lanes_are_refused_before_the_gradient_is_known() -> None:
    made = planner(error_feedback=False)
    assert made.narrowest(None) == 4
    assert made.refused(made.first()) is None


def test_configured_lanes_are_not_refused() -> None:
    made = JobCoding.of(
        JobSection(words=8), CompressSection(codec="auto", ratio=0.125, error_feedback=False), 16 * 512
    ).planner
    plan = made.after(made.first(), said(1.0))
    assert made.widths[plan.lanes] == 4
    assert len(plan.blocks) == 16

"""Laws of blocking times other than Poisson's."""

from itertools import groupby

import numpy as np
import pytest

from kofn_common.config.errors import ConfigError
from kofn_common.config.schema import Config
from kofn_host.workload.stragglers.drawn import Drawn


def drawn(text: str, rank: int = 0) -> Drawn:
    return Drawn(Config.parse(f"[[straggler]]\nworkers = [0, 1]\n{text}"), rank)


def test_constant_blocking_is_always_the_same() -> None:
    source = drawn("law = 'constant'\nmean_ms = 7")
    assert {source.blocking_s(iteration, batch) for iteration in range(1, 600) for batch in (0, 1)} == {0.007}


def test_bursts_are_as_long_and_frequent_as_configured() -> None:
    source = drawn("law = 'bursty'\nmean_ms = 4\nburst_share = 0.2\nburst_iterations = 8")
    blocked = np.array([source.blocking_s(iteration) for iteration in range(1, 40_001)])
    assert {*np.round(blocked, 9)} == {0.0, 0.02}, "4 ms on average are 20 ms in a fifth of all iterations"
    assert blocked.mean() == pytest.approx(0.004, rel=0.06) and source.mean_s(1) == 0.004
    lengths = [len([*run]) for value, run in groupby(blocked) if value]
    assert np.mean(lengths) == pytest.approx(8, rel=0.06)
    assert np.std(lengths) == pytest.approx(np.sqrt(8 * 7), rel=0.1), (
        "lengths must be geometric, because the chain has no memory"
    )


def test_burst_is_the_same_for_every_reader_at_any_time() -> None:
    text = "law = 'bursty'\nmean_ms = 4\nburst_share = 0.3\nburst_iterations = 5"
    in_order = drawn(text)
    times = [in_order.blocking_s(iteration) for iteration in range(1, 701)]
    late = drawn(text)
    assert late.blocking_s(700) == times[-1] and late.blocking_s(700, 2) == times[-1], (
        "a reader that starts late must draw the same times"
    )
    assert [late.blocking_s(iteration) for iteration in range(1, 701)] == times
    assert [drawn(text, 1).blocking_s(iteration) for iteration in range(1, 701)] != times


def test_burst_needs_a_pause_after_it() -> None:
    with pytest.raises(
        ConfigError, match=r"straggler.burst_share must be at most 0.8 with burst_iterations = 4, got 0.9"
    ):
        drawn("law = 'bursty'\nmean_ms = 4\nburst_share = 0.9\nburst_iterations = 4")
    drawn("law = 'bursty'\nmean_ms = 4\nburst_share = 0.8\nburst_iterations = 4").blocking_s(9)

"""`kofn experiment schedule`: its scenarios and its claims."""

import pandas as pd

from kofn.experiments.claims import judge
from kofn.experiments.schedule.arms import contender_arms
from kofn.experiments.schedule.claims import CLAIMS, of_accelerators
from kofn.experiments.schedule.contenders import ALL, COMPUTE_MS, REAL, link_of
from kofn.experiments.schedule.tables import tables
from kofn_host.workload import LayeredWorkload, load_workload
from kofn_host.workload.workloads.accelerator import layers_of, times_of


def test_transfers_exceed_the_computation_by_the_named_factor() -> None:
    for name in ("equal-0.5-auto", "vgg-1-auto", "transformer-2-auto", "mlp-1-sequential"):
        config = ALL[name].scenario([], None).config
        times, layers = times_of(config.layer), layers_of(config.layer)
        assert abs(times.compute_s - COMPUTE_MS / 1000) < 1e-9
        transfer_s = link_of(config).transfer_s(layers[-1].end)
        assert abs(transfer_s / times.compute_s / float(ALL[name].ratio) - 1) < 1e-3


def test_real_scenario_computes_a_layered_model() -> None:
    config = ALL[f"{REAL}-auto"].scenario([], None).config
    workload = load_workload(config, 0)
    assert isinstance(workload, LayeredWorkload)
    assert [layer.elements for layer in workload.model.layers] == [65 * 960, 961 * 960, 961 * 10]
    assert config.schedule.family == "auto"


def trials(times: dict[str, float]) -> pd.DataFrame:
    """Return one seed of each scenario; the bound is 0.3 s, and the model expects 0.4 s."""
    rows = [
        {
            "scenario": name,
            "seed": 1,
            "iteration_s": took_s,
            "bound_s": 0.3,
            "predicted_s": 0.4,
            "transfer": 1.0,
            "schedule": "priority:1000:0",
            "searched": 0,
        }
        for name, took_s in times.items()
    ]
    return pd.DataFrame(rows)


def test_claims_about_accelerators_hold_or_fail() -> None:
    seconds = {"sequential": 0.6, "buckets-1mb": 0.4, "priority": 0.42, "auto": 0.36}
    given = {f"{setting}-{name}": took_s for setting in ("equal-1", "real") for name, took_s in seconds.items()}
    arms = contender_arms(trials(given))
    held = [verdict.holds for verdict in judge(CLAIMS, of_accelerators(arms))]
    assert held == [
        *(True,),  # never slower than the best other
        *(False, True),  # against buckets 1.11 times, against no overlap 1.67 times
        *(False,),  # 1.2 times the bound
        *(False,),  # 0.6 s where the model expects 0.4 s
        *(False,),  # the model expects all to take equally long
    ]
    equal, real = tables(arms)
    assert "equal: the transfer takes 1 times" in str(equal.title)
    assert "real: the transfer takes 1 times" in str(real.title)

"""compare.toml and compare-torch.toml: cells, replayed gradients, columns and claims; one ring for real."""

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

from examples.experiments import compare_cells
from examples.experiments.compare_cells import Replayed, gradients, time_columns, width
from kofn.experiments import claims, compare_command
from kofn.experiments.cells import Cell, cells_of
from kofn.experiments.claims import Verdict
from kofn.experiments.compare_command import command
from kofn.experiments.experiment_file import ExperimentFile
from kofn.experiments.reader import FinishedTrial
from kofn_common.config.schema import Config
from kofn_common.results.folder import RunFolder
from kofn_common.results.memory import Memory
from kofn_common.results.worker_metrics import TIME_PARTS
from tests.experiments.given import EXAMPLES, GivenResults
from tests.experiments.test_chaos import SUMMARY
from tests.run import fake_run
from tests.run.real_run import KOFN, OWN_NETWORK

FILE = EXAMPLES / "compare.toml"
TORCH = EXAMPLES / "compare-torch.toml"

SENDS = ("server-int32", "server-int8", "ring", "gloo", "mpi")
SUMS = tuple(f"{name}-{codec}" for name in ("full", "fixed", "adaptive") for codec in ("int32", "int8"))


@pytest.fixture(autouse=True)
def installed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pretend that gloo and Open MPI are installed."""
    monkeypatch.setattr("kofn_host.collectives.kinds.gloo.Gloo.missing", lambda: "")
    monkeypatch.setattr("kofn_host.collectives.kinds.mpi.Mpi.missing", lambda: "")


def cells(path: Path = FILE, settings: Sequence[str] = (), **chosen: Sequence[str]) -> dict[tuple[str, ...], Cell]:
    """Return the first seed's cells by their axes' values and contender, as text."""
    file = ExperimentFile.load(path, settings, seeds=1).only({name.replace("_", "."): v for name, v in chosen.items()})
    return {(*map(str, one.point.axes.values()), one.point.contender): one for one in cells_of(file, Path("nowhere"))}


def test_every_contender_is_in_every_setting_and_one_measures_the_machine() -> None:
    found = cells()
    limited = [key for key in found if key[3] != "unlimited"]
    assert len(limited) == 2 * 2 * 2 * 2 * 11, "models x stragglers x workers x rates x contenders"
    assert [key[4] for key in limited[:11]] == [*SENDS, *SUMS], "one after another, so ratios are of neighbours in time"
    free = [("1m", "none", workers, "unlimited", "full-int32") for workers in ("4", "8")]
    assert [key for key in found if key[3] == "unlimited"] == free
    assert all(found[key].config.compress.pace_mbps == 0 for key in free)


def test_settings_are_those_of_a_fair_comparison() -> None:
    for (model, straggler, workers, link, contender), cell in cells(model=["digits", "1m", "10m"]).items():
        config = cell.config
        stem, _, codec = contender.partition("-")
        assert (config.job.words, config.job.workers) == (32, int(workers))
        assert config.job.collective == (stem if stem in ("server", "ring", "gloo", "mpi") else "switch")
        assert config.compress.codec == (codec or "int32")
        fixed = f"fixed:{int(workers) - 1}"
        assert config.run.trials == ({"fixed": fixed, "adaptive": "progress"}.get(stem, "all"),)
        assert link == "unlimited" or config.network.link_mbps == float(link.removesuffix("-mbps"))
        last = max((entry.mean_ms for entry in config.straggler if int(workers) - 1 in entry.workers), default=0.0)
        first = max((entry.mean_ms for entry in config.straggler if 0 in entry.workers), default=0.0)
        assert (first, last) == ((0.0, 0.0) if straggler == "none" else (1.0, 60.0))
        trained = (config.run.max_iterations, config.model.compute_ms, config.model.workload_name)
        iterations = {"digits": 1000, "1m": 16, "10m": 6}[model]
        expected = (10.0, "digits") if model == "digits" else (0.0, "compare_cells:Replayed")
        assert trained == (iterations, *expected)


def test_contenders_that_are_not_installed_are_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kofn_host.collectives.kinds.mpi.Mpi.missing", lambda: "it is mpi4py's")
    assert {key[4] for key in cells()} == {*SENDS, *SUMS} - {"mpi"}


def test_own_gradients_replace_the_models(tmp_path: Path) -> None:
    found = cells(settings=[f"model.replay={tmp_path}"], link=["50-mbps"], straggler=["none"], job_workers=["4"])
    assert {key[0] for key in found} == {"own"}
    assert {cell.config.model.workload_name for cell in found.values()} == {"replay"}


def test_training_in_pytorch_is_a_script_for_every_contender() -> None:
    """DDP's hook has k = n, like gloo. The elastic optimizer has a smaller k, with each worker in its own group."""
    found = {(key[0], key[2]): cell.config for key, cell in cells(TORCH, link=["200-mbps"]).items()}
    for straggler, blocking_ms in (("none", []), ("blocked", [1.0, 3000.0])):
        configs = [found[straggler, name] for name in ("gloo", "full-int32", "adaptive-int32")]
        assert [config.job.collective for config in configs] == ["gloo", "switch", "switch"]
        assert [config.torch.group for config in configs] == ["job", "job", "worker"]
        assert [config.torch.arguments for config in configs] == [(), (), ("--elastic",)]
        assert all([each.mean_ms for each in config.straggler] == blocking_ms for config in configs)
        assert {Path(config.torch.script or "").is_file() for config in configs} == {True}


# Gradients


def test_gradients_are_those_of_the_real_model_and_go_around() -> None:
    (parameters,) = {one.size for one in gradients((960, 960))}
    assert parameters == 994_570
    config = Config.of({"model": {"workload": "digits", "hidden": [5, 3]}})
    workers = [Replayed(config, rank) for rank in range(3)]
    assert workers[0].parameters.shape == (64 * 5 + 5 + 5 * 3 + 3 + 3 * 10 + 10,) and not workers[0].parameters.any()
    given = [[worker.gradient(iteration)[1] for iteration in range(1, 6)] for worker in workers]
    assert all(one.dtype == np.float32 and one.any() for one in given[0])
    assert given[1][0] is given[0][1] and given[0][4] is given[0][0]
    assert len({one.tobytes() for one in given[0]}) == 4


# Columns


def test_columns_compare_with_the_links_limit(tmp_path: Path) -> None:
    cell = cells()["1m", "none", "4", "50-mbps", "full-int8"]
    made = RunFolder.create(tmp_path, ["all"])
    fake = fake_run.simulate(iterations=6, k=lambda iteration: 4)
    for lines in fake.lines:
        for number, line in enumerate(lines):
            line.update(dict.fromkeys(TIME_PARTS, 0.0), started=0.1 * number, time=0.1 * (number + 1))
            line.update(wait_s=0.07, step_s=0.02)
    fake_run.write_job(made.jobs[0], [fake])
    links = {f"h{rank}": (1200, 600) for rank in range(1, 6)}
    memory = Memory(parameters=4_000_000, gradients=0, optimizer=0, residuals=0, ledger=0)
    summary = replace(SUMMARY, iterations=6, link_bytes=links, memory=memory)
    trial = FinishedTrial(cell=cell, folder=made.jobs[0].trials[0], summary=summary)
    found = compare_cells.columns(trial)
    assert (found["gradient_bytes"], found["limit_s"]) == (1_000_000, pytest.approx(0.16))
    assert (found["iteration_s"], found["worker_iteration_s"]) == pytest.approx((0.1, 0.1))
    assert found["times_limit"] == pytest.approx(0.1 / 0.16)
    assert found["goodput_share"] == pytest.approx(1.6)
    assert found["reduce_s"] == pytest.approx(0.07)
    assert found["parts_off"] == pytest.approx(-0.1)
    assert (found["worker_up_bytes"], found["inner_down_bytes"]) == (200.0, 100.0), "means of six iterations"
    assert found["memory_bytes"] == 4_000_000
    assert time_columns(trial.metrics(), None)["times_limit"] is None


def test_elements_have_the_codecs_width_on_the_wire() -> None:
    found = cells(model=["1m"], link=["50-mbps"], straggler=["none"], job_workers=["4"])
    bits = {key[4]: width(cell.config) for key, cell in found.items()}
    assert bits == {name: 8 if name.endswith("int8") else 32 for name in (*SENDS, *SUMS)}


# Claims


def row(contender: str, iteration_s: float, **of: Any) -> dict[str, object]:
    setting = {"model": "1m", "straggler": "none", "job.workers": 4, "link": "100-mbps"} | of
    times: dict[str, object] = {"times_limit": iteration_s, "time_to_target_s": None, "parts_off": 0.0}
    return {**times, **setting, "contender": contender, "iteration_s": iteration_s} | of


def verdicts(*rows: dict[str, object]) -> list[Verdict]:
    return claims.verdicts(GivenResults(FILE, rows))


def said(words: str, *rows: dict[str, object]) -> Verdict:
    (one,) = [verdict for verdict in verdicts(*rows) if words in verdict.claim]
    return one


def test_link_is_the_limit_if_unlimited_links_are_faster() -> None:
    rows = [row("full-int32", 0.4, seed=1), row("full-int32", 0.1, seed=2)]
    free = [row("full-int32", 0.16, link="unlimited", seed=1), row("full-int32", 0.16, link="unlimited", seed=2)]
    found = said("the limit, not", *rows, *free)
    assert (found.holds, found.numbers) == (True, "full-int32 takes 200.0 ms, on unlimited links 160.0 ms")
    assert found.claim.startswith("1m, 4 workers: links of 100-mbps")
    assert said("the limit, not", row("full-int32", 0.19), free[0]).holds is False
    assert said("the limit, not", *rows).numbers == "needs runs of full-int32 with link = unlimited"


def test_network_time_is_compared_with_the_links_limit() -> None:
    assert said("full-int32: an iteration within 1.15", row("full-int32", 1.15)).holds
    assert said("full-int32: an iteration within 1.15", row("full-int32", 1.2)).holds is False
    assert said("full-int8: an iteration within 1.15", row("full-int8", 1.2)).holds is False


def test_full_is_compared_with_the_fastest_ring_by_seed() -> None:
    rows = [row(name, time_s * seed, seed=seed) for seed in (1, 2) for name, time_s in (("ring", 1.5), ("gloo", 1.6))]
    full = [row("full-int32", seed, seed=seed) for seed in (1.0, 2.0)]
    assert said("full-int32 at least 1.5", *rows, *full).holds
    assert said("full-int32 at least 1.5", *rows, *full, row("mpi", 1.4), row("mpi", 2.8, seed=2)).holds is False
    assert said("full-int32 at least 1.5", *full).answer == "not asked"


def test_full_is_compared_with_the_server_of_the_same_codec() -> None:
    rows = [row("server-int32", 3.3), row("full-int32", 1.0), row("server-int8", 3.1), row("full-int8", 1.0)]
    assert said("3.2 times faster than server-int32", *rows).holds
    assert said("3.2 times faster than server-int8", *rows).holds is False
    eight = [row(name, time_s, **{"job.workers": 8}) for name, time_s in (("server-int8", 6.5), ("full-int8", 1.0))]
    assert said("6.4 times faster than server-int8", *eight).holds
    assert said("6.4 times faster than server-int32", *eight).answer == "not asked"


def test_claims_of_replayed_gradients_are_made_without_stragglers_only() -> None:
    rows = [row(name, 1.0, straggler="blocked") for name in ("server-int32", "ring", "full-int32")]
    asked = [one.claim for one in verdicts(*rows) if one.holds is not None]
    assert asked == ["the parts of an iteration's time add up to it within 5% in every run"]


def test_chosen_k_is_compared_with_all_others_to_the_target() -> None:
    of: dict[str, Any] = {"model": "digits", "straggler": "blocked"}
    adaptive = row("adaptive-int32", 0.1, time_to_target_s=5.0, **of)
    others = [row(name, 0.1, time_to_target_s=10.0, **of) for name in ("server-int32", "ring", "fixed-int8")]
    assert said("adaptive-int32 at the target", *others, adaptive).holds
    faster, never = (row("fixed-int32", 0.1, time_to_target_s=time_s, **of) for time_s in (4.0, None))
    assert said("adaptive-int32 at the target", *others, faster, adaptive).holds is False
    assert said("adaptive-int32 at the target", *others, never, adaptive).holds
    lost = row("adaptive-int32", 0.1, **of)
    assert said("adaptive-int32 at the target", *others, lost).holds is False
    assert said("adaptive-int32 at the target", adaptive).answer == "not asked"


def test_parts_of_the_time_must_add_up() -> None:
    rows = [row("ring", 1.0, parts_off=0.04), row("full-int32", 1.0, parts_off=-0.02)]
    assert said("add up", *rows).holds
    off = said("add up", *rows, row("full-int8", 1.0, parts_off=-0.08))
    assert off.holds is False
    assert off.numbers == "2 of 3 runs; furthest off is 1m, none, 4, 100-mbps, full-int8, seed 1, by -8.0%"


# The command


def test_command_runs_the_file_of_the_checkout(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    chosen = [
        "--only",
        "model=digits",
        "--only",
        "straggler=blocked",
        "--only",
        "job.workers=4",
        "--only",
        "link=50-mbps",
    ]
    told = CliRunner().invoke(command, ["--dry-run", "--json", *chosen, "--seeds", "1"], catch_exceptions=False)
    assert len(json.loads(told.stdout)["cells"]) == 11
    none = CliRunner().invoke(command, ["--only", "model=own", "--out", str(tmp_path / "out")], catch_exceptions=False)
    assert (none.exit_code, (tmp_path / "out").exists()) == (2, False)
    assert "must have a cell, got none: --only, or compare_cells:possible, leaves all out" in " ".join(
        none.output.split()
    )
    monkeypatch.setattr(compare_command, "FILE", tmp_path / "compare.toml")
    without = CliRunner().invoke(command, ["--dry-run"], catch_exceptions=False)
    assert without.exit_code == 2
    assert "kofn compare needs a checkout of kofn" in " ".join(without.output.split())


@pytest.mark.root
@pytest.mark.long
def test_one_comparison_runs_for_real(tmp_path: Path) -> None:
    given, out = tmp_path / "gradients", tmp_path / "out"
    given.mkdir()
    for number in range(2):
        np.save(given / f"{number}.npy", np.full(50_000, number + 1, np.float32))
    chosen = ["straggler=none", "job.workers=4", "link=50-mbps", "contender=ring"]
    arguments = [word for choice in chosen for word in ("--only", choice)]
    own = ["--set", f"model.replay={given}"]
    result = subprocess.run(
        [*OWN_NETWORK, sys.executable, "-c", KOFN, "compare", *arguments, *own, "--seeds", "1", "--out", out, "--json"],
        env={**os.environ, "KOFN_STATE_DIR": str(tmp_path / "state")},
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert result.returncode == 0, result.stderr
    (found,) = json.loads(result.stdout)["table"]
    assert (found["model"], found["contender"], found["n"]) == ("own", "ring", 1)
    assert 1.0 < found["times_limit"] < 20
    assert (out / "report.html").exists()

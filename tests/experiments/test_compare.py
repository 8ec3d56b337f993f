"""`kofn compare`: its plan, its estimates, its runs, its continuation, its claims and its report; one ring for real."""

import csv
import json
import subprocess
import sys
import xml.etree.ElementTree as ET
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from click.testing import CliRunner, Result
from rich.console import Console

from kofn.experiments.claims import Verdict, explanation, judge
from kofn.experiments.compare import ceiling, comparison, models
from kofn.experiments.compare.arms import ContenderArm, contender_arms
from kofn.experiments.compare.ceiling import Ceiling, Ceilings, carried, round_below
from kofn.experiments.compare.claims import CLAIMS
from kofn.experiments.compare.columns import LINKS, point_columns
from kofn.experiments.compare.command import command
from kofn.experiments.compare.estimate import assumed, cell_s
from kofn.experiments.compare.models import GPT, GPT_ELEMENTS, GPT_SCRIPT, GradientModel, capture, elements_of
from kofn.experiments.compare.plan import QUICK, Axes, ComparisonPlan
from kofn.experiments.compare.points import BLOCKED, NONE, Contender, Point, Setting
from kofn.experiments.compare.tables import setting_table
from kofn.experiments.matrix import Timekeeper
from kofn.experiments.trials import frame
from kofn.report.frames import summary_columns
from kofn.run.errors import InterruptedRun, RunError
from kofn.run.plan import RunPlan, make_plan, prepare
from kofn_common.config.errors import ConfigError
from kofn_common.config.stragglers import StragglerSection
from kofn_common.results.folder import RunFolder
from kofn_common.results.worker_metrics import TIME_PARTS
from tests.experiments.test_chaos import SUMMARY
from tests.run import fake_run
from tests.run.real_run import OWN_NETWORK

WIDTH = 190
"""Terminal columns that the tables need."""

KOFN = "from kofn.cli.main import main; main()"

LARGE = GradientModel(name="1m", elements=1_000_000, replay=Path("/gradients/1m"))
DIGITS = GradientModel(name="digits", elements=4810)
SCRIPTED = GradientModel(name=GPT, elements=GPT_ELEMENTS)
CARRIED = {4: Ceiling(workers=4, contributions_s=1e6, reduce_mbps=1500.0), 8: assumed(8)}


def point(
    name: str, *, model: GradientModel = LARGE, straggler: str = NONE, workers: int = 4, mbps: float = 100.0
) -> Point:
    collective, _, codec = name.partition("-")
    return Point(
        setting=Setting(model=model, straggler=straggler, workers=workers, mbps=mbps),
        contender=Contender(collective=collective, codec=codec or "float32"),
        k=workers - 1,
    )


def row(
    name: str, *iteration_s: float, times_s: tuple[float | None, ...] = (), off: float = 0.0, **of: Any
) -> ContenderArm:
    """Return an arm with one trial a seed; half of each iteration is waiting."""
    at = point(name, **of)
    links = (4e6, 4e6, 16e6 if name.startswith("server") else 0.0, 0.0)
    rows = [
        {
            "scenario": at.name,
            "seed": seed,
            "target": 0.95,
            **summary_columns(
                replace(SUMMARY, time_to_target_s=time_s, iterations_to_target=None if time_s is None else 100)
            ),
            **point_columns(at),
            **dict.fromkeys(TIME_PARTS, 0.0),
            "wait_s": one_s / 2,
            "send_s": one_s / 2,
            "iteration_s": one_s,
            "reduce_s": 0.9 * one_s,
            "parts_off": one_s / (one_s / (1 + off)) - 1,
            "times_limit": one_s / at.limit_s,
            **dict(zip(LINKS, links, strict=True)),
        }
        for seed, (one_s, time_s) in enumerate(zip(iteration_s, times_s or iteration_s, strict=True), 1)
    ]
    return ContenderArm(trials=frame(rows), point=at)


def verdicts(arms: list[ContenderArm]) -> list[Verdict]:
    trials = pd.concat([arm.trials for arm in arms])
    return judge(CLAIMS, contender_arms(trials, {arm.point.name: arm.point for arm in arms}))


def said(rows: list[ContenderArm], words: str) -> Verdict:
    (one,) = [verdict for verdict in verdicts(rows) if words in verdict.claim]
    return one


# The plan


def planned(folder: Path, axes: Axes, ceilings: dict[int, Ceiling] | None = None) -> ComparisonPlan:
    found = [model for model in (DIGITS, LARGE, SCRIPTED) if model.name in axes.models]
    known = ceilings or {workers: CARRIED[workers] for workers in axes.workers}
    return ComparisonPlan.of(replace(axes, switches=False), folder, found, known)


def test_matrix_is_every_contender_in_every_setting_and_seed(tmp_path: Path) -> None:
    axes = Axes(collectives=("server", "ring", "full", "fixed", "adaptive"), seeds=2)
    plan = planned(tmp_path, axes)
    assert len(plan.cells) == 2 * 2 * 9 * (2 + 1) * 2, (
        "models x stragglers x contenders x rates of 4 and of 8 workers x seeds"
    )
    sends = ("server-int32", "server-int8", "ring", "full-int32", "full-int8", "fixed-int32", "fixed-int8")
    first = [f"digits-none-4w-100m-{name}" for name in (*sends, "adaptive-int32", "adaptive-int8")]
    neighbours = "one after another, so that ratios are of neighbours in time"
    assert [cell.scenario.name for cell in plan.cells[:9]] == first, neighbours
    assert {cell.seed for cell in plan.cells[: len(plan.cells) // 2]} == {1}
    rates = {(one.setting.workers, one.setting.mbps) for one in plan.points.values()}
    assert rates == {(4, 100.0), (4, 1000.0), (8, 100.0)}, "this machine carries no higher rate of eight workers"


def test_every_cell_is_a_run(tmp_path: Path) -> None:
    axes = Axes(collectives=("server", "ring", "full", "fixed", "adaptive"), workers=(4,), seeds=1, iterations=5)
    plan = planned(tmp_path, axes)
    for cell in plan.cells:
        planned_point = plan.points[cell.scenario.name]
        config = cell.plan().shared
        assert config == cell.config == make_plan(cell.source).shared
        setting, contender = planned_point.setting, planned_point.contender
        assert config.job.words == 32
        assert config.network.link_mbps == setting.mbps
        assert config.job.collective == {"server": "server", "ring": "ring"}.get(contender.collective, "switch")
        assert config.run.trials == ({"fixed": "fixed:3", "adaptive": "progress"}.get(contender.collective, "all"),)
        assert config.compress.codec == ("int32" if contender.collective == "ring" else contender.codec)
        blocked = (StragglerSection(workers=(0, 1, 2), mean_ms=1.0), StragglerSection(workers=(3,), mean_ms=60.0))
        assert config.straggler == (blocked if setting.straggler == BLOCKED else ())
        replayed = setting.model is LARGE
        assert config.model.replay == ("/gradients/1m" if replayed else None)
        assert config.run.max_iterations == (5 if replayed else 1000)


def test_training_in_pytorch_is_a_script_for_every_contender(tmp_path: Path) -> None:
    """DDP's hook has k = n, like gloo. The elastic optimizer has a smaller k, with each worker in its own group."""
    pytest.importorskip("torch")
    axes = Axes(collectives=("gloo", "full", "adaptive"), codecs=("int32",), models=(GPT,), workers=(4,), iterations=5)
    by_name = {cell.scenario.name: cell.plan().shared for cell in planned(tmp_path, axes).cells}
    for straggler, blocking_ms in ((NONE, []), (BLOCKED, [1.0, 3000.0])):
        configs = [by_name[f"gpt-{straggler}-4w-100m-{name}"] for name in ("gloo", "full-int32", "adaptive-int32")]
        assert [config.job.collective for config in configs] == ["gloo", "switch", "switch"]
        assert [config.torch.group for config in configs] == ["job", "job", "worker"]
        assert [config.torch.arguments for config in configs] == [(), (), ("--elastic",)]
        assert all(Path(config.torch.script or "").samefile(GPT_SCRIPT) for config in configs)
        assert all([each.mean_ms for each in config.straggler] == blocking_ms for config in configs)
        assert {config.run.max_iterations for config in configs} == {5}


def test_quick_matrix_is_a_part_of_the_whole(tmp_path: Path) -> None:
    assert list(planned(tmp_path, replace(QUICK, collectives=("server", "ring", "full", "adaptive"))).points) == [
        *(f"digits-blocked-4w-100m-{name}" for name in ("server-int32", "ring", "full-int32", "adaptive-int32")),
        *(f"1m-none-4w-100m-{name}" for name in ("server-int32", "server-int8", "ring", "full-int32", "full-int8")),
    ]


def test_settings_come_last_and_invalid_ones_are_named(tmp_path: Path) -> None:
    axes = Axes(collectives=("full",), workers=(4,), models=("1m",), settings=("job.window=16",))
    assert all(cell.config.job.window == 16 for cell in planned(tmp_path, axes).cells)
    with pytest.raises(
        ConfigError,
        match=r"1m-none-4w-100m-full-int32: .*job.window must be a power of two from 1 to 512 .*, got 4096",
    ):
        planned(tmp_path, replace(axes, settings=("job.window=4096",)))
    with pytest.raises(ConfigError, match=r"--k must be 1 to 4"):
        Axes(k=5).check()


def test_rates_beyond_the_machine_are_replaced() -> None:
    known = {
        4: Ceiling(workers=4, contributions_s=1e6, reduce_mbps=700.0),
        8: Ceiling(workers=8, contributions_s=4000.0, reduce_mbps=700.0),
    }
    rates, notes = carried([100.0, 560.0, 1000.0], known)
    assert rates == {4: [100.0, 500.0, 560.0], 8: [20.0]}, "with 8 workers the switch sums 32.8 Mbit/s of each"
    assert notes[0].startswith("4 workers: links of 1000 Mbit/s are above")
    assert "(80% of 33 Mbit/s): 20 Mbit/s instead" in notes[1]
    assert carried([100.0], {4: known[4]}) == ({4: [100.0]}, [])
    assert [round_below(number) for number in (847.0, 100.0, 99.0, 0.25, 7.0)] == [800.0, 100.0, 90.0, 0.2, 7.0]


# The estimate


def test_estimate_follows_the_bottleneck() -> None:
    fast = CARRIED[4]
    full_s = cell_s(point("full-int32"), fast, 10)
    assert cell_s(point("full-int32"), fast, 20) - full_s == pytest.approx(10 * 0.32), (
        "32 Mbit take 0.32 s at 100 Mbit/s"
    )
    server_s = cell_s(point("server-int32"), fast, 20) - cell_s(point("server-int32"), fast, 10)
    assert server_s == pytest.approx(10 * 4 * 0.32), "the server's link carries the gradients of all workers"
    ring_s = cell_s(point("ring"), fast, 20) - cell_s(point("ring"), fast, 10)
    assert ring_s == pytest.approx(10 * 1.5 * 0.32), "a ring sends 2 (n - 1) / n of a gradient"
    slow = Ceiling(workers=4, contributions_s=1e6, reduce_mbps=50.0)
    assert cell_s(point("full-int32"), slow, 20) - cell_s(point("full-int32"), slow, 10) == pytest.approx(6.4)
    waits, goes_on = (point(name, model=DIGITS, straggler=BLOCKED) for name in ("full-int32", "adaptive-int32"))
    assert cell_s(waits, fast, 8) > 2 * cell_s(goes_on, fast, 8)


def test_finished_cells_correct_the_estimate(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    now = 0.0
    monkeypatch.setattr("time.monotonic", lambda: now)
    (cell, *_) = planned(tmp_path, Axes(collectives=("ring",), workers=(4,), seeds=1)).cells
    several = [replace(cell, estimate_s=estimate_s) for estimate_s in (100.0, 200.0, 500.0)]
    clock = Timekeeper(several)
    assert clock.left() == ", about 13 min left", "800 s are left"
    now = 150.0
    assert clock.took(several[0]) == 150.0
    assert clock.left() == ", about 18 min left", "1.5 times 700 s are left"
    now = 180.0
    clock.took(several[1])
    assert clock.left() == ", about 5 min left", "0.6 times 500 s are left"


# Gradients


def test_gradients_are_captured_once_from_the_real_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(models.HIDDEN, "1m", (5, 3))
    assert elements_of((960, 960)) == 994_570
    (model,) = models.models(["1m"], tmp_path, None)
    assert model.elements == 64 * 5 + 5 + 5 * 3 + 3 + 3 * 10 + 10
    assert capture(model)
    assert not capture(model)
    files = sorted((tmp_path / "gradients" / "1m").iterdir())
    assert [path.name for path in files] == [f"gradient-{number}.npy" for number in (1, 2, 3, 4)]
    gradients = [np.load(path) for path in files]
    assert all(one.shape == (model.elements,) and one.dtype == np.float32 and one.any() for one in gradients)
    assert list((tmp_path / "gradients").iterdir()) == [model.replay], "no unfinished recording is left"


def test_users_folder_of_gradients_is_used(tmp_path: Path) -> None:
    np.save(tmp_path / "a.npy", np.zeros((3, 4), np.float32))
    (own,) = models.models([], tmp_path, tmp_path)
    assert (own.name, own.elements, own.replay) == ("replay", 12, tmp_path)
    np.save(tmp_path / "b.npy", np.zeros(11, np.float32))
    with pytest.raises(
        ConfigError, match=r"--replay: all gradients must have 12 elements, as a.npy has, got 11 in .*b.npy"
    ):
        models.models([], tmp_path, tmp_path)


# The claims


def test_network_time_is_compared_with_the_links_limit() -> None:
    limit_s = 0.32
    near = said([row("full-int32", 1.1 * limit_s, 1.15 * limit_s, 2 * limit_s)], "within 1.15 times the link's limit")
    assert near.holds
    assert "for 4.00 MB: x 1.15 (1.10 .. 2.00); the all-reduce alone x 1.03" in near.numbers
    assert not said([row("full-int32", 1.2 * limit_s)], "within 1.15").holds
    assert not said([row("full-int8", 1.1 * limit_s)], "within 1.15").holds, "8-bit lanes need a quarter of the bytes"
    assert said([row("full-int8", 1.1 * limit_s / 4)], "within 1.15").holds


def test_ring_and_server_are_compared_by_seed() -> None:
    rows = [row("server-int32", 3.0, 6.0, 4.0), row("ring", 1.5, 3.2, 1.0), row("full-int32", 1.0, 2.0, 1.0)]
    ring = said(rows, "times faster than ring")
    assert ring.holds
    assert ring.numbers.endswith("1.50 times (1.00 .. 1.60); by the bytes of the busiest links 1.50")
    server = said(rows, "0.8 n = 3.2 times faster than server-int32")
    assert not server.holds
    assert server.numbers.endswith("3.00 times (3.00 .. 4.00); by the bytes of the busiest links 4.00")
    assert said([row("server-int8", 3.2), row("full-int8", 1.0)], "server-int8").holds
    assert said([row("server-int32", 3.0), row("full-int8", 1.0)], "server-int8").answer == "not asked"


def test_claims_of_larger_gradients_are_made_without_stragglers_only() -> None:
    rows = [row(name, 1.0, straggler=BLOCKED) for name in ("server-int32", "ring", "full-int32")]
    assert [one.claim for one in verdicts(rows)] == [
        "where the time goes adds up to the iteration time within 5% in every run"
    ]


def test_chosen_k_is_compared_with_all_others_to_the_target() -> None:
    of: dict[str, Any] = {"model": DIGITS, "straggler": BLOCKED}
    others = [row(name, 0.1, times_s=(10.0,), **of) for name in ("server-int32", "ring", "full-int32", "fixed-int8")]
    adaptive = row("adaptive-int32", 0.1, times_s=(5.0,), **of)
    first = said([*others, adaptive], "before all others")
    assert first.holds
    assert first.numbers == "5.0 s; the others take server-int32 x 2.00, ring x 2.00, full-int32 x 2.00"
    faster, never = row("fixed-int32", 0.1, times_s=(4.0,), **of), row("fixed-int32", 0.1, times_s=(None,), **of)
    assert not said([*others, faster, adaptive], "before all others").holds
    assert "fixed-int32 never" in said([*others, never, adaptive], "before all others").numbers
    lost = said([*others, row("adaptive-int32", 0.1, times_s=(None,), **of)], "before all others")
    assert not lost.holds
    assert lost.numbers.startswith("never; ")
    neither = said([never, row("adaptive-int32", 0.1, times_s=(None,), **of)], "before all others")
    assert not neither.holds
    assert neither.numbers == "never; the others take fixed-int32 x 0.00"


def test_parts_of_the_time_must_add_up() -> None:
    rows = [row("ring", 1.0, 2.0, off=0.04), row("full-int32", 1.0, off=-0.02)]
    assert said(rows, "adds up").holds
    off = said([*rows, row("full-int8", 1.0, off=-0.08)], "adds up")
    assert not off.holds
    assert off.numbers == "3 of 4 runs; furthest off is 1m-none-4w-100m-full-int8, seed 1, by -8.0%"


def test_fixed_k_that_misses_the_target_is_a_finding() -> None:
    missed = [row(f"{name}-int32", 0.1, times_s=(None,), model=DIGITS) for name in ("fixed", "adaptive")]
    assert [list(one.problems()) for one in missed] == [
        [],
        ["digits-none-4w-100m-adaptive-int32, seed 1: the target was not reached (best 95.0%)"],
    ]
    assert list(row("full-int32", 0.1, times_s=(None,)).problems()) == [], (
        "runs that do not train have no problem without a target"
    )


def test_tables_fit_the_terminal() -> None:
    trained: dict[str, Any] = {"model": DIGITS, "straggler": BLOCKED, "workers": 8}
    for rows in (
        [row("server-int32", 1.2345, 12.3), row("adaptive-int32", 1.0, 1.0)],
        [
            row("server-int32", 0.1, 0.1, times_s=(123.4, None), **trained),
            row("full-int8", 0.1, times_s=(1.0,), **trained),
        ],
        [row("gloo", 20.5, model=SCRIPTED), row("adaptive-int32", 12.5, model=SCRIPTED)],
    ):
        text = _printed(rows)
        assert "…" not in text
        assert len(text.splitlines()) == 1 + len(rows)


def test_parts_of_a_scripts_time_are_shown() -> None:
    shown = [_printed([row("full-int32", 1.0, model=model)]) for model in (SCRIPTED, LARGE)]
    assert [text.count("0/0/50/50/0 %") for text in shown] == [1, 0]


def _printed(rows: list[ContenderArm]) -> str:
    console = Console(width=WIDTH)
    with console.capture() as captured:
        console.print(replace(setting_table({row.contender.name: row for row in rows}), title=None))
    return captured.get()


# A comparison from its command line to its report, with made-up runs


@pytest.fixture
def made_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> "Runs":
    """Replace the network, the large models and the machine's ceiling (640 Mbit/s)."""
    runs = Runs()
    monkeypatch.setitem(models.HIDDEN, "1m", (200,))
    monkeypatch.setattr(comparison, "execute", runs)
    monkeypatch.setattr(comparison, "check_machine", lambda target: None)
    monkeypatch.setattr(ceiling, "switch_alone", lambda target, workers: 4e5 / workers)
    monkeypatch.setattr("shutil.which", lambda name: None)
    monkeypatch.setenv("KOFN_STATE_DIR", str(tmp_path / "state"))
    return runs


SPEEDS = {"server": 0.004, "ring": 0.002}
"""Seconds of a made-up iteration without blocking; 1 ms of them in the network."""


class Runs:
    """Carries plans out as if workers had run them; `instead` may do something else first."""

    def __init__(self) -> None:
        self.seen: list[str] = []
        self.instead: Callable[[RunPlan], None] = lambda plan: None

    def __call__(self, plan: RunPlan, console: Console) -> RunFolder:
        run, config = prepare(plan, "{}"), plan.shared
        self.seen.append(config.run.name)
        self.instead(plan)
        replayed = config.model.replay is not None
        k = config.job.workers if config.run.trials == ("all",) else 2
        fake = fake_run.simulate(iterations=6 if replayed else 200, k=lambda iteration: k, seed=config.run.seed)
        for lines in fake.lines:
            _divided(lines, SPEEDS.get(config.job.collective, 0.001), replayed=replayed)
        fake_run.write_job(run.jobs[0], [fake])
        hosts = [f"h{rank + 1}" for rank in range(config.job.workers + (config.job.collective == "server"))]
        run.jobs[0].trials[0].links.write_text(json.dumps({host: [1200, 600] for host in hosts}))
        return run


def _divided(lines: list[dict[str, Any]], spent_s: float, *, replayed: bool) -> None:
    """Give the times of a worker's lines parts that add up to them; replayed gradients are not trained."""
    clock = lines[0]["started"]
    for line in lines:
        taken_s = spent_s if replayed else spent_s + line["time"] - line["started"]
        line["started"], line["time"] = clock, clock + taken_s
        clock += taken_s
        line.update(dict.fromkeys(TIME_PARTS, 0.0), wait_s=0.75 * taken_s, step_s=0.25 * taken_s)
        line["accuracy"] = None if replayed else line["accuracy"]


SMALL = ("--workers", "4", "--mbps", "100", "--collective", "ring", "--collective", "full", "--codec", "int32")


def invoke(*arguments: str | Path) -> Result:
    return CliRunner().invoke(command, list(map(str, arguments)), catch_exceptions=False)


@pytest.mark.slow
def test_comparison_from_the_command_line_to_the_report(made_up: Runs, tmp_path: Path) -> None:
    result = invoke(*SMALL, "--collective", "server", "--seeds", "2", "--out", tmp_path / "out", "--json")
    assert result.exit_code == 0, result.output
    assert made_up.seen[0] == "ceiling-4w-1"
    assert len(made_up.seen) == 1 + 2 * 2 * 3 * 2
    document = json.loads(result.stdout)
    assert document == json.loads((tmp_path / "out" / "compare.json").read_text())
    assert list(document) == ["ok", "failures", "claims", "notes", "rows", "runs"]
    rows = {one["name"]: one for one in document["rows"]}
    full = rows["1m-none-4w-100m-full-int32"]
    assert full["iteration_s"] == pytest.approx({"median": 0.001, "low": 0.001, "high": 0.001})
    assert full["reduce_s"]["median"] == pytest.approx(0.00075)
    assert full["times_faster_than_ring"]["median"] == pytest.approx(2.0)
    assert full["times_faster_than_server"]["median"] == pytest.approx(4.0)
    claims = {one["claim"].rpartition(": ")[2]: one["holds"] for one in document["claims"]}
    assert claims["full-int32 at least 1.5 times faster than ring"]
    assert claims["full-int32 at least 0.8 n = 3.2 times faster than server-int32"]
    assert claims["where the time goes adds up to the iteration time within 5% in every run"]
    assert any("an all-reduce moves" in note for note in document["notes"])
    with (tmp_path / "out" / "results.csv").open(newline="") as file:
        lines = list(csv.DictReader(file))
    assert len(lines) == len(document["runs"]) == 24
    assert {"experiment", "times_limit", *LINKS, "command"} <= set(lines[0])
    assert [line["scenario"] for line in lines] == [run["name"] for run in document["runs"]]
    server = next(line for line in lines if line["scenario"] == "1m-none-4w-100m-server-int32")
    assert (server["worker_up_bytes"], server["inner_down_bytes"]) == ("200.0", "100.0"), (
        "bytes are means of six iterations"
    )
    assert server["time_to_target_s"] == server["best_accuracy"] == ""
    assert float(lines[0]["time_to_target_s"]) > 0
    _check_report((tmp_path / "out" / "report.html").read_text(), document)


def _check_report(text: str, document: dict[str, Any]) -> None:
    """Check that the report has every claim, a figure for each setting, accuracies where there are any, and their
    commands.
    """
    assert all(claim["numbers"] in text for claim in document["claims"])
    assert text.count("<svg") == 4 + 2
    assert text.count("regenerate this figure") == 4 + 2
    for one in document["runs"]:
        assert one["command"] in text
        assert Path(one["command"].removeprefix("kofn run ")).exists()
    for part in text.split("<svg")[1:]:
        ET.fromstring("<svg" + part.partition("</svg>")[0] + "</svg>")


@pytest.mark.slow
def test_finished_runs_are_not_repeated(made_up: Runs, tmp_path: Path) -> None:
    def interrupt(plan: RunPlan) -> None:
        if plan.shared.run.name == "1m-none-4w-100m-full-int32-1":
            raise InterruptedRun("stopped by SIGINT (Ctrl-C)")

    made_up.instead = interrupt
    arguments = (*SMALL, "--seeds", "1", "--model", "1m", "--out", tmp_path / "out")
    stopped = invoke(*arguments)
    assert stopped.exit_code == 130
    assert f"the same command with --out {tmp_path / 'out'} continues" in stopped.output
    assert made_up.seen == ["ceiling-4w-1", "1m-none-4w-100m-ring-1", "1m-none-4w-100m-full-int32-1"]
    made_up.seen, made_up.instead = [], lambda plan: None
    assert "of which about" in invoke(*arguments, "--dry-run").output
    assert made_up.seen == []
    assert invoke(*arguments).exit_code == 0
    assert made_up.seen == [f"1m-{name}-1" for name in ("none-4w-100m-full-int32", "blocked-4w-100m-ring")] + [
        "1m-blocked-4w-100m-full-int32-1"
    ]
    made_up.seen = []
    again = invoke("--report-only", "--out", tmp_path / "out", "--json")
    assert (again.exit_code, made_up.seen, len(json.loads(again.stdout)["runs"])) == (0, [], 4), (
        "the folder's own options apply"
    )
    fewer = invoke("--report-only", "--out", tmp_path / "out", "--straggler", "none", "--json")
    assert len(json.loads(fewer.stdout)["runs"]) == 2
    (tmp_path / "other").mkdir()
    other = invoke("--report-only", "--out", tmp_path / "other")
    assert (other.exit_code, "no comparison was begun there" in " ".join(other.output.split())) == (2, True)


def test_results_of_another_configuration_are_not_used(made_up: Runs, tmp_path: Path) -> None:
    arguments = (*SMALL, "--seeds", "1", "--model", "1m", "--straggler", "none", "--out", tmp_path / "out")
    assert invoke(*arguments).exit_code == 0
    made_up.seen = []
    for other in (("--iterations", "5"), ("--set", "job.window=16")):
        refused = invoke(*arguments, *other)
        assert refused.exit_code == 2
        assert "holds the results of another configuration: choose another --out" in refused.output
    refused = invoke(*arguments, "--target", "bmv2")
    assert refused.exit_code == 2
    assert "holds a comparison on embedded: choose another --out for bmv2" in refused.output
    assert made_up.seen == []


def test_failed_run_does_not_stop_the_others(made_up: Runs, tmp_path: Path) -> None:
    def fail(plan: RunPlan) -> None:
        if plan.shared.run.name.startswith("1m-none-4w-100m-ring"):
            raise RunError("worker-3 ended with exit code 1")

    made_up.instead = fail
    result = invoke(*SMALL, "--seeds", "1", "--model", "1m", "--straggler", "none", "--out", tmp_path, "--json")
    assert result.exit_code == 1
    document = json.loads(result.stdout)
    assert document["failures"] == ["1m-none-4w-100m-ring, seed 1: FAILED: worker-3 ended with exit code 1"]
    assert [one["contender"] for one in document["rows"]] == ["full-int32"]


def test_dry_run_prints_the_plan_and_changes_nothing(
    made_up: Runs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    result = invoke("--dry-run", "--seeds", "2", "--out", tmp_path / "out", "--codec", "int32")
    assert result.exit_code == 0, result.output
    assert not (tmp_path / "out").exists()
    assert made_up.seen == []
    text = " ".join(result.output.split())
    assert "assumed, not measured yet: 4 workers: the switch alone adds" in text
    assert "8 workers: links of 1000 Mbit/s are above what this machine carries" in text
    assert "1m: server-int32, ring, full-int32, fixed-int32, adaptive-int32" in text
    assert "120 runs (2 seeds): about" in text
    told = json.loads(invoke("--dry-run", "--quick", "--json").stdout)
    assert len(told["runs"]) == 10
    assert told["left_s"] == told["estimate_s"] < 300, "the estimate must be some minutes on two cores"


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--collective", "tree"], "--collective must be full, fixed, adaptive, "),
        (["--collective", "gloo"], "--collective gloo: it is PyTorch's, and"),
        (["--model", "1g"], "'1g' is not one of"),
        (["--codec", "int7"], "--codec must be int32, int16, int8, int4, auto, onebit or module:Name, got 'int7'"),
        (["--workers", "1"], "1 is not in the range 2<=x<=64"),
        (["--mbps", "0"], "0.0 is not in the range"),
        (["--k", "5"], "--k must be 1 to 4, the least of --workers, got 5"),
        (["--codec", "int4", "--workers", "8"], "its 4-bit lanes leave no bits for the sum of 8 workers"),
        (["--quick", "--straggler", "none", "--model", "digits"], "--quick leaves out all of these options' runs"),
        (["--replay", "nowhere"], "'nowhere' does not exist"),
        (["--set", "job.window=4096"], "job.window must be a power of two from 1 to 512 (job.slots / 2), got 4096"),
        (["--report-only"], "--report-only needs --out with the folder of a comparison, not none"),
    ],
)
def test_bad_input_is_named(made_up: Runs, arguments: list[str], words: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    result = invoke("--dry-run", *arguments) if "--report-only" not in arguments else invoke(*arguments)
    assert result.exit_code == 2, result.output
    assert words in " ".join(result.output.split())


def test_gloo_and_mpi_are_compared_where_they_are_installed(made_up: Runs, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: object())
    monkeypatch.setattr("shutil.which", lambda name: f"/usr/bin/{name}")
    monkeypatch.setattr("kofn.experiments.compare.plan.bmv2", lambda: None)
    assert "1m: server-int32, server-int8, ring, gloo, mpi, full-int32" in invoke("--dry-run", "--quick").output
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    without = invoke("--dry-run", "--quick").output
    assert "gloo is left out: it is PyTorch's" in without
    assert "mpi is left out: it is mpi4py's" in without
    assert "ring, full-int32" in without


def test_repeated_options_run_once_and_invalid_ones_are_refused_at_once(
    made_up: Runs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    twice = ["--workers", "4", "--workers", "4", "--mbps", "100", "--mbps", "100", "--codec", "int8", "--codec", "int8"]
    told = json.loads(invoke("--dry-run", "--model", "1m", *twice, "--seeds", "1", "--json").stdout)
    assert len(told["runs"]) == len(set(told["runs"])) == 2 * 5
    refused = invoke("--codec", "int4", "--out", tmp_path / "out")
    assert (refused.exit_code, made_up.seen) == (2, [])


@pytest.mark.root
@pytest.mark.long
def test_one_comparison_runs_for_real(tmp_path: Path) -> None:
    gradients, out = tmp_path / "gradients", tmp_path / "out"
    gradients.mkdir()
    out.mkdir()
    for number in range(2):
        np.save(gradients / f"{number}.npy", np.full(50_000, number + 1, np.float32))
    known = Ceiling(workers=2, contributions_s=1e5, reduce_mbps=1000.0)
    Ceilings(target="embedded", known={2: known}).write(out)
    inside = [*OWN_NETWORK, sys.executable]
    chosen = ["--workers", "2", "--mbps", "50", "--collective", "ring", "--straggler", "none", "--seeds", "1"]
    result = subprocess.run(
        [*inside, "-c", KOFN, "compare", *chosen, "--replay", gradients, "--no-switches", "--out", out, "--json"],
        env={"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "KOFN_STATE_DIR": str(tmp_path / "state")},
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert result.returncode == 0, result.stderr
    (run,) = json.loads(result.stdout)["runs"]
    assert (run["name"], run["iterations"], run["elements"]) == ("replay-none-2w-50m-ring", 16, 50_000)
    assert run["limit_s"] == pytest.approx(0.032)
    assert 1.0 < run["times_limit"] < 20
    assert abs(run["parts_off"]) < 0.05
    assert run["worker_up_bytes"] > 200_000
    assert (out / "report.html").exists()


@pytest.mark.parametrize("names", [["ring"], ["full-int8"], ["server-int8"]])
def test_claims_about_contenders_that_did_not_run_are_not_asked(names: list[str]) -> None:
    found = verdicts([row(name, 1e-3) for name in names])
    (adds_up,) = [one for one in found if one.holds is not None and "adds up" in one.claim]
    assert adds_up.holds
    asked = [one.answer for one in found if "faster than" in one.claim]
    assert asked and set(asked) == {"not asked"}
    assert all("needs runs with" in one.numbers for one in found if one.holds is None)
    assert explanation([one for one in found if one.holds is None]) == []


def test_a_chosen_k_alone_in_a_training_is_not_compared() -> None:
    (one,) = [
        one
        for one in verdicts([row("adaptive-int32", 0.02, times_s=(2.0,), model=DIGITS, straggler=BLOCKED)])
        if "at the target" in one.claim
    ]
    assert (one.answer, one.numbers) == ("not asked", "needs runs with another collective")

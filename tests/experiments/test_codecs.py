"""`kofn experiment codecs`: its conclusions from trainings, its report, and a small one in virtual time."""

import io
import json
import math
import xml.etree.ElementTree as ET
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from rich.console import Console

from kofn.experiments import matrix
from kofn.experiments.claims import Verdict, judge
from kofn.experiments.codecs.arms import VariantArm, variant_arms
from kofn.experiments.codecs.claims import CLAIMS
from kofn.experiments.codecs.columns import change_columns, own_columns
from kofn.experiments.codecs.command import find
from kofn.experiments.codecs.tables import tables
from kofn.experiments.codecs.variants import ELEMENTS, VARIANTS
from kofn.experiments.command import command
from kofn.experiments.findings import conclude
from kofn.experiments.matrix import Cell, cells, run_cells
from kofn.experiments.trials import Row, frame, read_trials
from kofn.report.compressed import Compressed
from kofn.report.frames import summary_columns
from kofn.report.summary import TrialSummary
from kofn.run.plan import RunPlan, prepare
from kofn_common.config.errors import ConfigError
from kofn_common.results.folder import RunFolder
from kofn_host.training import load_codecs
from tests.experiments.test_chaos import SUMMARY
from tests.run import fake_run

WIDTH = 190
"""Terminal columns that the tables need."""

SENT = Compressed(wire_bytes=1000, wire_ratio=0.25, ratio=0.25, gradient_norm=2.0, error_norm=0.5, residual_norm=1.0)


def arm(name: str, summaries: Sequence[TrialSummary], *more: Row, seeds: Iterable[int] = (1, 2, 3)) -> VariantArm:
    """Return a variant's arm with one summary a seed, each with further columns."""
    facts = {"scenario": name, "target": 0.95}
    rows = [
        {**facts, "seed": seed, **summary_columns(summary), **own}
        for seed, summary, own in zip(seeds, summaries, more, strict=False)
    ]
    return VariantArm(trials=frame(rows))


def row(name: str, *iterations: int | None, seeds: Iterable[int] = (1, 2, 3)) -> VariantArm:
    summaries = [
        replace(
            SUMMARY,
            iterations_to_target=count,
            time_to_target_s=None if count is None else 5.0,
            compressed=SENT,
            bytes_sent=2_500_000,
        )
        for count in iterations
    ]
    own = [{"final_accuracy": 0.9 if count is None else 0.952} for count in iterations]
    return arm(name, summaries, *own, seeds=seeds)


def link(name: str, *times_s: tuple[float, ...], changed_in: int | None = 2) -> VariantArm:
    own = [{"final_accuracy": 0.951, **change_columns(several, changed_in)} for several in times_s]
    return arm(name, [SUMMARY] * len(own), *own)


def verdicts(rows: Sequence[VariantArm]) -> list[Verdict]:
    return judge(CLAIMS, {row.variant.name: row for row in rows})


def said(rows: Sequence[VariantArm], words: str) -> Verdict:
    (one,) = [verdict for verdict in verdicts(rows) if words in verdict.claim]
    return one


def test_iterations_are_compared_by_seed() -> None:
    baseline = row("int32", 100, 200, 300)
    near = said([baseline, row("int8", 110, 210, 400)], "int8")
    assert near.holds
    assert near.numbers == "210 iterations against 200 iterations: x 1.10"
    assert not said([baseline, row("int8", 111, 230, 300)], "int8").holds, "the ratios are 1.11, 1.15 and 1.00"
    assert said([baseline, row("onebit", 150, 300, 999)], "onebit").holds
    assert not said([baseline, row("int4", 151, 302, 300)], "int4").holds
    later = row("int16", 330, 100, seeds=(3, 1))
    assert later.against(baseline) == pytest.approx(1.05), "only seeds of both arms count, in any order"


def test_codec_that_never_reaches_the_target_is_reported_with_and_without_feedback() -> None:
    rows = [row("int32", 100, 100, 100), row("int4", 120, 120, 120), row("int4-no-feedback", None, 200, None)]
    one = said(rows, "int4")
    assert one.holds
    assert one.numbers == "120 iterations against 100 iterations: x 1.20; without feedback never: -"
    assert not said([rows[0], row("onebit", None, None, 100)], "onebit").holds
    assert [why for each in rows for why in each.problems()] == [], (
        "not reaching the target is a finding for a codec without feedback"
    )
    assert row("int8", 100, None, 100).problems() == ["int8: 1 of 3 did not reach 95.0%"]
    broken = replace(SUMMARY, identity_error="replicas differ", objective_faults=("no costs", "again"))
    assert arm("int4-no-feedback", [broken], {}).problems() == [
        "int4-no-feedback: replicas differ",
        "int4-no-feedback: no costs",
    ]


def test_no_claim_is_made_without_the_baseline() -> None:
    assert verdicts([row("int8", 100), row("int4", 100)]) == []
    assert verdicts([link("link-one-adaptive", (0.1, 0.1, 0.1))]) == []


def test_iterations_of_a_slowing_link_are_compared() -> None:
    before = (0.9, 0.02, 0.02)
    plain = link("link-one-uncompressed", (*before, 0.06, 0.08, 0.10), (*before, 0.05, 0.09, 0.09), changed_in=4)
    adaptive = link("link-one-adaptive", (*before, 0.03, 0.03, 0.05), (*before, 0.03, 0.03, 0.03), changed_in=4)
    assert (plain.spread("before_s").median, plain.spread("change_s").high) == (0.02, 0.06)
    assert plain.spread("after_s").low == pytest.approx(0.09)
    in_it, after, accuracy = verdicts([plain, adaptive])
    assert not in_it.holds
    assert in_it.numbers == "30.0 ms against 55.0 ms: 1.83 times", "1.83 is the median of 2 and 5/3"
    assert after.holds
    assert after.numbers.endswith(": 2.62 times"), "2.62 is the median of 2.25 and 3"
    assert accuracy.holds
    assert accuracy.numbers == "95.1% after 100 iterations against 95.1% after 100 iterations"
    assert [one.claim.split(":")[0] for one in (in_it, after, accuracy)] == [
        "the link of one worker drops to a quarter"
    ] * 3


def test_change_that_never_came_proves_nothing() -> None:
    known, unknown = ((0.02, 0.09, 0.09), 2), ((0.01, 0.01, 0.01), None)
    for plain, adaptive in ((known, unknown), (unknown, known)):
        rows = [
            link(f"link-all-{name}", times_s, changed_in=changed_in)
            for name, (times_s, changed_in) in (("uncompressed", plain), ("adaptive", adaptive))
        ]
        assert [one.holds for one in verdicts(rows)] == [False, False, True]


def test_tables_fit_and_describe_missing_values() -> None:
    digits = [row("int32", 1234, 100, 100), row("int4-no-feedback", None, None, 100)]
    links = [link("link-one-uncompressed", (0.02, 1.06, 0.08)), link("link-all-adaptive", (0.02,), changed_in=None)]
    several = list(tables({one.variant.name: one for one in (*digits, *links)}))
    for table in several:
        console = Console(width=WIDTH, record=True, file=io.StringIO())
        console.print(table)
        text = console.export_text()
        assert "…" not in text
        assert len(text.splitlines()) == 3
        assert max(map(len, text.splitlines())) <= WIDTH
    codecs, slowing = (table.cells for table in several)
    assert codecs[0][1:] == [
        *("100", "100 .. 1,234", "1.00", "2.5 MB", "0.250", "0.25", "0.5", "95.2%", "3 of 3"),
    ]
    assert codecs[1][1:4] == ["never", "100 .. never", "-"]
    assert slowing[1][2:5] == ["-", "- .. -", "-"]


@pytest.mark.parametrize("name", VARIANTS)
def test_every_variant_is_a_run_with_equal_blocks(name: str, tmp_path: Path) -> None:
    scenario = VARIANTS[name].scenario((), None)
    (cell,) = cells([scenario], 1, tmp_path)
    config = cell.plan().shared
    widest = max(load_codecs(config.compress.codec, workers=config.job.workers))
    assert config.job.words * 2048 // widest == max(ELEMENTS, 2048 // widest)
    assert config.run.trials == ("all",)
    assert config.compress.error_feedback is ("no-feedback" not in name)
    assert bool(config.link) is name.startswith("link")


def test_settings_override_the_variants_own() -> None:
    config = VARIANTS["int8"].scenario(["compress.rounding=stochastic", "job.words=4"], "bmv2").config
    assert (config.compress.rounding, config.job.words, config.network.target) == ("stochastic", 4, "bmv2")
    with pytest.raises(ConfigError, match=r"scenario int4: .*job.workers"):
        VARIANTS["int4"].scenario(["job.workers=64"], None)


def faked(plan: RunPlan, console: Console) -> RunFolder:
    """Write a run as if workers had trained: wider lanes take fewer iterations; a link changes in iteration 31."""
    run = prepare(plan, "{}")
    config = plan.shared
    fake = fake_run.simulate(iterations=200 if config.compress.codec == "int32" else 220, seed=config.run.seed)
    fake_run.write_job(run.jobs[0], [fake_run.compress(fake)])
    if config.link:
        moment = {"time": fake.lines[0][30]["started"] + 0.001, "iteration": 30, "action": "link", "name": "worker-3"}
        run.jobs[0].trials[0].events.write_text(json.dumps(moment) + "\n")
    return run


def ran(folder: Path, *names: str, seeds: int = 2) -> list[Cell]:
    found = cells([VARIANTS[name].scenario((), None) for name in names], seeds, folder)
    assert all(result.trials for result in run_cells(found, faked, Console(quiet=True)))
    return found


def invoke(*arguments: str | Path) -> Result:
    return CliRunner().invoke(command, ["codecs", *map(str, arguments)])


@pytest.mark.slow
def test_report_only_reports_the_existing_results(tmp_path: Path) -> None:
    names = ["int32", "int8", "link-one-uncompressed", "link-one-adaptive"]
    ran(tmp_path, *names)
    chosen = [argument for name in names for argument in ("--scenario", name)]
    result = invoke(*chosen, "--seeds", "2", "--out", tmp_path, "--report-only", "--json")
    assert result.exit_code == 0, result.output
    document = json.loads(result.stdout)
    assert [one["variant"]["name"] for one in document["rows"]] == names
    assert document["rows"][2]["iterations"]["median"] == 137, "the target is 95 % of 0.96 (1 - exp(-i / 30))"
    assert len(document["claims"]) == 4
    assert all(math.isfinite(one["change_s"]["median"]) for one in document["rows"][2:])
    assert document["rows"][0]["change_s"]["median"] is None
    text = (tmp_path / "report.html").read_text()
    assert text.count("<svg") == 2
    for part in text.split("<svg")[1:]:
        ET.fromstring("<svg" + part.partition("</svg>")[0] + "</svg>")
    assert all(claim["numbers"] in text for claim in document["claims"])


def test_iteration_of_a_change_is_the_one_in_which_it_came(tmp_path: Path) -> None:
    (cell,) = ran(tmp_path, "link-one-adaptive", seeds=1)
    trials = read_trials("codecs", run_cells([cell], faked, Console(quiet=True)), own_columns)
    (found,) = variant_arms(trials).values()
    lines = fake_run.simulate(iterations=220).lines[0]
    assert found.spread("change_s").median == pytest.approx(lines[30]["time"] - lines[29]["time"])


@pytest.mark.slow
def test_missing_results_are_named(tmp_path: Path) -> None:
    ran(tmp_path, "int32", seeds=1)
    result = invoke("--scenario", "int32", "--out", tmp_path, "--report-only", "--seeds", "2")
    assert result.exit_code == 1
    assert "int32, seed 2: not run yet" in result.output
    assert "--scenario must be among int32, int16" in invoke("--scenario", "int7").output
    assert conclude("experiment codecs", tmp_path, [], find, Console(quiet=True), as_json=False) == 0


@pytest.mark.slow
def test_small_experiment_runs_in_virtual_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It trains a codec and links that slow down, and makes its claims."""
    scenarios = matrix.FOLDER / "codecs"
    monkeypatch.setattr(matrix, "FOLDER", tmp_path)
    (tmp_path / "codecs").mkdir()
    for base in ("digits", "link-all"):
        text = (scenarios / f"{base}.toml").read_text().replace("at_iteration = 20", "at_iteration = 8")
        (tmp_path / "codecs" / f"{base}.toml").write_text(text)
    names = ["int8", "link-all-uncompressed", "link-all-adaptive"]
    chosen = [argument for name in names for argument in ("--scenario", name)]
    small = ["run.target=0.8", "run.accuracy_over=1", "model.hidden=[256]"]
    settings = [argument for setting in small for argument in ("--set", setting)]
    result = invoke(*chosen, *settings, "--simulate", "--seeds", "1", "--out", tmp_path / "out", "--json")
    assert result.exit_code == 0, result.output
    rows = {one["variant"]["name"]: one for one in json.loads(result.stdout)["rows"]}
    plain, adaptive = rows["link-all-uncompressed"], rows["link-all-adaptive"]
    assert plain["after_s"]["median"] > 1.5 * plain["before_s"]["median"]
    assert adaptive["after_s"]["median"] < 0.8 * plain["after_s"]["median"]  # steps cost time on this machine, too
    assert rows["int8"]["wire_ratio"]["median"] < 0.3 < adaptive["wire_ratio"]["median"] < 1
    assert plain["wire_ratio"]["median"] >= 1
    assert rows["int8"]["error"]["median"] > plain["error"]["median"]

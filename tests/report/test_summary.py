"""The comparison of trials: figures checked by hand, and every violation found and named."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from rich.console import Console

from kofn.report.compressed import Compressed
from kofn.report.summarise import summarise
from kofn.report.summary import Summary, TrialSummary, stored_trials
from kofn_common.config.compress import CompressSection
from kofn_common.config.schema import Config
from kofn_common.config.torch_script import TorchSection
from kofn_common.results.errors import ResultsError
from kofn_common.results.folder import RunFolder
from kofn_common.results.worker_metrics import merge
from tests.experiments.test_chaos import SUMMARY
from tests.run.fake_run import FakeTrial, compress, simulate, two_trials, write


def one_trial(path: Path, fake: FakeTrial) -> Summary:
    folder = RunFolder.create(path, ["all"])
    write(folder, [fake])
    return summarise(folder.jobs[0], Config())


def test_good_run_has_no_failures_and_a_speedup(tmp_path: Path) -> None:
    summary = summarise(two_trials(tmp_path).jobs[0], Config())
    assert summary.failures == []
    assert summary.speedup is not None
    assert summary.speedup > 2
    assert summary.to_dict()["ok"] is True


def test_figures_of_a_pass_are_correct(tmp_path: Path) -> None:
    fake = simulate(iterations=150)
    result = one_trial(tmp_path, fake).trials[0]
    reached = next(line for line in fake.lines[0] if line["accuracy"] >= 0.95)
    assert result.iterations_to_target == reached["iteration"]
    assert result.time_to_target_s == pytest.approx(reached["time"] - 1000.0)
    assert result.iterations == 150
    assert (result.bytes_sent, result.packets_received, result.retransmissions) == (4000, 80, 6)
    assert result.late_gradients == 0
    assert result.k_iterations == {4: 150}


def test_late_gradients_are_counted_by_worker(tmp_path: Path) -> None:
    result = one_trial(tmp_path, simulate(k=lambda i: 3)).trials[0]
    assert result.late_gradients == sum(result.late_by_worker) == 200


def test_first_replica_that_differs_is_named(tmp_path: Path) -> None:
    fake = simulate()
    fake.lines[2][41]["params"] = "dead"
    fake.lines[3][90]["params"] = "beef"
    assert one_trial(tmp_path, fake).failures == [
        "trial all: replicas differ: first after iteration 42, workers 0 and 2"
    ]


def test_iterations_of_only_some_workers_are_compared_among_these(tmp_path: Path) -> None:
    fake = simulate()
    del fake.lines[0][41]
    fake.lines[2][41]["params"] = "dead"
    assert "iteration 42, workers 1 and 2" in one_trial(tmp_path, fake).failures[0]


def test_lost_gradient_is_found(tmp_path: Path) -> None:
    fake = simulate()
    fake.sums[1]["residual"][7] -= 1
    failures = one_trial(tmp_path, fake).failures
    assert failures == [
        "trial all: worker 1: gradients are not aggregated + residual + discarded in 1 blocks (first: 7)"
    ]


def test_contribution_that_was_counted_twice_is_found(tmp_path: Path) -> None:
    fake = simulate()
    fake.sums[3]["results"][5] += fake.sums[1]["aggregated"][5]
    assert (
        "worker 3: the applied results are not the sum of all aggregated gradients in 1 blocks (first: 5)"
        in one_trial(tmp_path, fake).failures[0]
    )


def scattered() -> FakeTrial:
    """Return a trial in which each block's sum goes to one worker in turn."""
    fake = simulate()
    for rank, parts in enumerate(fake.sums):
        mine = np.arange(parts["results"].size) % len(fake.sums) == rank
        parts["results"] *= mine
        parts["received"] *= mine
    return fake


def test_worker_checks_the_sums_that_go_to_it(tmp_path: Path) -> None:
    assert one_trial(tmp_path / "good", scattered()).failures == []
    fake = scattered()
    fake.sums[1]["results"][5] += 1
    assert "gradients in 1 blocks (first: 5)" in one_trial(tmp_path / "wrong", fake).failures[0]
    fake = scattered()
    fake.sums[1]["received"][5] = 0
    assert "no worker gets the sums of 1 blocks (first: 5)" in one_trial(tmp_path / "gone", fake).failures[0]


def test_missing_sums_are_a_failure(tmp_path: Path) -> None:
    fake = simulate()
    del fake.sums[0]["aggregated"]
    assert "has no array aggregated" in one_trial(tmp_path, fake).failures[0]


def test_missed_target_is_a_failure(tmp_path: Path) -> None:
    failures = one_trial(tmp_path, simulate(iterations=20)).failures
    assert len(failures) == 1
    assert failures[0].startswith("trial all: accuracy 95.0% was not reached in 20 iterations (best ")


def test_worker_without_iterations_is_named(tmp_path: Path) -> None:
    fake = simulate()
    fake.lines[2] = []
    with pytest.raises(ResultsError, match=r"worker 2 wrote no iteration; see .*worker-2.log"):
        one_trial(tmp_path, fake)


def test_damaged_line_names_its_file(tmp_path: Path) -> None:
    folder = two_trials(tmp_path)
    folder.jobs[0].trials[1].metrics(2).write_text('{"iteration": "x"}\n')
    with pytest.raises(ResultsError, match=r"all/worker-2.jsonl: a line must have the fields"):
        summarise(folder.jobs[0], Config())


def test_lines_that_a_power_cut_has_damaged_are_skipped(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    folder = two_trials(tmp_path)
    sound = summarise(folder.jobs[0], Config())
    trial = folder.jobs[0].trials[1]
    for path in (trial.metrics(2), trial.events, trial.status, trial.decisions):
        with path.open("ab") as file:
            file.write(b"\0" * 100 + b'\n\xff\n{"iterat\n')
    assert summarise(folder.jobs[0], Config()) == sound
    assert "worker-2.jsonl: skipping a damaged line" in caplog.text


KILLED = '{"time": 1.0, "iteration": 9, "action": "kill", "name": "worker-2"}\n'
NOT_STARTED = (
    '{"time": 1.0, "iteration": 9, "action": "start", "name": "worker-2", "missed": "no worker came so far"}\n'
)


def without_worker_2(path: Path, fake: FakeTrial, story: str) -> Summary:
    folder = RunFolder.create(path, ["all"])
    write(folder, [fake])
    (entry,) = folder.jobs[0].trials
    entry.sums(2).unlink()
    entry.events.write_text(story)
    return summarise(folder.jobs[0], Config())


def test_worker_that_died_by_itself_is_missing(tmp_path: Path) -> None:
    (failure,) = without_worker_2(tmp_path, simulate(), "").failures
    assert "worker 2 died and did not come back; its ledger is in" in failure
    assert "all/worker-2.ledger" in failure


def test_killing_all_workers_leaves_conservation_unchecked(tmp_path: Path) -> None:
    folder = RunFolder.create(tmp_path, ["all"])
    write(folder, [simulate()])
    (entry,) = folder.jobs[0].trials
    for rank in range(4):
        entry.sums(rank).unlink()
    entry.events.write_text("".join(KILLED.replace("worker-2", f"worker-{rank}") for rank in range(4)))
    assert "every worker was killed or never started" in summarise(folder.jobs[0], Config()).failures[0]


def test_summary_names_the_unchecked_part_of_a_killed_worker(tmp_path: Path) -> None:
    summary = without_worker_2(tmp_path, simulate(), KILLED)
    assert summary.failures == []
    assert summary.trials[0].conservation_unchecked == "the aggregated gradients of worker 2 (killed)"
    assert ["gradients conserved", "as far as known"] in summary.rows()
    assert summary.notes == ["trial all: not checked: the aggregated gradients of worker 2 (killed)"]


@pytest.mark.parametrize(
    ("error", "misfits", "compresses", "told"),
    [
        (0.4, 0.0, False, "40%"),
        (0.005, 0.0, False, ""),
        (0.4, 0.0, True, ""),
        (0.4, 0.02, True, "2%"),
        (0.0, 0.2, False, "20%"),
    ],
)
def test_gradients_out_of_range_are_reported(error: float, misfits: float, compresses: bool, told: str) -> None:
    compressed = Compressed(
        wire_bytes=1,
        wire_ratio=1.0,
        ratio=1.0,
        gradient_norm=2.0,
        error_norm=2 * error,
        residual_norm=0.0,
        misfits=misfits,
    )
    summary = Summary(job=1, metric=None, trials=(replace(SUMMARY, compressed=compressed),), compresses=compresses)
    warned = [note for note in summary.notes if "did not fit" in note]
    assert [f"{told} of the gradients" in note for note in warned] == ([True] if told else [])
    assert summary.to_dict()["notes"] == summary.notes
    assert any(row[0] == "elements that did not fit" for row in summary.rows()) == bool(misfits)


def left_early(path: Path, fake: FakeTrial, end: int, reason: str = "closed") -> Summary:
    """Write a trial in which worker 2 has only the results of its iterations; the other workers have continued."""
    fake.lines[2], fake.reasons[2] = fake.lines[2][:end], reason
    fake.sums[2]["results"] -= 7
    return one_trial(path, fake)


def test_worker_that_left_early_is_named_with_its_last_iteration(tmp_path: Path) -> None:
    summary = left_early(tmp_path, simulate(), 160)
    assert summary.failures == []
    assert ["gradients conserved", "as far as known"] in summary.rows()
    (note,) = summary.notes
    assert (
        "not checked: the results of worker 2, which left after iteration 160 of 200; its log says why. A worker"
        in note
    )


def test_leaving_excuses_only_a_workers_own_results(tmp_path: Path) -> None:
    results = "the applied results are not the sum of all aggregated gradients"
    for name, end, reason in (("stopped", 160, "stopped"), ("whole", 200, "closed")):
        (failure,) = left_early(tmp_path / name, simulate(), end, reason).failures
        assert results in failure and "worker 2" in failure
    fake = simulate()
    fake.sums[2]["aggregated"][7] -= 1
    assert (
        "worker 2: gradients are not aggregated + residual + discarded in 1 blocks (first: 7)"
        in left_early(tmp_path / "own", fake, 160).failures[0]
    )
    fake = simulate()
    fake.sums[1]["results"][9] += 1
    assert "in 1 blocks (first: 9)" in left_early(tmp_path / "other", fake, 160).failures[0]


def test_other_workers_are_checked_without_a_killed_one(tmp_path: Path) -> None:
    fake = simulate()
    fake.sums[3]["results"][5] += 1
    assert without_worker_2(tmp_path / "one", fake, KILLED).failures == [
        "trial all: workers 0 and 3: the applied results differ in 1 blocks (first: 5)"
    ]
    fake = simulate()
    fake.sums[1]["residual"][7] -= 1
    assert (
        "worker 1: gradients are not aggregated + residual + discarded in 1 blocks (first: 7)"
        in without_worker_2(tmp_path / "two", fake, KILLED).failures[0]
    )


def test_worker_that_was_never_started_has_nothing_to_count(tmp_path: Path) -> None:
    fake = simulate()
    fake.lines[2] = []
    for parts in fake.sums:
        parts["results"] -= fake.sums[2]["aggregated"]
    summary = without_worker_2(tmp_path, fake, NOT_STARTED)
    assert summary.failures == []
    assert summary.trials[0].conservation_unchecked is None
    assert summary.trials[0].missed_events == ("worker-2 not started: no worker came so far",)


def test_rejoined_worker_is_one_worker(tmp_path: Path) -> None:
    fake = simulate()
    first = {"summary": {"retransmissions": 40, "checksum_errors": 2, "peer_fetches": 3, "reason": "stopped"}}
    fake.lines[2] = [*fake.lines[2][:60], first, fake.lines[2][59], *fake.lines[2][70:]]
    summary = one_trial(tmp_path, fake)
    assert summary.failures == []
    result = summary.trials[0]
    assert (result.retransmissions, result.checksum_errors, result.peer_fetches) == (46, 2, 3)


def test_rejoined_worker_with_another_replica_is_found(tmp_path: Path) -> None:
    fake = simulate()
    fake.lines[2].insert(60, {**fake.lines[2][59], "params": "dead"})
    assert "first after iteration 60" in one_trial(tmp_path, fake).failures[0]


def test_longest_stall_is_between_two_finished_iterations(tmp_path: Path) -> None:
    fake = simulate()
    for worker in fake.lines:
        for line in worker[100:]:
            line["time"] += 7.0
    stall_s = one_trial(tmp_path, fake).trials[0].longest_stall_s
    assert 7.0 < stall_s < 7.2


def test_table_shows_each_pass(tmp_path: Path) -> None:
    console = Console(width=160, record=True, file=(tmp_path / "out").open("w"))
    console.print(summarise(two_trials(tmp_path / "run").jobs[0], Config()).table())
    console.file.close()
    text = console.export_text()
    for words in ("throughput", "all (baseline)", "time to 95.0% accuracy", "3 (193), 4 (7)", "exactly"):
        assert words.split(", ")[0] in text


def test_merged_metrics_know_pass_and_worker(tmp_path: Path) -> None:
    folder = two_trials(tmp_path)
    lines = [json.loads(line) for line in merge(folder, [Config()]).read_text().splitlines()]
    assert len(lines) == 2 * 4 * 201
    assert (lines[0]["trial"], lines[0]["worker"], lines[0]["iteration"]) == ("throughput", 0, 1)
    assert (lines[-1]["trial"], lines[-1]["worker"], lines[-1]["summary"]["reason"]) == ("all", 3, "target")


def test_sent_share_is_in_the_table_where_a_run_compresses(tmp_path: Path) -> None:
    folder = RunFolder.create(tmp_path, ["all"])
    write(folder, [compress(simulate(iterations=100))])
    plain = summarise(folder.jobs[0], Config())
    compressing = summarise(folder.jobs[0], Config(compress=CompressSection(codec="int8")))
    rows = {label: cell for label, cell in compressing.rows()}
    assert rows["gradients sent"] == "0.0 MB, ratio 0.25, planned 0.50"
    assert rows["compression error"] == "0.0519, 3% of the gradient"
    assert rows["residual"] == "2.5, 125% of the gradient"
    assert {label for label, _ in plain.rows()} == rows.keys() - {"gradients sent", "compression error", "residual"}
    script = summarise(folder.jobs[0], Config(torch=TorchSection(script="own_codec.py")))
    assert {"gradients sent", "compression error", "residual"} <= {label for label, _ in script.rows()}
    assert plain.trials[0].compressed is not None
    assert plain.trials[0].compressed.wire_bytes == 4 * 100 * 50
    assert stored(compressing, tmp_path) == compressing.trials


def test_refused_narrower_lanes_have_their_own_row(tmp_path: Path) -> None:
    folder = RunFolder.create(tmp_path, ["all"])
    fake = compress(simulate(iterations=100))
    for lines in fake.lines:
        for line in lines[50:]:
            line |= {"ratio": 0.1, "refused_width": 4, "refused_error": 0.76}
    write(folder, [fake])
    summary = summarise(folder.jobs[0], Config(compress=CompressSection(codec="auto", ratio_control="deliverable")))
    rows = {label: cell for label, cell in summary.rows()}
    assert rows["narrower lanes refused"] == "4 bits in 50% of iterations: error 76%"
    assert rows["gradients sent"] == "0.0 MB, ratio 0.25, planned 0.50", "everything is sent in the wider lanes"
    assert stored(summary, tmp_path) == summary.trials


def stored(summary: Summary, path: Path) -> tuple[TrialSummary, ...]:
    (path / "summary.json").write_text(json.dumps(summary.to_dict()))
    return stored_trials(path)


def test_workers_without_sent_bytes_are_left_out(tmp_path: Path) -> None:
    folder = RunFolder.create(tmp_path, ["all"])
    write(folder, [simulate()])
    summary = summarise(folder.jobs[0], Config(compress=CompressSection(codec="int8")))
    assert summary.trials[0].compressed is None
    assert ["gradients sent", "-"] in summary.rows()


def test_worker_with_the_most_memory_is_shown(tmp_path: Path) -> None:
    folder = RunFolder.create(tmp_path, ["all"])
    write(folder, [simulate()])
    assert "memory of a worker" not in dict(summarise(folder.jobs[0], Config()).rows())
    for rank in range(4):
        path = folder.jobs[0].trials[0].metrics(rank)
        *lines, last = path.read_text().splitlines()
        own = {
            "parameters": 4_000_000,
            "gradients": 0,
            "optimizer": 1_000_000 * rank,
            "residuals": 8_000_000,
            "ledger": 0,
        }
        end = {"summary": json.loads(last)["summary"] | {"memory": own}}
        path.write_text("\n".join([*lines, json.dumps(end)]) + "\n")
    summary = summarise(folder.jobs[0], Config())
    assert dict(summary.rows())["memory of a worker"] == "15.0 MB (4.0/0.0/3.0/8.0/0.0)"
    assert stored(summary, tmp_path) == summary.trials

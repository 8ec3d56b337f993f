"""The live view merges the workers' files with the controller's status."""

from collections.abc import Iterator
from io import StringIO
from pathlib import Path

import pytest
from google.protobuf.json_format import ParseDict
from rich.console import Console

from kofn.run.display import Display, say
from kofn.run.live import PAUSE_S, PRINTED_LINES, TrialView
from kofn.run.live_table import LiveTable
from kofn.run.stall import START_S
from kofn_common.results.folder import RunFolder
from kofn_common.rpc import kofn_pb2
from kofn_common.running_clock import RunningClock
from kofn_host.workload import Metric
from tests.run.fake_run import append, compress, simulate

NEVER = Metric(name="accuracy", target=2.0, percent=True)


@pytest.fixture
def folder(tmp_path: Path) -> RunFolder:
    return RunFolder.create(tmp_path / "run", ["throughput"])


@pytest.fixture
def live(folder: RunFolder) -> Iterator[TrialView]:
    view = TrialView(folder.jobs[0].trials[0], 4, "round (1 of 1)", metric=NEVER)
    yield view
    view.close()


def test_view_before_the_first_iteration(live: TrialView) -> None:
    live.poll()
    assert live.headline().endswith("starting: loading the model (not attached yet: workers 0-3)")
    live.update(kofn_pb2.Status(worker=[{"rank": rank, "state": "absent"} for rank in range(4)]))
    assert live.headline().endswith("starting: loading the model (not attached yet: workers 0-3)")
    live.update(kofn_pb2.Status(worker=[{"rank": rank, "state": "training"} for rank in range(4)]))
    assert live.line().endswith("waiting for the workers' first iteration")


def test_worker_that_trained_and_is_gone_is_absent(live: TrialView, folder: RunFolder) -> None:
    append(folder, 0, simulate().lines[0][0])
    live.poll()
    live.update(kofn_pb2.Status(worker=[{"rank": rank, "state": "absent"} for rank in range(2)]))
    assert [worker.state for worker in live.workers[:2]] == ["absent", "starting"]


def test_output_of_a_script_at_worker_0_is_shown(folder: RunFolder, tmp_path: Path) -> None:
    trial = folder.jobs[0].trials[0]
    view = TrialView(trial, 4, "all (1 of 1)", metric=None, script=Path("train.py"))
    log = trial.log("worker-0")
    log.write_bytes(b"[W1126 12:48:04.558730701 socket.cpp:207] [c10d] no name\nstep 1 caf\xe9\nunfini")
    assert view.headline().endswith("importing PyTorch and running train.py (not attached yet: workers 0-3)")
    assert view.printed() == ["worker 0: step 1 caf\ufffd"]
    with log.open("ab") as file:
        file.write(
            b"shed\n" + b"".join(b"%d\n" % number for number in range(PRINTED_LINES + 4)) + b"x" * 10_000 + b"\n"
        )
    printed = view.printed()
    assert printed[:2] == ["worker 0: unfinished", "worker 0: 0"] and len(printed) == PRINTED_LINES + 1
    assert printed[-1] == f"worker 0: 6 lines more in {log}" and view.printed() == []
    view.close()
    for quiet in (True, False):
        view, out = TrialView(trial, 4, "", metric=None, script=Path("train.py")), StringIO()
        with Display(Console(file=out, width=200), [view], quiet=quiet):
            """Its end shows what there is."""
        assert ("worker 0: step 1" in out.getvalue()) == (not quiet)


def test_end_of_all_workers_is_no_stall(live: TrialView, folder: RunFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    for worker in live.workers:
        append(folder, worker.rank, simulate().lines[worker.rank][0])
    live.poll()
    for worker in live.workers:
        worker.finished = "the target is reached"
    for idle_s, said in ((START_S - 1, 0), (START_S + 1, 1)):
        monkeypatch.setattr(live, "last_news", live.running() - idle_s)
        live.watch_stall(expected=True)
        assert len(live.news()) == said


def test_wait_is_printed_once(live: TrialView, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kofn.run.display.PLAIN_INTERVAL_S", 0.0)
    out = tmp_path / "out"
    with out.open("w") as file, Display(Console(file=file, width=80), [live], quiet=False) as display:
        display.show()
        display.show()
    assert len(out.read_text().splitlines()) == 1


def test_complete_lines_are_read_and_unfinished_ones_wait(live: TrialView, folder: RunFolder) -> None:
    fake = simulate(k=lambda i: 3)
    append(folder, 0, fake.lines[0][0], fake.lines[0][1])
    append(folder, 1, fake.lines[1][0], end="")
    live.poll()
    assert live.newest is not None
    assert live.newest.iteration == 2
    assert live.workers[1].last is None
    append(folder, 1)
    live.poll()
    assert live.workers[1].last is not None


def test_workers_absent_from_the_newest_sum_are_named(live: TrialView, folder: RunFolder) -> None:
    line = simulate(k=lambda i: 3).lines[0][0]
    append(folder, 0, {**line, "members": "0xb"})
    live.poll()
    assert live.absent() == [2]


def test_estimates_stand_beside_the_injected_truth(live: TrialView, folder: RunFolder, tmp_path: Path) -> None:
    for rank in range(4):
        append(folder, rank, {**simulate().lines[rank][0], "injected_mean_s": 0.001 * rank, "k": 3})
    live.poll()
    worker = [
        kofn_pb2.WorkerStatus(rank=3, live=True, lambda_s=0.0042, lambda_low_s=0.003, lambda_high_s=0.006, samples=9)
    ]
    expected = [kofn_pb2.Expected(k=3, iteration_s=0.0123)]
    live.update(kofn_pb2.Status(k=3, worker=worker, expected=expected))
    console = Console(width=120, record=True, quiet=False, file=(tmp_path / "out").open("w"))
    console.print(LiveTable(view=live))
    console.file.close()
    text = console.export_text()
    for words in ("4.2 ms", "3.0-6.0", "3.0 ms", "k 3 of 4", "E_k[T] 12.3 ms"):
        assert words in text


def test_last_line_gives_the_reason_of_a_workers_end(live: TrialView, folder: RunFolder) -> None:
    append(folder, 0, simulate().lines[0][0], {"summary": {"reason": "target", "iterations": 1}})
    live.poll()
    assert live.workers[0].finished == "target"


def test_latest_logged_numbers_are_shown_as_means(live: TrialView, folder: RunFolder) -> None:
    for rank, values in enumerate([(0.1, 0.5), (0.75,)]):
        append(folder, rank, simulate().lines[rank][0])
        append(folder, rank, *({"iteration": 1, "time": 2.0, "logged": {"top1": value}} for value in values))
    append(folder, 2, {"iteration": 1, "time": 2.0, "logged": {"top1": None}})
    live.poll()
    assert "  top1 0.625  " in live.headline()
    assert live.workers[0].iteration == 1, "a line that is no iteration must not count"


def test_plain_lines_are_printed_without_a_terminal(live: TrialView, folder: RunFolder, tmp_path: Path) -> None:
    append(folder, 0, simulate().lines[0][0])
    out = tmp_path / "out"
    with out.open("w") as file, Display(Console(file=file, width=80), [live], quiet=False) as display:
        live.poll()
        display.show()
    assert out.read_text().count("iteration    1") == 1, (
        "the last line must be printed once, although it is drawn again at the end"
    )
    assert "\x1b" not in out.read_text()


def test_quiet_shows_nothing(live: TrialView, tmp_path: Path) -> None:
    out = tmp_path / "out"
    with out.open("w") as file, Display(Console(file=file), [live], quiet=True) as display:
        display.show()
    assert out.read_text() == ""


def test_stall_and_its_end_are_reported(
    live: TrialView, folder: RunFolder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = [100.0]
    monkeypatch.setattr("kofn.run.live.time.monotonic", lambda: clock[0])
    live.running = lambda: clock[0]
    live.begin()
    for rank in range(4):
        append(folder, rank, *simulate().lines[rank][: 2 if rank else 1])
    live.poll()
    live.workers[0].process = "killed"
    live.happened("worker-0 killed at iteration 1")
    clock[0] += 3.0
    live.watch_stall(expected=True)
    first, stall = live.news()
    assert first.endswith("event: worker-0 killed at iteration 1")
    assert "3.0 s  no iteration for 3 s: workers 1, 2, 3 at iteration 2 may wait for worker 0 (killed" in stall
    assert stall.endswith("just before: worker-0 killed at iteration 1")
    console = Console(width=250, record=True, file=(tmp_path / "out").open("w"))
    console.print(LiveTable(view=live))
    console.file.close()
    assert "no iteration for 3 s: workers 1, 2, 3" in console.export_text()
    append(folder, 1, simulate().lines[1][2])
    live.poll()
    live.watch_stall(expected=True)
    assert live.news() == ["round (1 of 1)     3.0 s  goes on after 3.0 s"]


def test_no_stall_is_reported_where_no_progress_is_expected(live: TrialView) -> None:
    live.begin()
    live.running = lambda: live.last_news + 50.0
    live.watch_stall(expected=False)
    assert live.news() == []


def test_absent_controller_is_reported_once(live: TrialView) -> None:
    for status in (kofn_pb2.Status(), None, None, kofn_pb2.Status()):
        live.update(status)
    assert [line.partition(" s  ")[2] for line in live.news()] == [
        "the controller is away",
        "the controller is back",
    ]


def test_worker_that_trains_again_has_not_ended(live: TrialView, folder: RunFolder) -> None:
    lines = simulate().lines[0]
    append(folder, 0, lines[0], {"summary": {"reason": "stopped"}})
    live.poll()
    assert live.workers[0].state == "stopped"
    append(folder, 0, lines[1])
    live.poll()
    assert live.workers[0].state == "training"


def test_sent_share_is_shown_where_a_run_compresses(folder: RunFolder, live: TrialView) -> None:
    fake = compress(simulate())
    for rank in range(4):
        append(folder, rank, fake.lines[rank][1])
    compressing = TrialView(folder.jobs[0].trials[0], 4, "throughput", metric=NEVER, compresses=True)
    for view in (live, compressing):
        view.poll()
    compressing.close()
    assert "25 % of the bytes" in compressing.headline()
    assert "of the bytes" not in live.headline()


@pytest.mark.parametrize(("workers", "jobs"), [(4, 1), (32, 1), (64, 1), (32, 2)])
def test_live_table_fits_80_columns_and_24_lines(tmp_path: Path, workers: int, jobs: int) -> None:
    folder = RunFolder.create(tmp_path / "many", ["progress"])
    line = simulate().lines[0][0] | {"iteration": 12345, "injected_mean_s": 0.06}
    for rank in range(workers):
        append(folder, rank, line)
    view = TrialView(folder.jobs[0].trials[0], workers, "batch-sync:2 (1 of 12), job 12", metric=NEVER)
    view.poll()
    slow = {"lambda_s": 1.234, "lambda_low_s": 1.012, "lambda_high_s": 2.345}
    estimates = [
        {"rank": rank, "samples": 16, "lambda_s": 0.0567, "lambda_low_s": 0.0456, "lambda_high_s": 0.0678, "share": 1.0}
        | (slow if rank == 21 else {"unheard": 99} if rank == 23 else {})
        for rank in range(workers)
    ]
    view.update(ParseDict({"worker": estimates, "k": 1, "workers": workers}, kofn_pb2.Status()))
    view.workers[-1].process = "not started"
    file = StringIO()
    console = Console(file=file, width=80, height=24, force_terminal=True, color_system=None)
    for _ in range(jobs):
        console.print(LiveTable(view=view, sharing=jobs))
    view.close()
    lines = file.getvalue().splitlines()
    assert len(lines) <= 23
    assert max(map(len, lines)) <= 80
    rows = [text.split() for text in lines if " ms " in text]
    assert [row[-1] for row in rows if row[0] == str(workers - 1)] == ["started"] * jobs
    if workers > 23 * jobs:
        assert ["1234", "ms", "1012-2345"] in [row[2:5] for row in rows if row[0] == "21"]
        assert "starved" in [row[-1] for row in rows if row[0] == "23"]
        assert [row[0] for row in rows if row[-1] == "medians"] == ["others"] * jobs


def test_line_about_many_workers_is_short(tmp_path: Path) -> None:
    folder = RunFolder.create(tmp_path / "many", ["progress"])
    account = {"entered": 9.0, "summed": 6.5, "waiting": 1.5, "discarded": 1.0}
    line = simulate().lines[0][0] | {"members": "0x81", "injected_mean_s": 0.06, "late": True, "account": account}
    for rank in range(32):
        append(folder, rank, line)
    view = TrialView(folder.jobs[0].trials[0], 32, "progress (1 of 2)", metric=NEVER)
    view.poll()
    assert view.line().endswith("missing 1-6, 8-31  worker 0: 6.5 of 9 gradients in sums, 1.5 pending, 1.0 discarded")
    view.close()


def test_terminal_breaks_lines_between_words_and_keeps_paths_whole() -> None:
    path = f"/tmp/{'long-' * 12}end"
    for terminal, lines in ((True, ["results of this run are", "in", path, "and nowhere else"]), (False, None)):
        file = StringIO()
        say(
            Console(file=file, force_terminal=terminal, width=24), f"results of this run are in {path} and nowhere else"
        )
        assert file.getvalue().splitlines() == (lines or [f"results of this run are in {path} and nowhere else"])


@pytest.mark.parametrize("width", [30, 40, 60, 79])
def test_narrow_live_table_has_fewer_columns_and_no_cut_cell(folder: RunFolder, live: TrialView, width: int) -> None:
    for rank in range(4):
        append(folder, rank, simulate().lines[rank][0] | {"iteration": 12345, "injected_mean_s": 0.06})
    live.poll()
    slow = {"samples": 16, "lambda_s": 1.234, "lambda_low_s": 1.012, "lambda_high_s": 2.345}
    live.update(ParseDict({"worker": [{"rank": rank} | slow for rank in range(4)], "k": 1}, kofn_pb2.Status()))
    live.workers[-1].process = "not started"
    file = StringIO()
    Console(file=file, width=width, height=40, force_terminal=True, color_system=None).print(LiveTable(view=live))
    lines = file.getvalue().splitlines()
    assert max(map(len, lines)) <= width
    assert not [line for line in lines if "\N{HORIZONTAL ELLIPSIS}" in line]
    assert "state" in file.getvalue() and "not started" in file.getvalue()
    assert ("1012-2345" in file.getvalue()) == (width > 60)


def test_view_counts_a_stop_of_this_process_as_one_poll(live: TrialView) -> None:
    now = [0.0]
    live.running = RunningClock(PAUSE_S, lambda: now[0])
    live.begin()
    now[0] += 75.0
    live.poll()
    assert live.idle_s == PAUSE_S
    for _ in range(60):
        now[0] += 1.0
        live.poll()
    assert live.idle_s == PAUSE_S + 60

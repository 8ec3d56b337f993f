"""kofn.run for scripts and notebooks: the thread that gets the lines, and the end of a run that its caller abandons."""

import asyncio
import json
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from rich.console import Console

import kofn
from kofn.run.errors import InterruptedRun
from kofn.run.library import in_thread, planned
from kofn.run.signals import cancel_on_signal, stopped_by
from kofn_common.config.errors import ConfigError
from tests.run.real_run import CONFIG, EASY, NEVER, OWN_NETWORK, processes


def test_lines_arrive_in_the_callers_thread() -> None:
    heard: list[tuple[str, bool]] = []

    def work(console: Console) -> None:
        console.print("one\ntwo " + "x" * 200)
        assert threading.current_thread() is not threading.main_thread()

    in_thread(work, lambda line: heard.append((line, threading.current_thread() is threading.main_thread())))
    assert heard == [("one", True), ("two " + "x" * 200, True)]


def test_error_of_the_work_is_raised_in_the_caller() -> None:
    def work(console: Console) -> None:
        raise ConfigError("job.workers is 65")

    with pytest.raises(ConfigError, match=r"job\.workers is 65"):
        in_thread(work, False)


class Slow:
    """Work like a run's: an endless loop that takes a moment to clean up."""

    def __init__(self) -> None:
        self.ended = False

    def __call__(self, console: Console) -> None:
        asyncio.run(self.loop(console))

    async def loop(self, console: Console) -> None:
        task = asyncio.current_task()
        assert task is not None
        signals = cancel_on_signal(task)
        try:
            console.print("begun")
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            await asyncio.sleep(0.1)
            self.ended = True
            raise stopped_by(signals[0]) from None


@pytest.mark.parametrize(("number", "error"), [(signal.SIGINT, KeyboardInterrupt), (signal.SIGTERM, InterruptedRun)])
def test_signal_ends_the_work_before_it_is_raised(number: signal.Signals, error: type[BaseException]) -> None:
    work = Slow()
    # shells start background processes with SIGINT ignored
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with pytest.raises(error) as caught:
            in_thread(work, lambda line: os.kill(os.getpid(), number))
    finally:
        signal.signal(signal.SIGINT, before)
    assert work.ended
    said = [str(caught.value), *getattr(caught.value, "__notes__", [])]
    assert str(stopped_by(number)) in said


def test_error_of_the_callers_function_ends_the_work() -> None:
    work = Slow()
    with pytest.raises(ZeroDivisionError):
        in_thread(work, lambda line: 1 / 0)
    assert work.ended


@pytest.mark.root
@pytest.mark.slow
@pytest.mark.skipif(os.geteuid() != 0, reason="needs root: network namespaces")
@pytest.mark.long
def test_ctrl_c_ends_a_run_within_a_loop_and_another_one_can_start(tmp_path: Path) -> None:
    text = CONFIG.format(target=NEVER, deadline_s=60)
    script = f"""
import asyncio, json, kofn

def give_up(line):
    if "iteration" in line and "waiting" not in line:
        raise KeyboardInterrupt

async def cell():
    try:
        kofn.run({text!r}, out="stopped", progress=give_up, trials=["all"])
    except KeyboardInterrupt as error:
        print(json.dumps(error.__notes__))
    print(json.dumps(len(kofn.read("stopped").metrics) > 0))
    run = kofn.run({text!r}, out="ended", progress=False, trials=["fixed:1"], run={{"target": {EASY}}})
    print(json.dumps([run.ok, run.summary.trial.tolist(), run.links.host.tolist()]))

asyncio.run(cell())
"""
    environment = {**os.environ, "KOFN_STATE_DIR": str(tmp_path / "state")}
    run = subprocess.run(
        [*OWN_NETWORK, sys.executable, "-c", script], cwd=tmp_path, env=environment, capture_output=True, text=True,
        check=False, timeout=100,
    )  # fmt: skip
    assert run.returncode == 0, run.stderr
    notes, there, ended = map(json.loads, run.stdout.splitlines())
    assert notes[0].startswith("stopped by SIGINT (Ctrl-C)\nkept in stopped")
    assert there
    assert ended == [True, ["fixed:1"], ["h1", "h2"]]
    assert run.stderr == "", "progress=False must print nothing"
    assert processes(tmp_path / "state") == []


def test_file_is_used_unchanged(tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    path.write_text("# mine\n")
    with planned([path], {}, out=tmp_path / "out") as plan:
        assert plan.jobs[0].source == path
    with planned([path], {"run": {"seed": 4}}, out=None) as plan:
        assert plan.shared.run.seed == 4


def test_errors_name_no_temporary_file() -> None:
    missing = {"model": {"workload": "no_such_module:Model"}}
    with (
        pytest.raises(ConfigError, match=r"^workload 'no_such_module:Model' cannot be loaded"),
        planned([missing], {}, out=None),
    ):
        pass


def test_two_jobs_need_two_ids() -> None:
    with pytest.raises(kofn.ConfigError, match=r"job\.id must differ from every other job's, got 1, as in "):
        kofn.run({}, {}, progress=False)

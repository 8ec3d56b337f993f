"""The costs of a machine: measured once and kept, so that commands agree; a busy machine is named."""

import itertools
import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner
from msgspec.structs import replace

from kofn.cli.main import main
from kofn.run import machine_load
from kofn.run.machine_load import LoadOfOthers
from kofn.sim import costs as costs_module
from kofn.sim import machine_costs as machine
from kofn.sim.costs import Costs
from kofn.sim.machine_costs import known_costs, machine_costs
from kofn_common.config.schema import Config
from kofn_common.results.provenance import Provenance
from kofn_common.results.record import read_record
from tests.sim.lab import COSTS, written

QUIET, BUSY = 0.1, 0.6
NOTE = (
    "the CPU times of a worker's steps were measured on a busy machine: other processes used 60% of the cores; run"
    " kofn simulate --measure to measure again"
)


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a new cache for costs; libraries stay in the usual one."""
    folder = tmp_path / "cache"
    folder.mkdir()
    monkeypatch.setattr(machine, "cache_folder", lambda: folder)
    return folder


@pytest.fixture
def measured(cache: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[float], None]]:
    """Replace the measurement: each one takes other times. Yield a function that sets the load of the machine."""
    load, numbers = [QUIET], itertools.count(1)
    monkeypatch.setattr(
        machine, "measure", lambda config: replace(COSTS, encode_s=next(numbers) * 1e-4, others=load[0])
    )
    monkeypatch.setattr(machine, "load_note", lambda: "busy" if load[0] > QUIET else "")
    yield lambda others: load.__setitem__(0, others)


def number(costs: Costs) -> int:
    """Return the number of the measurement from which the costs come."""
    return round(costs.encode_s / 1e-4)


def config(folder: Path, *settings: str) -> Config:
    return Config.load(written(folder), settings)


@pytest.mark.usefixtures("measured")
@pytest.mark.parametrize(
    "setting",
    ["run.seed=2", "run.target=0.5", "model.learning_rate=0.5", "network.link_mbps=7", 'run.trials=["all"]'],
)
def test_costs_are_measured_once(tmp_path: Path, setting: str) -> None:
    first = machine_costs(config(tmp_path))
    assert machine_costs(config(tmp_path)) == machine_costs(config(tmp_path, setting)) == first


@pytest.mark.usefixtures("measured")
@pytest.mark.parametrize(
    "setting",
    [
        "job.workers=4",
        "job.words=4",
        "model.hidden=[8]",
        "compress.codec=int8",
        "policy.window=8",
        "model.compute_ms=7",
    ],
)
def test_another_configuration_has_other_costs(tmp_path: Path, setting: str) -> None:
    assert number(machine_costs(config(tmp_path))) == 1
    assert number(machine_costs(config(tmp_path, setting))) == 2
    assert number(machine_costs(config(tmp_path))) == 1


@pytest.mark.usefixtures("measured")
@pytest.mark.parametrize("field", ["machine", "kernel", "python", "numpy", "cores"])
def test_another_machine_has_other_costs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, field: str) -> None:
    assert number(machine_costs(config(tmp_path))) == 1
    other = replace(Provenance.here(), **{field: 77 if field == "cores" else "other"})
    monkeypatch.setattr(Provenance, "here", lambda: other)
    assert number(machine_costs(config(tmp_path))) == 2


@pytest.mark.usefixtures("measured")
def test_other_code_has_other_costs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    code = tmp_path / "code"
    code.mkdir()
    monkeypatch.setattr(machine, "folder_of", lambda package: code)
    for count, text in enumerate(("a = 1", "a = 2"), 1):
        (code / "x.py").write_text(text)
        assert number(machine_costs(config(tmp_path))) == count


@pytest.mark.usefixtures("measured")
def test_damaged_file_is_measured_again(tmp_path: Path, cache: Path) -> None:
    assert number(machine_costs(config(tmp_path))) == 1
    (file,) = cache.glob("costs-*.json")
    file.write_bytes(file.read_bytes()[:-20])
    assert number(machine_costs(config(tmp_path))) == 2
    assert number(machine_costs(config(tmp_path))) == 2


@pytest.mark.usefixtures("measured")
def test_costs_are_measured_again_on_request(tmp_path: Path) -> None:
    assert number(machine_costs(config(tmp_path))) == 1
    assert number(machine_costs(config(tmp_path), anew=True)) == 2
    assert number(machine_costs(config(tmp_path))) == 2


def test_costs_of_a_busy_machine_last_until_the_machine_is_quiet(
    tmp_path: Path, measured: Callable[[float], None]
) -> None:
    measured(BUSY)
    assert number(machine_costs(config(tmp_path))) == 1
    assert machine_costs(config(tmp_path)).load_note == NOTE
    measured(QUIET)
    assert number(machine_costs(config(tmp_path))) == 2
    measured(BUSY)
    assert number(machine_costs(config(tmp_path))) == 2
    assert machine_costs(config(tmp_path)).load_note == ""


def test_load_that_begins_during_the_measurement_replaces_nothing(
    tmp_path: Path, measured: Callable[[float], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    measured(BUSY)
    assert number(machine_costs(config(tmp_path))) == 1
    monkeypatch.setattr(machine, "load_note", lambda: "")
    assert number(machine_costs(config(tmp_path))) == 1


@pytest.mark.usefixtures("measured")
def test_cache_keeps_the_newest_costs(tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "KEPT", 2)
    for workers in (3, 4, 5):
        machine_costs(config(tmp_path, f"job.workers={workers}"))
    assert len([*cache.glob("costs-*.json")]) == 2
    assert number(machine_costs(config(tmp_path, "job.workers=5"))) == 3


@pytest.mark.usefixtures("measured")
def test_cache_that_cannot_be_written_is_no_error(tmp_path: Path, cache: Path) -> None:
    cache.rmdir()
    assert number(machine_costs(config(tmp_path))) == 1


@pytest.mark.usefixtures("measured")
def test_experiments_take_the_machines_costs(tmp_path: Path) -> None:
    first = machine_costs(config(tmp_path))
    assert known_costs(tmp_path / "costs-3w.json", config(tmp_path)) == first
    machine_costs(config(tmp_path), anew=True)
    assert known_costs(tmp_path / "costs-3w.json", config(tmp_path)) == first


def test_least_time_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    """A step that is disturbed nearly always has the time of an undisturbed one."""
    lasts_s = iter([9.0] * 20 + [2.0] + [9.0] * (costs_module.REPEATS - 21))
    now_s = [0.0]
    monkeypatch.setattr("kofn.sim.costs.time.thread_time", lambda: now_s[0])
    assert costs_module._least_s(lambda: now_s.__setitem__(0, now_s[0] + next(lasts_s))) == 2.0


def test_late_wake_ups_do_not_count(monkeypatch: pytest.MonkeyPatch) -> None:
    late_s = iter([0.004] * 26 + [2e-5] * 2 + [1e-4] * (costs_module.REPEATS - 28))
    now_s = [0.0]
    monkeypatch.setattr("kofn.sim.costs.time.perf_counter", lambda: now_s[0])
    monkeypatch.setattr(
        "kofn.sim.costs.time.sleep", lambda length_s: now_s.__setitem__(0, now_s[0] + length_s + next(late_s))
    )
    assert costs_module._wake_s() == pytest.approx(1e-4)


def stat(path: Path, busy: int) -> None:
    """Write a /proc/stat in which two cores were busy for so many ticks each; a third core is another process's."""
    rows = [f"cpu{core} {busy} 0 0 500 7 0 0 0 0 0" for core in range(2)] + ["cpu2 9999 0 0 0 0 0 0 0 0 0"]
    path.write_text("\n".join(["cpu  1 1 1 1 1 1 1 1 1 1", *rows, "intr 1", ""]))


def test_load_is_the_share_of_the_own_cores(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ticks = os.sysconf("SC_CLK_TCK")
    now_s, own_s = [100.0], [3.0]
    monkeypatch.setattr(machine_load, "STAT", tmp_path / "stat")
    monkeypatch.setattr("kofn.run.machine_load.os.sched_getaffinity", lambda pid: {0, 1})
    monkeypatch.setattr("kofn.run.machine_load.os.times", lambda: (own_s[0], 0.0, 0.0, 0.0, 0.0))
    monkeypatch.setattr("kofn.run.machine_load.time.monotonic", lambda: now_s[0])
    stat(tmp_path / "stat", 0)
    load = LoadOfOthers()
    stat(tmp_path / "stat", 8 * ticks)
    now_s[0], own_s[0] = 110.0, 11.0
    assert load.share() == pytest.approx(0.4), "16 s on two cores in 10 s, of which 8 s were this process's"
    (tmp_path / "stat").unlink()
    load = LoadOfOthers()
    now_s[0] += 1.0
    assert load.share() == 0.0


@pytest.fixture
def simulated(monkeypatch: pytest.MonkeyPatch) -> Callable[..., list[str]]:
    """Return a function that runs the command on a busy machine, and returns the lines of its output."""
    monkeypatch.setattr(machine, "measure", lambda config: replace(COSTS, others=BUSY))

    def run(*arguments: object, exit_code: int = 0) -> list[str]:
        result = CliRunner().invoke(main, ["simulate", *map(str, arguments)], env={"COLUMNS": "300"})
        assert result.exit_code == exit_code, result.output
        return result.output.splitlines()

    return run


@pytest.mark.slow
@pytest.mark.usefixtures("cache")
def test_command_and_report_name_a_busy_machine(tmp_path: Path, simulated: Callable[..., list[str]]) -> None:
    out = tmp_path / "out"
    lines = simulated(written(tmp_path, iterations=5, target=0.01), "--trial", "all", "--out", out)
    assert lines.count(NOTE) == 1
    assert read_record(out).load == NOTE
    assert NOTE.replace("'", "&#39;") in (out / "report.html").read_text()
    assert Costs.load(out / "costs.json").others == BUSY


@pytest.mark.slow
@pytest.mark.usefixtures("cache")
def test_times_and_seeds_name_a_busy_machine_once(tmp_path: Path, simulated: Callable[..., list[str]]) -> None:
    path = written(tmp_path, iterations=5, target=0.01)
    assert simulated(path, "--times").count(NOTE) == 1
    lines = simulated(path, "--trial", "all", "--set", "run.seeds=2", "--out", tmp_path / "out")
    assert len([line for line in lines if "busy" in line]) == 1


def test_given_costs_are_not_measured(tmp_path: Path, cache: Path, simulated: Callable[..., list[str]]) -> None:
    COSTS.save(tmp_path / "costs.json")
    path = written(tmp_path, iterations=5)
    assert NOTE not in simulated(path, "--times", "--costs", tmp_path / "costs.json")
    assert not [*cache.iterdir()]
    (line,) = simulated(path, "--costs", tmp_path / "costs.json", "--measure", exit_code=2)
    assert line.endswith(f"--costs {tmp_path / 'costs.json'} and --measure must not both be given")

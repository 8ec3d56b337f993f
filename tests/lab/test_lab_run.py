"""`kofn run --lab`: a laboratory of machines that share nothing with the runner but a network."""

import json
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.lab.machines import Laboratory, laboratory, missing

pytestmark = [
    pytest.mark.root,
    pytest.mark.slow,
    pytest.mark.skipif(missing() is not None, reason=f"no laboratory: {missing()}"),
]

SHORT = """
run = {{trials = ["{trial}"], max_iterations = {iterations}, target = 1.0, alone = false}}
model = {{compute_ms = 5.0}}
job = {{workers = 4}}
"""


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Laboratory]:
    """Two machines that are set up. The clocks of one are minutes ahead of the runner's clocks."""
    with laboratory(tmp_path_factory.mktemp("laboratory") / "lab") as made:
        made.start()
        made.start(clock_s=600, monotonic_s=300)
        done = made.kofn("lab", "setup", str(made.file()))
        assert done.returncode == 0, done.stderr
        yield made


def written(lab: Laboratory, name: str, *, trial: str = "all", iterations: int = 40) -> Path:
    path = lab.folder / f"{name}.toml"
    path.write_text(SHORT.format(trial=trial, iterations=iterations))
    return path


def test_second_setup_has_nothing_to_do(lab: Laboratory) -> None:
    done = lab.kofn("lab", "setup", str(lab.file()))
    assert done.returncode == 0 and done.stdout.count("has this checkout in") == 2, done.stdout


def test_doctor_has_a_row_for_each_machine(lab: Laboratory) -> None:
    done = lab.kofn("doctor", "--lab", str(lab.file()), "--json")
    found = json.loads(done.stdout)
    assert done.returncode == 0 and found["ok"], done.stderr
    details = {check["name"]: check["detail"] for check in found["checks"]}
    assert details["root@machine2 clock"].startswith("+600.0") and details["root@machine1 clock"][1:].startswith("0.0")
    assert "machine2" in done.stderr and "bytes pass" in done.stderr


def test_run_has_the_results_of_a_run_on_one_machine(lab: Laboratory) -> None:
    out = lab.folder / "run"
    done = lab.kofn("run", str(written(lab, "job", trial="fixed:3")), "--lab", str(lab.file()), "--out", str(out))
    assert "kofn run:" not in done.stderr, done.stderr
    assert done.returncode == 1, done.stderr  # accuracy 1 is not reached
    trial = json.loads((out / "summary.json").read_text())["trials"][0]
    assert (trial["iterations"], trial["ledger"]) == (40, True)
    assert (trial["identity_error"], trial["conservation_error"], trial["conservation_unchecked"]) == (None,) * 3
    record = json.loads((out / "run.json").read_text())
    machines = {machine["host"]: machine for machine in record["machines"]}
    assert machines["root@machine1"]["nodes"] == ["s1"] and machines["root@machine2"]["nodes"] == [
        "h1",
        "h2",
        "h3",
        "h4",
    ]
    assert machines["root@machine2"]["ahead_s"] == pytest.approx(600, abs=0.1)
    assert machines["root@machine2"]["monotonic_ahead_s"] == pytest.approx(300, abs=0.1)
    began = out.stat().st_ctime - 60
    lines = [json.loads(line) for line in (out / "fixed-3" / "worker-0.jsonl").read_text().splitlines()]
    assert all(began < line["time"] < time.time() for line in lines if "time" in line), "times are the runner's"
    assert (out / "fixed-3" / "logs" / "controller.log").exists()
    assert json.loads((out / "fixed-3" / "links.json").read_text())["h1"][0] > 10_000
    assert lab.leftovers() == {}


def test_commands_work_during_a_run_and_ctrl_c_removes_everything(lab: Laboratory) -> None:
    out = lab.folder / "stopped"
    job = written(lab, "long", iterations=2000)
    argv = ["run", str(job), "--lab", str(lab.file()), "--out", str(out), "--quiet"]
    run = lab.begin(*argv)
    try:
        lab.until((out / "all" / "worker-0.jsonl").exists, "the first iteration", run)
        status = json.loads(lab.kofn("status", "--json").stdout)
        assert status["k"] == 4, status
        entered = lab.kofn("exec", "h2", "sh", "-c", "hostname; ip link show h2-eth0")
        assert entered.stdout.split()[0] == "machine2" and "08:00:00:00:00:02" in entered.stdout, entered.stderr
        run.send_signal(signal.SIGINT)
        assert run.wait(30) == 130
    finally:
        run.kill()
    assert "stopped by SIGINT" in (lab.folder / "output").read_text()
    assert lab.leftovers() == {}


GOOD = "[[machine]]\nhost='a'\naddress='192.0.2.1'\nswitch=true\nworkers=[0, 1, 2, 3]"


@pytest.mark.parametrize(
    ("tables", "arguments", "words"),
    [
        ("[[machine]]\nhost='a'\naddress='192.0.2.1'", (), "machine.switch must be true for one machine"),
        ("[[machine]]\nhost='-oProxyCommand=x'\naddress='192.0.2.1'\nswitch=true", (), "machine.host must be a name"),
        ("[[machine]]\nhost='a'\naddress='here'\nswitch=true", (), "machine.address of a must be an IPv4 address"),
        ("[[machine]]\nhost='a'\naddress='192.0.2.1'\nswitch=true", (), "must name every rank below job.workers = 4"),
        (GOOD, ("--target", "bmv2"), "network.target must be 'embedded' in a laboratory, got 'bmv2'"),
        (GOOD, ("--slurm",), "--lab and --slurm must not both be given"),
        (GOOD, ("--set", "job.racks=2"), "machine.leaves of all machines must be each rack from 0 to 1 once"),
    ],
)
def test_wrong_laboratory_is_refused(tmp_path: Path, tables: str, arguments: tuple[str, ...], words: str) -> None:
    (tmp_path / "lab.toml").write_text(tables)
    argv = [str(Path(sys.executable).with_name("kofn")), "run", "--lab", str(tmp_path / "lab.toml")]
    argv += arguments
    done = subprocess.run(argv, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 2 and words in " ".join(done.stderr.split()), done.stderr

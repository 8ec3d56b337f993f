"""A laboratory of four machines has all that one machine has: baselines, trees, PyTorch, and everything that changes on
the way."""

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.lab.machines import ROOT, Laboratory, laboratory, missing
from tests.lab.test_lab_run import written

pytestmark = [
    pytest.mark.root,
    pytest.mark.lab,
    pytest.mark.skipif(missing() is not None, reason=f"no laboratory: {missing()}"),
]

STORY = """
run = {trials = ["fixed:3"], max_iterations = 240, target = 1.0, alone = true, checkpoint_every = 50}
model = {compute_ms = 5.0}
job = {workers = 4}
network = {pcap = true}
straggler = [{workers = [1], mean_ms = 20}]
cpu = [{workers = [2], share = 0.3, at_iteration = 40}]
link = [{workers = [0], mbps = 20, at_iteration = 60}]
fault = [{workers = [3], drop = 0.02}]
event = [
    {at_iteration = 80, kill = "worker-3"},
    {at_iteration = 100, start = "worker-3"},
    {at_iteration = 130, kill = "switch"},
    {at_iteration = 130, after_s = 0.5, start = "switch"},
    {at_iteration = 180, kill = "controller"},
    {at_iteration = 180, after_s = 1, start = "controller"},
]
"""


QUESTION = """
[experiment]
name = "question"
question = "What is a sum without the slowest worker worth?"
mode = "run"
seeds = 2
baseline = "all"
[base]
run = { max_iterations = 30, target = 1.0, alone = false }
model = { compute_ms = 5.0 }
job = { workers = 4 }
straggler = [{ workers = [1], mean_ms = 30 }]
[[contender]]
name = "all"
trial = "all"
[[contender]]
name = "three"
trial = "fixed:3"
[[claim]]
text = "an iteration is shorter without the slowest worker"
column = "mean_iteration_s"
faster = "three"
slower = "all"
at_least = 1.1
"""


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Laboratory]:
    """Four machines whose clocks differ by minutes."""
    with laboratory(tmp_path_factory.mktemp("laboratory") / "lab") as made:
        for number in range(4):
            made.start(clock_s=-600 * number, monotonic_s=200 * number)
        assert made.kofn("lab", "setup", str(made.file())).returncode == 0
        yield made


def ran(lab: Laboratory, name: str, *arguments: str, code: int = 1, lab_file: Path | None = None) -> dict[str, Any]:
    """Run on the laboratory's machines; return the only trial's results."""
    out = lab.folder / "runs" / name
    done = lab.kofn("run", *arguments, "--lab", str(lab_file or lab.file()), "--out", str(out))
    assert "kofn run:" not in done.stderr and done.returncode == code, done.stderr[-3000:] + done.stdout[-3000:]
    assert lab.leftovers() == {}
    (trial,) = json.loads((out / "summary.json").read_text())["trials"]
    assert trial["identity_error"] is None and trial["conservation_error"] is None
    return trial


@pytest.mark.parametrize("collective", ["server", "ring", "gloo", "mpi"])
def test_baselines_run_over_the_same_machines(lab: Laboratory, collective: str) -> None:
    if needed := {"gloo": "torch", "mpi": "mpi4py"}.get(collective):
        pytest.importorskip(needed)
    codec = [] if collective == "server" else ["--set", "compress.codec=int32"]
    job = written(lab, collective)
    assert ran(lab, collective, str(job), "--set", f"job.collective={collective}", *codec)["iterations"] == 40


def test_tree_has_a_leaf_on_each_of_two_machines(lab: Laboratory) -> None:
    racks = {"machine1": "leaves = [0]\n", "machine2": "leaves = [1]\n"}
    file = lab.folder / "tree-lab.toml"
    tables = lab.file().read_text().split("\n\n")
    file.write_text("\n\n".join(f"{table}\n{racks.get(f'machine{n}', '')}" for n, table in enumerate(tables, 1)))
    trial = ran(lab, "tree", str(written(lab, "tree", trial="fixed:3")), "--set", "job.racks=2", lab_file=file)
    assert trial["iterations"] == 40


@pytest.mark.parametrize("script", ["digits_ddp", "zero"])
def test_pytorch_scripts_run(lab: Laboratory, script: str) -> None:
    pytest.importorskip("torch")
    limit = ["--set", "run.max_iterations=40"] if script == "zero" else []
    trial = ran(lab, script, str(ROOT / "examples" / "torch" / f"{script}.toml"), *limit, code=0)
    assert trial["iterations"] > 0


def test_everything_that_changes_on_the_way(lab: Laboratory) -> None:
    job = lab.folder / "story.toml"
    job.write_text(STORY)
    assert ran(lab, "story", str(job))["iterations"] == 240
    out = lab.folder / "runs" / "story"
    events = [json.loads(line) for line in (out / "fixed-3" / "events.jsonl").read_text().splitlines()]
    assert [event["action"] for event in events if not event["missed"]] == [
        *("cpu", "link", "kill", "start", "kill", "start", "kill", "start")
    ]
    times = [event["time"] for event in events]
    assert times == sorted(times)
    assert (out / "alone" / "worker-0.jsonl").exists() and list((out / "fixed-3" / "pcap").glob("*.pcap"))
    assert list((out / "fixed-3" / "checkpoints").glob("*/manifest.json"))


def test_experiment_runs_its_cells_on_the_machines(lab: Laboratory) -> None:
    file, out = lab.folder / "question.toml", lab.folder / "runs" / "question"
    file.write_text(QUESTION)
    done = lab.kofn("experiment", str(file), "--lab", str(lab.file()), "--out", str(out))
    assert done.returncode == 0, done.stderr[-3000:]
    assert lab.leftovers() == {}
    records = [json.loads(path.read_text()) for path in out.rglob("run.json")]
    assert len(records) == 4 and all(len(record["machines"]) == 4 for record in records)


def test_codec_of_the_user_is_sent(lab: Laboratory) -> None:
    folder = lab.folder / "mine"
    folder.mkdir()
    shutil.copy(ROOT / "examples" / "codecs" / "narrow.py", folder / "own_codecs.py")
    job = written(lab, "plugin")
    job.rename(folder / "plugin.toml")
    assert (
        ran(lab, "plugin", str(folder / "plugin.toml"), "--set", "compress.codec=own_codecs:Narrow")["iterations"] == 40
    )


def test_run_continues_on_the_machines_after_the_runner_was_killed(lab: Laboratory) -> None:
    out, job = lab.folder / "runs" / "killed", written(lab, "killed", trial="fixed:3", iterations=120)
    file = str(lab.file())
    checkpoints = ["--set", "run.checkpoint_every=20"]
    run = lab.begin("run", str(job), "--lab", file, "--out", str(out), "--quiet", *checkpoints)
    try:
        lab.until((out / "fixed-3" / "checkpoints" / "00000060" / "manifest.json").exists, "a checkpoint", run)
    finally:
        run.kill()
        run.wait()
    assert lab.leftovers() == {}
    done = lab.kofn("run", "--resume", str(out), "--lab", file)
    assert done.returncode == 1 and "kofn run:" not in done.stderr, done.stderr
    (trial,) = json.loads((out / "summary.json").read_text())["trials"]
    assert (trial["iterations"], trial["identity_error"], trial["conservation_error"]) == (120, None, None)

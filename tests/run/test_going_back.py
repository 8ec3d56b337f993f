"""A run's folder that goes back to a checkpoint, and what cannot be resumed."""

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from click.testing import CliRunner

from kofn.run.resume import go_back
from kofn.run.runner import certificates, command
from kofn_common.config.dump import to_toml
from kofn_common.config.run import RunSection
from kofn_common.config.schema import Config
from kofn_common.results.folder import RunFolder, TrialFolder
from kofn_host.checkpoint.folder import Manifest
from kofn_host.training import CheckpointFolder


@pytest.fixture
def folder(tmp_path: Path) -> RunFolder:
    """Return a run of two trials of which the first one has ended."""
    config = Config(run=RunSection(trials=("fixed:2", "all"), checkpoint_every=10))
    found = RunFolder.create(tmp_path / "run", config.run.trials)
    found.write_effective([config])
    found.write_record([config], driver="netns")
    found.update_record(finished=1)
    return found


def written(path: Path, *lines: dict[str, Any], torn: bytes = b"") -> Path:
    path.write_bytes(b"".join(json.dumps(line).encode() + b"\n" for line in lines) + torn)
    return path


def read(path: Path) -> list[Any]:
    return [json.loads(line) for line in path.read_bytes().splitlines()]


def line(iteration: int, time: float) -> dict[str, Any]:
    return {"iteration": iteration, "time": time, "computed": True}


def cut_off(entry: TrialFolder, missing: tuple[int, ...] = ()) -> None:
    """Write what a trial with a checkpoint of iteration 10 has left when it was killed in iteration 12."""
    checkpoints = CheckpointFolder(entry.checkpoints)
    checkpoints.write(20, "ledger-0", {})
    checkpoints.complete(
        Manifest(iteration=10, workers=2, files={"replica-0": checkpoints.write(10, "replica-0", {})}, missing=missing)
    )
    written(entry.metrics(0), line(9, 1.0), line(10, 2.0), line(11, 3.0), line(12, 4.0), torn=b'{"iteration": 13, \0\0')
    written(entry.metrics(1), line(9, 1.1), line(10, 2.1), line(11, 3.1), {"summary": {"reason": "target"}})
    for path in (entry.status, entry.samples, entry.decisions):
        written(path, {"time": 2.1}, {"time": 2.2})
    events = [{"time": 1.5, "iteration": at, "action": "kill", "name": f"worker-{at}", "missed": ""} for at in (9, 11)]
    written(entry.events, *events)
    for left in (entry.sums(1), entry.metrics(0).with_suffix(".ledger")):
        left.write_bytes(b"old")


def test_files_go_back_to_the_checkpoint(folder: RunFolder) -> None:
    entry = folder.trials[1][0]
    cut_off(entry)
    resumed = go_back(entry)
    assert (resumed.iteration, resumed.again, resumed.lost) == (10, 3, ())
    assert [event.name for event in resumed.done] == ["worker-9"]
    assert [each["iteration"] for rank in range(2) for each in read(entry.metrics(rank))] == [9, 10, 9, 10]
    for path in (entry.status, entry.samples, entry.decisions):
        assert read(path) == [{"time": 2.1}]
    assert not entry.sums(1).exists() and not entry.metrics(0).with_suffix(".ledger").exists()
    assert [path.name for path in entry.checkpoints.iterdir()] == ["00000010"]
    assert resumed.words == "3 iterations of workers computed again"


def test_pending_gradients_of_a_worker_that_had_begun_and_is_missing_are_lost(folder: RunFolder) -> None:
    entry = folder.trials[1][0]
    cut_off(entry, missing=(1, 3))
    resumed = go_back(entry)
    assert resumed.lost == (1,)
    assert resumed.words == "3 iterations of workers computed again; pending gradients of worker 1 lost"


def test_trial_without_a_checkpoint_begins_again(folder: RunFolder) -> None:
    entry = folder.trials[1][0]
    written(entry.metrics(0), line(1, 1.0), line(2, 2.0))
    resumed = go_back(entry)
    assert (resumed.iteration, resumed.again, read(entry.metrics(0))) == (0, 2, [])


@pytest.mark.parametrize(
    ("arguments", "fault"),
    [
        (["mine.toml"], "--resume must be alone, or with --lab, --slurm or --set job.workers=N"),
        (["--trial", "all"], "--resume must be alone, or with --lab, --slurm or --set job.workers=N"),
        (
            ["--set", "run.seed=2"],
            "--resume takes --set job.workers=N, before the first trial has ended, got run.seed=2",
        ),
        (["--set", "job.workers=2"], "before the first trial has ended, got job.workers=2 after a trial has ended"),
    ],
)
def test_resumption_takes_its_configuration_from_the_folder(
    folder: RunFolder, arguments: list[str], fault: str
) -> None:
    result = CliRunner().invoke(command, ["--resume", str(folder.path), *arguments])
    assert result.exit_code == 2
    assert fault in " ".join(result.output.split())


def test_ended_run_is_not_resumed(folder: RunFolder) -> None:
    folder.update_record(finished=2)
    result = CliRunner().invoke(command, ["--resume", str(folder.path)])
    assert result.exit_code == 2
    assert "has ended: kofn report shows its results" in " ".join(result.output.split())


def test_folder_without_a_run_is_not_resumed(tmp_path: Path) -> None:
    (tmp_path / "config.toml").write_text(to_toml(Config()))
    result = CliRunner().invoke(command, ["--resume", str(tmp_path)])
    assert result.exit_code == 2
    assert "is no run's folder" in " ".join(result.output.split())


def test_damaged_lines_and_files_of_others_change_nothing(folder: RunFolder) -> None:
    entry = folder.jobs[0].trials[1]

    def gone_back(*lines: bytes) -> tuple[Any, dict[str, bytes]]:
        cut_off(entry)
        files = [entry.metrics(0), entry.metrics(1), entry.status, entry.samples, entry.decisions, entry.events]
        for path in files:
            path.write_bytes(path.read_bytes() + b"".join(line + b"\n" for line in lines))
        return go_back(entry), {path.name: path.read_bytes() for path in files}

    sound = gone_back()
    (entry.path / "worker-0 (copy).jsonl").write_text("{}")
    assert gone_back(b"\0" * 40, b"{}", b"[]", b'{"time": "2.0"}', b'{"name": "\xff"}', b'{"iteration": 9}') == sound


def test_certificates_that_a_power_cut_has_left_are_replaced(folder: RunFolder) -> None:
    plan: Any = SimpleNamespace(shared=Config(), configs=[Config()])
    for left in ("old.key", "older.key"):
        folder.certificates.mkdir()
        (folder.certificates / left).write_text("old")
        with certificates(plan, folder) as found:
            assert found == folder.certificates and not (folder.certificates / left).exists()

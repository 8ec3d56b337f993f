"""A machine of a laboratory sends the files that its processes write, each byte once."""

import base64
from pathlib import Path
from typing import Any

import pytest
from errors import NetworkError
from machine import CHUNK_BYTES, RunFiles


class Runner:
    """The runner's copy of the files, made of the events."""

    def __init__(self) -> None:
        self.files: dict[str, bytes] = {}
        self.whole: list[str] = []

    def take(self, events: list[dict[str, Any]]) -> None:
        for event in events:
            if event["event"] == "gone":
                del self.files[event["path"]]
                continue
            if event["whole"] and event["offset"] == 0:
                self.whole.append(event["path"])
                self.files[event["path"]] = b""
            assert event["offset"] == len(self.files[event["path"]])
            self.files[event["path"]] += base64.b64decode(event["data"])


@pytest.fixture
def files(tmp_path: Path) -> RunFiles:
    return RunFiles(tmp_path / "cache")


def test_file_that_grows_is_sent_once_and_then_its_additions(files: RunFiles) -> None:
    runner, path = Runner(), files.path / "worker-0.jsonl"
    for text in ("", "one\n", "two\n", "x" * 3 * CHUNK_BYTES, ""):
        with path.open("a") as file:
            file.write(text)
        runner.take(list(files.news()))
        assert runner.files["worker-0.jsonl"] == path.read_bytes()
    assert runner.whole == ["worker-0.jsonl"], "a reader of the copy would lose a file that is replaced"
    path.write_text("new\n")  # shorter, the same file
    runner.take(list(files.news()))
    assert runner.files["worker-0.jsonl"] == b"new\n" and list(files.news()) == []


def test_other_files_are_sent_whole_and_removals_are_told(files: RunFiles) -> None:
    runner, small, large = Runner(), files.path / "switch.counts", files.path / "worker-0.npz"
    small.write_bytes(b"1")
    large.write_bytes(b"x" * 2 * CHUNK_BYTES)
    (files.path / "worker-0.ledger").write_bytes(b"not sent")
    runner.take(list(files.news()))
    small.write_bytes(b"2")
    large.unlink()
    runner.take(list(files.news()))
    assert runner.files == {"switch.counts": b"2"}


def test_file_that_was_put_is_not_sent_back_but_what_is_appended_is(files: RunFiles) -> None:
    files.put("all/worker-0.jsonl", b"on", 0o600, more=True)
    files.put("all/worker-0.jsonl", b"e\n", 0o600, more=False)
    assert list(files.news()) == []
    with (files.path / "all" / "worker-0.jsonl").open("a") as file:
        file.write("two\n")
    (event,) = files.news()
    assert (event["whole"], event["offset"], base64.b64decode(event["data"])) == (False, 4, b"two\n")
    with pytest.raises(NetworkError, match="must stay in the run's folder"):
        files.put("../outside", b"", 0o600, more=False)


def test_folder_of_a_dead_run_is_removed_and_that_of_a_living_one_stays(tmp_path: Path) -> None:
    living, dead = RunFiles(tmp_path), tmp_path / "run-dead"
    dead.mkdir()
    other = RunFiles(tmp_path)
    assert living.path.exists() and other.path.exists() and not dead.exists()
    for files in (living, other):
        files.remove()
    assert list(tmp_path.iterdir()) == []

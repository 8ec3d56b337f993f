"""The files of checkpoints: whole or not there, damage found, old ones removed."""

import errno
import os
import random
from pathlib import Path

import numpy as np
import pytest

from kofn_host.arrays import Arrays
from kofn_host.checkpoint.folder import CheckpointFolder, Manifest
from kofn_host.errors import CheckpointError


def arrays(iteration: int) -> Arrays:
    parameters = np.arange(5, dtype=np.float32) + iteration
    return {"parameters": parameters, "empty": np.zeros((0, 3), np.int64), "shifts": np.full(2, iteration)}


def save(folder: CheckpointFolder, iteration: int, **more: object) -> None:
    files = {name: folder.write(iteration, name, arrays(iteration)) for name in ("replica-0", "ledger-0", "ledger-1")}
    folder.complete(Manifest(iteration=iteration, workers=2, files=files, control=b"state", **more))  # type: ignore[arg-type]


def test_checkpoint_is_read_as_it_was_written(tmp_path: Path) -> None:
    save(CheckpointFolder(tmp_path / "new"), 40, missing=(2,), configuration={"model": {"hidden": [64]}})
    found = CheckpointFolder(tmp_path / "new").latest()
    assert found is not None
    assert (found.iteration, found.manifest.ranks, found.manifest.control) == (40, [0, 1], b"state")
    assert (found.manifest.missing, found.manifest.configuration) == ((2,), {"model": {"hidden": [64]}})
    replica = found.replica()
    assert replica.iteration == 40
    for name, array in arrays(40).items():
        for other in (replica.arrays[name], found.ledger(1)[name]):
            assert other.dtype == array.dtype
            np.testing.assert_array_equal(other, array)
    assert found.ledger(2) == {}


def test_folder_without_a_whole_checkpoint_has_none(tmp_path: Path) -> None:
    folder = CheckpointFolder(tmp_path / "checkpoints")
    assert folder.latest() is None
    folder.write(20, "ledger-0", arrays(20))
    assert folder.latest() is None


def test_newest_checkpoints_stay_with_that_of_the_resumption(tmp_path: Path) -> None:
    folder = CheckpointFolder(tmp_path, keep=2)
    save(folder, 20)
    folder.resumed = 20
    for iteration in (40, 60, 80):
        folder.write(iteration - 10, "ledger-0", arrays(iteration))  # never completed
        save(folder, iteration)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["00000020", "00000060", "00000080"]


def test_completion_removes_newer_checkpoints_of_another_future(tmp_path: Path) -> None:
    folder = CheckpointFolder(tmp_path)
    for iteration in (20, 40, 30):
        save(folder, iteration)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["00000020", "00000030"]


def test_going_back_removes_what_is_newer_or_incomplete(tmp_path: Path) -> None:
    folder = CheckpointFolder(tmp_path, keep=3)
    for iteration in (20, 40, 60):
        save(folder, iteration)
    folder.write(30, "ledger-0", arrays(30))
    folder.go_back(40)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["00000020", "00000040"]


@pytest.mark.parametrize("seed", range(40))
def test_one_flipped_bit_is_found_and_the_checkpoint_before_is_taken(
    tmp_path: Path, seed: int, caplog: pytest.LogCaptureFixture
) -> None:
    save(CheckpointFolder(tmp_path), 20)
    save(CheckpointFolder(tmp_path), 40)
    chosen = random.Random(seed)
    path = chosen.choice(sorted((tmp_path / "00000040").iterdir()))
    data = bytearray(path.read_bytes())
    data[chosen.randrange(len(data))] ^= 1 << chosen.randrange(8)
    path.write_bytes(data)
    found = CheckpointFolder(tmp_path).latest()
    assert found is not None and found.iteration == 20
    assert "00000040 is damaged" in caplog.text and "taking the checkpoint before it" in caplog.text


def test_every_byte_of_a_manifest_is_checked(tmp_path: Path) -> None:
    """A flipped highest bit makes the file no UTF-8."""
    save(CheckpointFolder(tmp_path), 40)
    path = tmp_path / "00000040" / "manifest.json"
    data = path.read_bytes()
    for place in range(len(data)):
        for bit in (0x80, 0x04):
            path.write_bytes(data[:place] + bytes([data[place] ^ bit]) + data[place + 1 :])
            assert CheckpointFolder(tmp_path).latest() is None


def test_other_entries_of_the_folder_are_left_alone(tmp_path: Path) -> None:
    folder = CheckpointFolder(tmp_path)
    save(folder, 20)
    (tmp_path / "lost+found").mkdir()
    for name in (".nfs0000000000a1b2c3", "00000099", "notes"):
        (tmp_path / name).write_text("")
    folder.go_back(0)
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        *(".nfs0000000000a1b2c3", "00000099", "lost+found", "notes")
    ]


@pytest.mark.parametrize("name", ["manifest.json", "ledger-1"])
def test_missing_or_torn_file_is_damage(tmp_path: Path, name: str) -> None:
    for damage in ("missing", "torn"):
        folder = CheckpointFolder(tmp_path / damage)
        save(folder, 20)
        path = tmp_path / damage / "00000020" / name
        if damage == "missing":
            path.unlink()
        else:
            os.truncate(path, path.stat().st_size // 2)
        with pytest.raises(CheckpointError, match="00000020 is damaged"):
            folder.at(20)


def test_file_that_cannot_be_written_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(opened: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    folder = CheckpointFolder(tmp_path)
    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space left"):
        folder.write(20, "ledger-0", arrays(20))
    assert not any((tmp_path / "00000020.part").iterdir())
    folder.give_up(20)
    assert not any(tmp_path.iterdir())

"""Recorded gradients: the order of their files, and folders that are refused."""

from pathlib import Path

import numpy as np
import pytest

from kofn_common.config.errors import ConfigError
from kofn_common.config.model import ModelSection
from kofn_common.config.schema import Config
from kofn_host.errors import ReplayError
from kofn_host.workload.evaluation import Evaluator
from kofn_host.workload.workload import load_workload, workload_class


def recorded(folder: Path, *arrays: np.ndarray) -> Config:
    for number, array in enumerate(arrays):
        np.save(folder / f"{number}.npy", array)
    (folder / "notes.txt").write_text("not a gradient")
    return Config(model=ModelSection(replay=str(folder)))


def test_every_worker_takes_another_file_each_time(tmp_path: Path) -> None:
    arrays = [np.arange(6, dtype=np.float32) + number for number in range(3)]
    config = recorded(tmp_path, arrays[0], arrays[1].reshape(2, 3), np.asfortranarray(arrays[2].reshape(3, 2)))
    for rank in range(4):
        workload = load_workload(config, rank)
        assert workload.parameters.tolist() == [0.0] * 6
        for iteration in range(1, 6):
            loss, gradient = workload.gradient(iteration)
            assert loss is None
            assert type(gradient) is np.ndarray
            assert gradient.dtype == np.float32
            assert gradient.tolist() == arrays[(iteration - 1 + rank) % 3].tolist()


def test_parameters_are_compared_but_not_judged(tmp_path: Path) -> None:
    workload = load_workload(recorded(tmp_path, np.ones(4, np.float32)), 0)
    evaluator = Evaluator(workload)
    first = evaluator.look(1)
    workload.parameters[:] = 1
    second = evaluator.look(2)
    assert (first.accuracy, first.owned_accuracy, evaluator.value(2)) == (None, None, None)
    assert first.params != second.params


@pytest.mark.parametrize(
    ("arrays", "words"),
    [
        ((), "must be a folder with one or more .npy files"),
        ((np.ones(3, np.float32), np.ones(4, np.float32)), r"must have 3 elements, as 0.npy has, got 4 in .*1.npy"),
        ((np.ones(3),), "0.npy must have one or more elements of float32, got 3 of float64"),
        ((np.ones(0, np.float32),), "0.npy must have one or more elements of float32, got 0 of float32"),
        ((np.array([None]),), "0.npy cannot be read as a NumPy array"),
    ],
)
def test_invalid_recording_is_refused(tmp_path: Path, arrays: tuple[np.ndarray, ...], words: str) -> None:
    with pytest.raises(ReplayError, match=words):
        load_workload(recorded(tmp_path, *arrays), 0)


def test_unreadable_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "0.npy").write_bytes(b"\x93NUMPY and then nothing")
    with pytest.raises(ReplayError, match=r"0\.npy cannot be read"):
        load_workload(recorded(tmp_path), 0)


def test_replay_needs_a_recording() -> None:
    for model, words in (
        (ModelSection(workload="replay"), "model.replay must be given with model.workload = 'replay': a folder"),
        (ModelSection(replay="nowhere"), "model.replay: nowhere must be a folder with one or more .npy files"),
    ):
        with pytest.raises(ConfigError, match=words):
            workload_class(Config(model=model)).check(Config(model=model))
    with pytest.raises(ConfigError, match=r"model.replay and model.workload = 'digits' must not both be given"):
        Config(model=ModelSection(workload="digits", replay="mine")).check()

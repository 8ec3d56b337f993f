"""A process finds its place in a job by its environment, or says what is missing."""

from pathlib import Path

import pytest

from kofn_host.errors import PlaceError
from kofn_host.worker import GroupJob, JobPlace

ENVIRONMENT = {
    "KOFN_CONFIG": "job.toml",
    "KOFN_RANK": "1",
    "KOFN_CONTROLLER": "172.30.255.1:50052",
    "KOFN_ADDRESS": "172.30.255.3",
    "KOFN_METRICS": "worker-1.jsonl",
}


@pytest.mark.parametrize("name", ENVIRONMENT)
def test_missing_variable_is_named(name: str) -> None:
    with pytest.raises(PlaceError, match=f"{name} must be .*, got nothing"):
        JobPlace.find((0, 1), {**ENVIRONMENT, name: ""})


def test_ranks_that_differ_or_are_no_numbers_are_refused() -> None:
    assert JobPlace.find((0, 1), ENVIRONMENT).rank == JobPlace.find((1, 3), ENVIRONMENT).rank == 1
    with pytest.raises(PlaceError, match="KOFN_RANK must be the process group's rank, 2, got 1"):
        JobPlace.find((2, 3), ENVIRONMENT)
    with pytest.raises(PlaceError, match="KOFN_RANK must be a number from 0 on, got 'one'"):
        JobPlace.find((0, 1), {**ENVIRONMENT, "KOFN_RANK": "one"})


def test_process_group_of_another_size_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "job.toml").write_text("[job]\nworkers = 3\n")
    for name, value in {**ENVIRONMENT, "KOFN_CONFIG": str(tmp_path / "job.toml")}.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(PlaceError, match=r"WORLD_SIZE must be job\.workers, 3, got 2"):
        GroupJob(1, 2)

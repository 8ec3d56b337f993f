"""A run on a loaded machine says so."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from kofn.run import machine_load


@pytest.fixture
def loadavg(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    path = tmp_path / "loadavg"
    monkeypatch.setattr(machine_load, "LOADAVG", path)
    monkeypatch.setattr(machine_load, "EVERY_S", 0.0)
    yield path


def test_this_process_does_not_count(loadavg: Path) -> None:
    loadavg.write_text("3.20 2.10 1.00 1/812 12345\n")
    assert machine_load.load_note(2) == ""


def test_processes_that_use_the_cores_are_named(loadavg: Path) -> None:
    loadavg.write_text("0.00 0.00 0.00 4/812 12345\n")
    assert machine_load.load_note(2) == (
        "the machine was loaded when the run began: 3.0 tasks of other processes were runnable on 2 cores. Its times"
        " are longer than on an idle machine"
    )
    assert machine_load.load_note(16) == ""


@pytest.mark.parametrize("text", [None, "", "0.00 0.00 0.00"])
def test_unknown_load_has_no_remark(loadavg: Path, text: str | None) -> None:
    if text is not None:
        loadavg.write_text(text)
    assert machine_load.load_note(2) == ""

"""A run's data frames in other programs' file formats, read with these programs' own means."""

import struct
from collections import defaultdict
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import pandas as pd
import pytest
from click.testing import CliRunner
from tensorboardX.proto.event_pb2 import Event

from kofn.cli.main import main
from kofn.experiments.reader import read
from kofn.report.frames import TABLES
from kofn_common.config.schema import Config
from kofn_common.results.folder import RunFolder
from tests.run.fake_run import append, two_trials
from tests.test_extras import command


def export(folder: Path, *words: str) -> "tuple[int, str]":
    result = CliRunner().invoke(main, ["export", str(folder), *words])
    return result.exit_code, result.output


def crc32c(data: bytes) -> int:
    """Return the checksum by Castagnoli's polynomial, bit by bit."""
    crc = 0xFFFFFFFF
    for byte in data:
        crc ^= byte
        for _ in range(8):
            crc = crc >> 1 ^ 0x82F63B78 * (crc & 1)
    return crc ^ 0xFFFFFFFF


def records(path: Path) -> Iterator[bytes]:
    """Yield the records of a TFRecord file: length, its checksum, data, their checksum."""

    def masked(data: bytes) -> int:
        crc = crc32c(data)
        return ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF

    text = path.read_bytes()
    while text:
        (length,), (check,) = struct.unpack("<Q", text[:8]), struct.unpack("<I", text[8:12])
        assert check == masked(text[:8])
        data = text[12 : 12 + length]
        assert struct.unpack("<I", text[12 + length : 16 + length]) == (masked(data),)
        yield data
        text = text[16 + length :]


def test_csv_has_a_file_for_each_frame(tmp_path: Path) -> None:
    folder = two_trials(tmp_path / "run").path
    code, output = export(folder, "--to", "csv")
    assert (code, output.split()) == (0, [str(folder / "csv" / f"{name}.csv") for name in TABLES])
    metrics = pd.read_csv(folder / "csv" / "metrics.csv")
    assert list(metrics) == [one.name for one in TABLES["metrics"].columns()]
    assert metrics.loss.tolist() == pytest.approx(read(folder).metrics.loss.tolist(), rel=1e-15)


@pytest.mark.skipif(find_spec("pyarrow") is None, reason="pyarrow is not installed: pip install 'kofn[parquet]'")
def test_parquet_keeps_types_and_missing_values(tmp_path: Path) -> None:
    folder = two_trials(tmp_path / "run").path
    assert export(folder, "--to", "parquet", "--out", str(tmp_path / "tables"))[0] == 0
    for name in TABLES:
        pd.testing.assert_frame_equal(
            pd.read_parquet(tmp_path / "tables" / f"{name}.parquet"), getattr(read(folder), name)
        )


def test_tensorboard_needs_an_iteration(tmp_path: Path) -> None:
    folder = RunFolder.create(tmp_path / "run", ["all"])
    folder.write_record([Config()], driver="auto")
    folder.write_effective([Config()])
    code, output = export(folder.path, "--to", "tensorboard")
    assert (code, "must have an iteration that a worker has finished, got none" in output) == (2, True), output


@pytest.mark.slow
def test_tensorboard_has_a_curve_for_each_number(tmp_path: Path) -> None:
    made = two_trials(tmp_path / "run")
    append(made, 3, {"iteration": 7, "time": 3.5, "logged": {"top1": 0.5, "loss": None}})
    folder = made.path
    assert export(folder, "--to", "tensorboard")[0] == 0
    (file,) = (folder / "tensorboard" / "throughput" / "worker-3").iterdir()
    curves = defaultdict[str, list[tuple[int, float, float]]](list)
    for data in records(file):
        event = Event.FromString(data)
        for value in event.summary.value:
            curves[value.tag].append((event.step, value.simple_value, event.wall_time))
    metrics = read(folder).metrics
    mine = metrics[(metrics.trial == "throughput") & (metrics.worker == 3)]
    steps, losses, times = zip(*curves["loss"], strict=True)
    assert list(steps) == mine.iteration.tolist()
    assert list(losses) == pytest.approx(mine.loss.tolist(), rel=1e-6), "TensorBoard keeps float32"
    assert list(times) == pytest.approx(mine.time.tolist())
    assert {"k", "late", "accuracy", "iteration_s"} <= set(curves)
    assert not {"time", "started"} & set(curves), "Unix time is no curve"
    assert curves["logged/top1"] == [(7, 0.5, 3.5)]
    assert not {"width", "params", "worker"} & set(curves), "columns without numbers must have no curve"


def test_files_are_csv_without_a_format(tmp_path: Path) -> None:
    folder = two_trials(tmp_path / "run").path
    code, _ = export(folder)
    assert code == 0 and (folder / "csv" / "metrics.csv").exists()


def test_nothing_is_overwritten(tmp_path: Path) -> None:
    folder = two_trials(tmp_path / "run").path
    assert export(folder, "--to", "csv", "--out", str(folder)) == (
        2,
        f"kofn export: {folder} must be empty, because export overwrites nothing: choose another --out\n",
    )


def test_folder_that_is_no_run_is_refused(tmp_path: Path) -> None:
    code, output = export(tmp_path, "--to", "csv")
    assert code == 2
    assert output.startswith(f"kofn export: {tmp_path} must be the folder of a run or an experiment")


@pytest.mark.slow
@pytest.mark.parametrize(("to", "package"), [("parquet", "pyarrow"), ("tensorboard", "tensorboardX")])
def test_missing_extra_is_named_before_anything_is_written(tmp_path: Path, to: str, package: str) -> None:
    folder = two_trials(tmp_path / "run").path
    run = command("export", folder, "--to", to)
    assert (run.returncode, run.stderr) == (1, f"kofn: {package} is not installed: pip install 'kofn[{to}]'\n")
    assert not (folder / to).exists()

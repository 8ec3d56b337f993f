"""`kofn certs` as a person uses it."""

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from kofn.cli.main import main


def certs(*arguments: str | Path) -> Result:
    return CliRunner().invoke(main, ["certs", *map(str, arguments)])


def test_the_default_is_one_job_of_four(tmp_path: Path) -> None:
    result = certs(tmp_path / "certs")
    assert result.exit_code == 0, result.output
    assert "14 files, valid for 30 days" in result.output
    assert "job 1: a token and 4 workers" in result.output
    assert (tmp_path / "certs" / "job-1-worker-3.key").exists()


def test_json_lists_the_files(tmp_path: Path) -> None:
    result = certs(tmp_path / "certs", "--job", "1:2", "--job", "7:1", "--json")
    answer = json.loads(result.output)
    assert answer["jobs"] == {"1": 2, "7": 1}
    assert answer["files"] == sorted(path.name for path in (tmp_path / "certs").iterdir())
    assert "job-7-worker-0.pem" in answer["files"]


def test_a_folder_in_use_is_refused(tmp_path: Path) -> None:
    certs(tmp_path / "certs")
    before = (tmp_path / "certs" / "ca.pem").read_bytes()
    result = certs(tmp_path / "certs")
    assert result.exit_code == 2
    assert result.output == (
        f"kofn certs: {tmp_path / 'certs'} is not empty: a folder that does not exist, or an empty one, is needed\n"
    )
    assert (tmp_path / "certs" / "ca.pem").read_bytes() == before


@pytest.mark.parametrize(
    ("value", "words"),
    [
        ("3", "'3': two numbers are expected"),
        ("1:x", "'1:x': two numbers are expected"),
        ("0:4", "'0:4': jobs 1 to 127 with 1 to 64 workers are allowed"),
        ("1:65", "'1:65': jobs 1 to 127 with 1 to 64 workers are allowed"),
        ("2:3", "'2:3': job 2 is there already"),
    ],
)
def test_what_is_allowed_is_said(tmp_path: Path, value: str, words: str) -> None:
    result = certs(tmp_path / "certs", "--job", "2:1", "--job", value)
    assert result.exit_code == 2
    assert words in result.output
    assert not (tmp_path / "certs").exists()

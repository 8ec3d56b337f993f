"""`kofn certs` on the command line."""

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from kofn.cli.main import main


def certs(*arguments: str | Path) -> Result:
    return CliRunner().invoke(main, ["certs", *map(str, arguments)])


def test_default_is_one_job_of_four_workers(tmp_path: Path) -> None:
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


def test_folder_in_use_is_refused(tmp_path: Path) -> None:
    certs(tmp_path / "certs")
    before = (tmp_path / "certs" / "ca.pem").read_bytes()
    result = certs(tmp_path / "certs")
    assert result.exit_code == 2
    assert result.output == (f"kofn certs: {tmp_path / 'certs'} must be empty or not exist, got a folder with files\n")
    assert (tmp_path / "certs" / "ca.pem").read_bytes() == before


@pytest.mark.parametrize(
    ("value", "words"),
    [
        ("3", "must be two numbers, 1:4 for the four workers of job 1, got '3'"),
        ("1:x", "must be two numbers, 1:4 for the four workers of job 1, got '1:x'"),
        ("0:4", "must be a job of 1 to 127 and 1 to 1024 workers, got '0:4'"),
        ("1:1025", "must be a job of 1 to 127 and 1 to 1024 workers, got '1:1025'"),
        ("2:3", "must name each job once, got '2:3' after another value for job 2"),
    ],
)
def test_invalid_job_is_refused_with_the_valid_form(tmp_path: Path, value: str, words: str) -> None:
    result = certs(tmp_path / "certs", "--job", "2:1", "--job", value)
    assert result.exit_code == 2
    assert words in result.output
    assert not (tmp_path / "certs").exists()


def test_machine_gets_exactly_the_files_it_needs(tmp_path: Path) -> None:
    folder = tmp_path / "certs"
    wanted = ("s=switch,controller", "a=0,2-3", "b=2:0,1", "desk=operator")
    options = [part for each in wanted for part in ("--machine", each)]
    result = certs(folder, "--job", "1:4", "--job", "2:1", "--p4runtime", *options)
    assert result.exit_code == 0, result.output
    found = {
        machine.name: sorted(str(path.relative_to(machine)) for path in machine.rglob("*") if path.is_file())
        for machine in (folder / "machines").iterdir()
    }
    pairs = {name: [f"{name}.key", f"{name}.pem"] for name in ("client", "server", "controller", "operator")}
    workers = {rank: [f"job-1-worker-{rank}.{end}" for end in ("key", "pem")] for rank in range(4)}
    tokens = ["job-1.token", "job-2.token"]
    programmed = [f"p4runtime/{name}" for name in ["ca.pem", *pairs["client"], *pairs["server"]]]
    assert found == {
        "s": sorted(["ca.pem", *tokens, *pairs["controller"], *programmed]),
        "a": sorted(["ca.pem", "job-1.token", *workers[0], *workers[2], *workers[3]]),
        "b": sorted(["ca.pem", *tokens, *workers[1], "job-2-worker-0.key", "job-2-worker-0.pem"]),
        "desk": sorted(["ca.pem", *tokens, *pairs["operator"]]),
    }
    assert (folder / "machines" / "a" / "job-1-worker-0.key").stat().st_mode & 0o077 == 0


@pytest.mark.parametrize(
    ("machine", "words"),
    [
        ("a", "NAME=WHAT"),
        ("a=4", "workers must be among 1:0-3"),
        ("a=boss", "'boss'"),
        ("a=switch", "--p4runtime only"),
    ],
)
def test_impossible_machine_is_refused(tmp_path: Path, machine: str, words: str) -> None:
    result = certs(tmp_path / "certs", "--machine", machine)
    assert result.exit_code == 2 and words in result.output
    assert not (tmp_path / "certs").exists()

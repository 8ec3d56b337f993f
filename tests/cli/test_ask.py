"""The certificates and job that a command uses with a controller, and its errors."""

import asyncio
import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from kofn.cli.main import main
from kofn.run.state import hold
from kofn_common.config.job import JobSection
from kofn_common.rpc.certificates import make_certificates
from kofn_common.rpc.security import CONTROLLER, Credentials
from tests.controller.harness import serving, setup


@pytest.fixture
def certs(tmp_path: Path) -> Path:
    folder = tmp_path / "certs"
    make_certificates(folder, {1: 2, 2: 1})
    return folder


def ask(folder: Path | None, state: Path, *commands: list[str], **environment: str) -> list[Result]:
    """Run commands against a controller of two jobs with these certificates (None: plaintext), each in a thread."""
    everywhere = {"KOFN_STATE_DIR": str(state), "COLUMNS": "140", **environment}

    async def run() -> list[Result]:
        sessions = [setup(JobSection(id=1, workers=2), hosts=3), setup(JobSection(id=2, workers=1), hosts=3)]
        async with serving(*sessions, credentials=Credentials.load(folder, CONTROLLER, [1, 2])) as running:
            env = {**everywhere, "KOFN_CONTROLLER": running.address}
            return [await asyncio.to_thread(CliRunner().invoke, main, command, env=env) for command in commands]

    return asyncio.run(run())


EVERY = [["status"], ["k"], ["lambda"], ["set-k", "1"]]


@pytest.mark.parametrize("job", [[], ["--job", "1"], ["--job", "2"]])
def test_every_command_takes_certificates_and_a_job(certs: Path, tmp_path: Path, job: list[str]) -> None:
    commands = [[*command, "--json", "--certs", str(certs), *job] for command in EVERY]
    for result in ask(certs, tmp_path, *commands):
        assert result.exit_code == 0, result.output
    (result,) = ask(certs, tmp_path, ["status", "--json", *job], KOFN_CERTS=str(certs))
    answer = json.loads(result.output)
    assert (answer["job"], answer["jobs"]) == (int((job or ["1"])[-1]), [1, 2])


def test_certificates_of_the_active_run_are_the_default(
    certs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KOFN_STATE_DIR", str(tmp_path / "state"))
    with hold(certs.parent):
        (result,) = ask(certs, tmp_path / "state", ["status"])
    assert result.exit_code == 0, result.output
    (result,) = ask(certs, tmp_path / "state", ["status"])
    assert result.exit_code == 2


def test_unknown_job_is_refused_with_the_known_ones(certs: Path, tmp_path: Path) -> None:
    (result,) = ask(None, tmp_path, ["status", "--job", "9"])
    assert result.exit_code == 2
    assert result.output.startswith("kofn: job 9: this controller runs jobs 1, 2")
    (result,) = ask(certs, tmp_path, ["status", "--job", "9", "--certs", str(certs)])
    assert f"kofn: job 9: {certs} has tokens of jobs 1, 2" in result.output


def unfit(certs: Path, name: str) -> Path:
    """Return a folder that does not fit the controller's."""
    other = certs.with_name("other")
    if name == "another authority":
        make_certificates(other, {1: 2, 2: 1})
    else:
        shutil.copytree(certs, other)
        (other / "job-1.token").write_text("0" * 32 + "\n")
    return other


@pytest.mark.parametrize(
    ("served", "shown", "words"),
    [
        (True, None, "answers, but it wants a certificate, none is used here (certificates: none): --certs DIR"),
        (True, "another authority", "answers, but its certificate is of another authority than the one here"),
        (True, "another token", "refuses the token (not the token of a job that is served here; certificates: "),
        (False, "another authority", "answers, but it speaks without TLS, certificates are used here"),
    ],
)
def test_unsuitable_certificates_are_named(
    certs: Path, tmp_path: Path, served: bool, shown: str | None, words: str
) -> None:
    options = ["--certs", str(unfit(certs, shown))] if shown else []
    for result in ask(certs if served else None, tmp_path, *([*command, *options] for command in EVERY)):
        assert result.exit_code == 2
        assert words in result.output
        assert result.output.count("\n") == 1


def test_absent_controller_is_reported_with_certificates_too(certs: Path, tmp_path: Path) -> None:
    environment = {"KOFN_CONTROLLER": "127.0.0.1:1", "KOFN_STATE_DIR": str(tmp_path)}
    result = CliRunner().invoke(main, ["status", "--certs", str(certs)], env=environment)
    assert result.exit_code == 3
    assert result.output == "kofn: no controller answers at 127.0.0.1:1: `make run` or `kofn run` starts a controller\n"


@pytest.mark.parametrize("spoil", [lambda path: path.unlink(), lambda path: path.write_text("x")])
def test_unusable_folder_is_named(certs: Path, tmp_path: Path, spoil: Callable[[Path], object]) -> None:
    spoil(certs / "operator.pem")
    result = CliRunner().invoke(main, ["status", "--certs", str(certs)], env={"KOFN_STATE_DIR": str(tmp_path)})
    assert result.exit_code == 2
    assert result.output.startswith(f"kofn: {certs / 'operator.pem'}")

"""When a run has a page; errors are named before anything starts."""

import re
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner
from rich.console import Console

from kofn.cli.main import main
from kofn.run.errors import RunError
from kofn.run.plan import make_plan
from kofn.run.preconditions import check_ports
from kofn.run.runner import page_port
from kofn_common.config.errors import ConfigError
from tests.run.real_run import KOFN
from tests.web.lab import recorded

TERMINAL, PIPE = Console(force_terminal=True), Console(force_terminal=False)


@pytest.mark.parametrize(
    ("web", "port", "console", "expected"),
    [
        (None, None, TERMINAL, 0),
        (None, None, PIPE, None),
        (True, None, PIPE, 0),
        (False, None, TERMINAL, None),
        (None, 8080, PIPE, 8080),
        (True, 8080, PIPE, 8080),
    ],
)
def test_page_depends_on_option_and_terminal(
    web: bool | None, port: int | None, console: Console, expected: int | None
) -> None:
    assert page_port(web, port, console) == expected


def test_port_without_a_page_is_refused() -> None:
    with pytest.raises(ConfigError, match="--port 8080 and --no-web must not both be given"):
        page_port(False, 8080, PIPE)


def test_port_in_use_is_named() -> None:
    with socket.socket() as holder:
        holder.bind(("127.0.0.1", 0))
        holder.listen()
        port = holder.getsockname()[1]
        with pytest.raises(RunError, match=rf"TCP port {port} \(--port\) is in use by pid"):
            check_ports(make_plan().shared.network, port)


def test_watch_without_a_run_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KOFN_STATE_DIR", str(tmp_path))
    watched = CliRunner().invoke(main, ["watch", "--web"])
    assert watched.exit_code == 2
    assert "no run is going on: kofn watch --web FOLDER shows a finished run" in watched.stderr


def test_folder_that_is_no_run_is_refused(tmp_path: Path) -> None:
    watched = CliRunner().invoke(main, ["watch", "--web", str(tmp_path)])
    assert watched.exit_code == 2
    assert f"kofn watch: {tmp_path} is no run's folder" in watched.stderr


@pytest.mark.slow
def test_replay_serves_until_ctrl_c(tmp_path: Path) -> None:
    folder = recorded(tmp_path / "run", trials=1)
    command = ["env", "--default-signal=INT", sys.executable, "-c", KOFN, "watch", "--web", str(folder.path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as watch:
        assert watch.stdout is not None
        said = watch.stdout.readline()
        assert re.fullmatch(r"page: http://127\.0\.0\.1:\d+/\?token=\S{22}  \(Ctrl-C ends it\)\n", said)
        watch.send_signal(signal.SIGINT)
        assert watch.stdout.read() == ""
    assert watch.returncode == 0


def test_folder_without_web_is_refused(tmp_path: Path) -> None:
    watched = CliRunner().invoke(main, ["watch", str(tmp_path)])
    assert watched.exit_code == 2
    assert f"FOLDER {tmp_path} is for --web" in watched.stderr

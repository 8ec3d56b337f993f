"""The shell blocks of docs/tutorial/, as written and in order, with a default configuration that ends soon.

The blocks see a folder with the parts of a checkout that they use: .venv/bin, common/kofn_common/config/, examples.
`make run` runs the Makefile's command after the set-up, with the short configuration.
"""

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.run.real_run import KOFN, OWN_NETWORK

from .markdown import ROOT, Block, blocks

PAGES = ("first-run.md", "look-inside.md", "own-experiment.md")

STAYS, UNTIL_CTRL_C = "goes on until it is stopped", "until Ctrl-C"

DEADLINE_S = 60.0

MAKE = """#!/bin/bash
set -euo pipefail
recipe=$(MAKEFLAGS= ARGS= command -p make --no-print-directory -C "{root}" -n "$1" \\
    CONFIG=common/kofn_common/config/default.toml | grep '^exec \\.venv/bin/')
eval "$recipe"
"""

pytestmark = [
    pytest.mark.root,
    pytest.mark.timeout(240),
    pytest.mark.slow,
    pytest.mark.skipif(os.geteuid() != 0, reason="needs root (network namespaces)"),
]


def script(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    path.chmod(0o755)


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """Return a folder in which the tutorial's commands work, and end soon."""
    folder = tmp_path / "kofn"
    (folder / "common" / "kofn_common" / "config").mkdir(parents=True)
    text = (ROOT / "common" / "kofn_common" / "config" / "default.toml").read_text()
    short = text
    for given, instead in (
        ("target = 0.93", "target = 0.06"),
        ('["source", "progress", "all"]', '["progress"]'),
        ("alone = true", "alone = false"),
    ):
        assert given in short
        short = short.replace(given, instead)
    (folder / "common" / "kofn_common" / "config" / "default.toml").write_text(short)
    (folder / "examples").symlink_to(ROOT / "examples")
    script(folder / ".venv/bin/python", f'#!/bin/bash\nexec "{sys.executable}" "$@"\n')
    script(folder / ".venv/bin/kofn", f'#!/bin/bash\nexec "{sys.executable}" -c \'{KOFN}\' "$@"\n')
    script(tmp_path / "bin" / "make", MAKE.format(root=ROOT))
    return folder


@pytest.fixture
def machine(checkout: Path) -> Iterator[int]:
    """Yield the id of a process that holds a separate machine's network."""
    holder = subprocess.Popen([*OWN_NETWORK, "sleep", "infinity"])
    while Path(f"/proc/{holder.pid}/comm").read_text().strip() != "sleep":
        time.sleep(0.01)
    yield holder.pid
    holder.kill()
    holder.wait()


def start(block: Block, checkout: Path, machine: int) -> "subprocess.Popen[str]":
    """Start a block's text in bash; it fails with any command's failure."""
    path = f"{checkout.parent / 'bin'}:{os.environ['PATH']}"
    state = str(checkout.parent / "state")
    environment = {**os.environ, "PATH": path, "KOFN_STATE_DIR": state, "PYTHONPATH": str(ROOT)}
    return subprocess.Popen(
        [
            "env",
            "--default-signal=INT",
            "nsenter",
            f"--net=/proc/{machine}/ns/net",
            "bash",
            "-euo",
            "pipefail",
            "-c",
            block.text,
        ],
        cwd=checkout,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )


def end(process: "subprocess.Popen[str]") -> str:
    """Wait for the process and return its output."""
    output, _ = process.communicate(timeout=DEADLINE_S)
    return output


def until_it_answers(checkout: Path, machine: int) -> None:
    """Wait for the first line of the live table, as a reader would."""
    deadline = time.monotonic() + DEADLINE_S
    asked = Block("sh", "", "test $(.venv/bin/kofn status --json | .venv/bin/python -c "
                  "'import json, sys; print(json.load(sys.stdin)[\"iteration\"])') -gt 5")  # fmt: skip
    while True:
        process = start(asked, checkout, machine)
        output = end(process)
        if process.returncode == 0:
            return
        assert time.monotonic() < deadline, output


@pytest.mark.long
def test_every_block_of_the_tutorial_works(checkout: Path, machine: int) -> None:
    with contextlib.ExitStack() as staying:
        first: subprocess.Popen[str] | None = None
        for block in (block for page in PAGES for block in blocks(ROOT / "docs/tutorial" / page)):
            if block.language != "sh":
                continue
            process = start(block, checkout, machine)
            if block.note == STAYS:
                first = process
                staying.callback(_kill, process)
                until_it_answers(checkout, machine)
                continue
            if block.note == UNTIL_CTRL_C:
                assert process.stdout is not None
                assert process.stdout.readline()
                os.killpg(process.pid, signal.SIGINT)
            output = end(process)
            assert process.returncode == 0, f"{block.text}\n{output}"
        assert first is not None
        assert "stopped by SIGTERM" in end(first)
    assert (checkout / "runs" / "mine" / "report.html").exists()


@pytest.mark.long
@pytest.mark.timeout(1800)
def test_question_becomes_a_figure(checkout: Path, machine: int) -> None:
    for block in blocks(ROOT / "docs/tutorial/question.md"):
        if block.language == "sh":
            process = start(block, checkout, machine)
            output, _ = process.communicate(timeout=900)
            assert process.returncode == 0, f"{block.text}\n{output}"
    for folder in ("question", "more", "own", "question-real"):
        assert (checkout / "runs" / folder / "figures" / "figure-1.pdf").exists()
    assert "numbers agree with the original" in output


def _kill(process: "subprocess.Popen[str]") -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)

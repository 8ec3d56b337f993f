"""The short form of `make fuzz`, and a check that it detects a fault."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.switch.fuzz.programs import PROGRAMS, Subject
from tests.switch.fuzz.sanitized import environment

FAULTY = "#include <stdlib.h>\nchar read_beyond(int at) { char *two = calloc(2, 1); return two[at]; }\n"
CALL = """
import ctypes, sys
from pathlib import Path
from kofn_common.nativebuild.library import compile_file
ctypes.CDLL(str(compile_file(Path(sys.argv[1])))).read_beyond(int(sys.argv[2]))
"""


@pytest.mark.slow
def test_byte_read_beyond_a_buffer_ends_the_process(tmp_path: Path) -> None:
    source = tmp_path / "faulty.c"
    source.write_text(FAULTY)
    command = [sys.executable, "-c", CALL, str(source)]
    started: dict[str, Any] = {"env": environment(tmp_path), "text": True}
    assert subprocess.run([*command, "1"], check=False, **started).returncode == 0
    found = subprocess.run([*command, "2"], check=False, stderr=subprocess.PIPE, **started)
    assert found.returncode != 0
    assert "faulty.c:2" in found.stderr


@pytest.mark.slow
@pytest.mark.parametrize("subject", PROGRAMS, ids=lambda subject: subject.name)
def test_initial_packets_leave_the_switch(subject: Subject) -> None:
    engine, packets = subject.load()
    assert any([engine.inject(*packet) for packet in packets])


@pytest.mark.slow
@pytest.mark.long
def test_every_part_finds_nothing() -> None:
    command = [sys.executable, "-m", "tests.switch.fuzz", "--seconds", "1", "--seed", "1", "--program", "truncated"]
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    *parts, last = done.stdout.splitlines()[1:]
    assert [part.partition(":")[0] for part in parts] == ["frames, truncated", "messages, truncated", "documents"]
    assert last == "nothing found"

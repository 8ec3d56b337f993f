"""A disk that fills during a run gives one line, and the existing results can be reported later."""

import errno
import os
import subprocess
import sys
from pathlib import Path

import pytest

from kofn.run.ending import ending
from tests.run.real_run import OWN_NETWORK

FULL = """
disk=$1 kofn=$2
mount -t tmpfs -o size=60m none "$disk"
(for turn in $(seq 300); do ! test -s "$disk/run/all/worker-0.jsonl" || break; sleep 0.1; done
dd if=/dev/zero of="$disk/fill" bs=4k status=none) &
"$kofn" run --trial all --set run.target=1 --set run.alone=false --out "$disk/run"
echo "ended with $?"
wait
rm "$disk/fill"
"$kofn" report "$disk/run"
"""
KOFN = Path(sys.executable).parent / "kofn"


@pytest.mark.root
@pytest.mark.slow
@pytest.mark.skipif(os.geteuid() != 0, reason="needs root for namespaces")
@pytest.mark.long
def test_run_on_a_full_disk_says_so_and_can_be_reported(tmp_path: Path) -> None:
    disk = tmp_path / "disk"
    disk.mkdir()
    environment = {**os.environ, "KOFN_STATE_DIR": str(tmp_path / "state")}
    done = subprocess.run(
        ["unshare", "--mount", *OWN_NETWORK, "sh", "-c", FULL, "sh", disk, KOFN],
        env=environment,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    said = done.stderr.splitlines()
    (line,) = [line for line in said if line.startswith("kofn run: ")]
    assert line.startswith(f"kofn run: the disk of {disk}/run is full: free some of it, and kofn report {disk}/run")
    assert "Traceback" not in done.stdout + done.stderr
    assert "ended with 1" in done.stdout and "iterations" in done.stdout and "report: " in done.stdout


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT])
def test_command_on_a_full_disk_says_so(number: int, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="1"), ending("report"):
        raise OSError(number, os.strerror(number))
    assert capsys.readouterr().err.startswith(f"kofn report: {os.strerror(number)}: free some of the disk")

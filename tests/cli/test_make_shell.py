"""`make shell` looks for a switch before it installs anything."""

import os
import subprocess
from pathlib import Path

from tests.controller.harness import NO_SWITCH

ROOT = Path(__file__).parents[2]


def make(*arguments: str) -> subprocess.CompletedProcess[str]:
    """Run make as if from a fresh terminal: these tests may themselves run under make."""
    environment = {
        name: value for name, value in os.environ.items() if name not in ("MAKEFLAGS", "MAKELEVEL", "SWITCH")
    }
    return subprocess.run(
        ["make", *arguments], check=False, capture_output=True, text=True, timeout=30, cwd=ROOT, env=environment
    )


def test_missing_switch_is_reported_before_anything_is_installed() -> None:
    result = make("shell", f"SWITCH={NO_SWITCH}")
    assert result.returncode != 0
    said, makes_own = result.stderr.splitlines()
    assert said == f"kofn: no switch answers at {NO_SWITCH}: `make run` or `kofn run` starts a switch"
    assert makes_own.startswith("make: ***")  # reports that the target failed
    assert result.stdout == ""


def test_switch_is_looked_for_before_the_set_up() -> None:
    lines = make("--dry-run", "shell").stdout.splitlines()
    probe = next(number for number, line in enumerate(lines) if "/dev/tcp/127.0.0.1/50051" in line)
    assert probe < lines.index("kofn/run/setup.sh shell")
    assert "p4runtime_sh --grpc-addr 127.0.0.1:50051 " in lines[-1]

"""`kofn clean` and `kofn stop`: remove the remains of a run that did not end by itself."""

import os
import shutil
import signal
import subprocess
import sys

import click

from kofn.run.network import BOOT, SYSTEM_PYTHON
from kofn.run.state import abandoned, running
from kofn_common.results.folder import CERTIFICATES

STOP_TIMEOUT_S = 30.0
CLEAN_TIMEOUT_S = 60.0


@click.command()
def stop() -> None:
    """End the `kofn run` of this machine, wherever it was started, and wait until it has cleaned up.

    \b
    Examples:
      kofn stop
      sudo .venv/bin/kofn stop                   a run that root has started

    \b
    Exit codes: 0 the run ended or there was none, 1 the run did not end within thirty seconds.
    """
    run = running()
    if run is None:
        click.echo("kofn stop: no run is going on")
        return
    click.echo(f"kofn stop: ending pid {run.pid} ({run.folder})")
    try:
        os.kill(run.pid, signal.SIGTERM)
    except PermissionError:
        click.echo(f"kofn stop: pid {run.pid} belongs to root: sudo .venv/bin/kofn stop", err=True)
        sys.exit(1)
    except ProcessLookupError:
        click.echo("kofn stop: the run has just ended by itself")
        return
    if not run.wait(STOP_TIMEOUT_S):
        click.echo(f"kofn stop: pid {run.pid} did not end; kill -9 {run.pid}, then kofn clean", err=True)
        sys.exit(1)
    click.echo("kofn stop: done")


@click.command()
def command() -> None:
    """Remove namespaces, interfaces, processes and certificates that a crashed run left behind.

    The command touches only objects of kofn, and none of a running network. It is safe to repeat. A running run must be
    stopped first (kofn stop).

    \b
    Examples:
      kofn clean
      KOFN_STATE_DIR=/run/kofn-2 kofn clean      remains of runs with this folder of states

    \b
    Exit codes: 0 no remains, 1 a run or a network is running, or some remains could not be removed.
    """
    if (run := running()) is not None:
        click.echo(f"kofn clean: a run is going on (pid {run.pid}, {run.folder}): kofn stop first", err=True)
        sys.exit(1)
    if os.geteuid() != 0:
        click.echo("kofn clean: needs root: sudo .venv/bin/kofn clean", err=True)
        sys.exit(1)
    click.echo("kofn clean: looking for leftovers of earlier runs")
    remove_certificates()
    try:
        code = subprocess.run([SYSTEM_PYTHON, BOOT, "--clean"], check=False, timeout=CLEAN_TIMEOUT_S).returncode
    except subprocess.TimeoutExpired:
        click.echo(f"kofn clean: not done within {CLEAN_TIMEOUT_S:.0f} s", err=True)
        sys.exit(1)
    if code:
        click.echo(f"kofn clean: mininet/boot.py --clean failed with exit code {code}", err=True)
        sys.exit(1)
    click.echo("kofn clean: done")


def remove_certificates() -> None:
    """Remove the certificates of a run that was killed: no process accepts them any more, but they contain keys."""
    folder = abandoned()
    if folder is not None:
        shutil.rmtree(folder / CERTIFICATES, ignore_errors=True)

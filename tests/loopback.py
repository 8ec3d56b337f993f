"""Addresses of 127.0.0.0/8 that no other test process uses at the same time."""

import os

_PROCESS = 1 + int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw"))


def loopback(third: int, fourth: int) -> str:
    return f"127.{_PROCESS}.{third}.{fourth}"

"""A run's folder with links and slots, written without a network."""

import json
from pathlib import Path
from typing import Any

from kofn_common.results.folder import RunFolder, TrialFolder
from tests.run.fake_run import FakeTrial, simulate, write

SAMPLE_S = 0.2
BYTES = 25_000
"""Bytes on each link to the switch between two samples; twice as many come from it."""


def recorded(path: Path, *, trials: int = 2) -> RunFolder:
    """Write 'throughput' with k = 3 from iteration 8 on, and 'all'; in the first, worker 2 is away in iterations 41 to
    60.
    """
    folder = RunFolder.create(path, ["throughput", "all"][:trials])
    fakes = [simulate(k=lambda i: 4 if i < 8 else 3), simulate()][:trials]
    for fake in fakes:
        dated(fake)
    fakes[0].lines[2][40:60] = []
    write(folder, fakes)
    hosts: dict[str, dict[str, str]] = {f"h{number}": {} for number in range(1, 5)}
    links = [[host, f"s1-p{number}", 0, 200.0] for number, host in enumerate(hosts, 1)]
    folder.topology.write_text(json.dumps({"hosts": hosts, "links": links}))
    for (entry,), fake in zip(folder.trials, fakes, strict=True):
        entry.samples.write_text("".join(json.dumps(line) + "\n" for line in samples(fake)))
    kill(folder.trials[0][0], fakes[0])
    set_by_hand(folder.trials[0][0], fakes[0])
    return folder


def dated(fake: FakeTrial) -> None:
    """Add a controller's statuses, with time, states and the change of k."""
    for status in fake.statuses:
        status["time"] = fake.lines[0][status["iteration"] - 1]["time"] + 0.001
        k = status["k"]
        change = {"iteration": 8, "k": k, "previous_k": 4, "reason": "less to wait for", "late_gradient": "merge"}
        status["changes"] = [change] if k != 4 else []
        status["objective"] = "throughput" if k != 4 else "all"
        for worker in status["worker"]:
            worker |= {"state": "training", "share": 0.25}
        status["counters"] = {"ADDED": 10 * status["iteration"], "LATE": 0}


def samples(fake: FakeTrial) -> list[dict[str, Any]]:
    """Return samples in which worker 3's gradient is missing from the second of two slots, which is open."""
    begin, end = fake.lines[0][0]["started"], fake.lines[0][-1]["time"]
    lines = []
    for number in range(1, int((end - begin) / SAMPLE_S)):
        links = {f"h{host}": [number * BYTES, 2 * number * BYTES] for host in range(1, 5)}
        slots = [[number, 0, True, "1111"], [number, 1, False, "1110"]] if number % 2 == 0 else None
        lines.append({"time": begin + number * SAMPLE_S, "links": links, "slots": slots})
    return lines


def kill(entry: TrialFolder, fake: FakeTrial) -> None:
    at = fake.lines[0][39]["time"] + 0.002
    line = {"time": at, "iteration": 40, "action": "kill", "name": "worker-2", "missed": ""}
    entry.events.write_text(json.dumps(line) + "\n")


def set_by_hand(entry: TrialFolder, fake: FakeTrial) -> None:
    line = {"time": fake.lines[0][49]["time"] + 0.001, "job": 1, "iteration": 50, "objective": "fixed:3"}
    others = [{**line, "job": 2}, {**line, "planned": True}, {"time": line["time"], "job": 1, "k": 3}]
    entry.decisions.write_text("".join(json.dumps(one) + "\n" for one in (*others, line)))

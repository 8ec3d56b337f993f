"""A real run's page: the live stream equals its replay."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from kofn.web.reader import RunReader
from tests.run.real_run import RealRun
from tests.web.test_server import events

pytestmark = [
    pytest.mark.root,
    pytest.mark.slow,
    pytest.mark.skipif(os.geteuid() != 0, reason="needs root: network namespaces"),
]

LONGER = 0.93
"""The target accuracy on the test images: its trial takes some seconds, enough for samples every 0.2 s."""

READ = "import sys, urllib.request; sys.stdout.buffer.write(urllib.request.urlopen(sys.argv[1], timeout=100).read())"


def test_replay_equals_the_live_stream(tmp_path: Path) -> None:
    with RealRun(tmp_path, "--trial", "fixed:1", "--trial", "all", "--web", target=LONGER) as run:
        run.until(lambda: "page: " in run.text(), "the page's address")
        (url,) = re.findall(r"page: (\S+)", run.text())
        inside = ["nsenter", f"--net=/proc/{run.process.pid}/ns/net", sys.executable, "-c", READ]
        stream = subprocess.Popen([*inside, url.replace("/?", "/frames?")], stdout=subprocess.PIPE, text=True)
        refused = subprocess.run(
            [*inside, url.partition("?")[0]], capture_output=True, text=True, timeout=30, check=False
        )
        assert "403" in refused.stderr
        streamed, _ = stream.communicate(timeout=100)
        assert run.wait() == 0, run.text()
    first, *between, last = events(streamed)
    frames = [event["data"] for event in between if event["event"] == "frame"]
    assert (first["event"], last["event"]) == ("run", "end")
    reader = RunReader(run.out, over=lambda: True)
    reader.poll()
    replayed = [json.loads(frame) for frame in reader.frames]
    for name in ("points", "events"):
        assert [one for frame in frames for one in frame[name]] == [one for frame in replayed for one in frame[name]]
    assert len(frames) == len(replayed)
    same = sum(one == other for one, other in zip(frames, replayed, strict=True))
    assert same > 0.9 * len(frames), "frames of a live run may differ only if a line came too late"
    check_samples([frame for frame in replayed if frame["trial"] == 1])


def check_samples(frames: list[dict[str, object]]) -> None:
    """Check that links carried bytes at some rate, and that closed slots with both workers were seen."""
    workers = [worker for frame in frames for worker in frame["workers"]]  # type: ignore[attr-defined]
    assert all(frames[-1]["workers"][rank]["sent_bytes"] > 100_000 for rank in (0, 1))  # type: ignore[index]
    assert max(worker["received_mbps"] for worker in workers) > 1
    slots = [slot for frame in frames for slot in frame["slots"] or ()]  # type: ignore[attr-defined]
    assert slots
    assert all(present == "11" for _, _, closed, present in slots if closed), (
        "with k = n closed slots must have all workers"
    )

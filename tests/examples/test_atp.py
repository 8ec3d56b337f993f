"""ATP: its program against a model, workers and server in every order of events, collisions, AIMD, jobs, trainings."""

import json
import os
import random
from collections import deque
from typing import Any

import numpy as np
import pytest

from examples.protocols.atp import (
    AHEAD,
    ECN,
    HEADER,
    PARAMETER,
    RESEND,
    SERVER_PORT,
    WORDS,
    AtpPlane,
    AtpSpeaker,
    ParameterServer,
    Window,
    index_of,
)
from kofn_common.config.job import JobSection
from tests.run.real_run import RealRun
from tests.system.collectives.protocols import EXAMPLES, FIFO, protocol_crew, sockets
from tests.system.collectives.switched import HOSTS
from tests.targets import TARGETS

KIND = "atp:Atp"

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="needs root: network namespaces")


@pytest.fixture(autouse=True)
def in_the_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(EXAMPLES)


class AtpModel:
    """The switch: for a packet the answer, and whether it goes to the server ("up"), to all workers ("down")."""

    def __init__(self, workers: int) -> None:
        self.everyone = (1 << workers) - 1
        self.aggregators: dict[int, tuple[int, int, int, np.ndarray]] = {}

    def receive(self, packet: bytes) -> tuple[str, bytes] | None:
        job, flags, index, sequence, bitmap = HEADER.unpack_from(packet)
        lanes = np.frombuffer(packet, ">u4", offset=HEADER.size).astype(np.uint32)
        held = self.aggregators.get(index)
        own = held is not None and held[0] == sequence
        if flags & PARAMETER:
            if own:
                del self.aggregators[index]
            return "down", packet
        if held is None and not flags & RESEND:
            self.aggregators[index] = sequence, bitmap, flags & ECN, lanes
            return ("up", packet) if bitmap == self.everyone else None
        if held is None or not own:
            return "up", packet
        _, present, ecn, total = held
        fresh = not present & bitmap
        total, present, flags = total + lanes if fresh else total, present | bitmap, flags | ecn
        if flags & RESEND:
            del self.aggregators[index]
        else:
            self.aggregators[index] = sequence, present, flags & ECN, total
            if not fresh or present != self.everyone:
                return None
        return "up", HEADER.pack(job, flags, index, sequence, present) + total.astype(">u4").tobytes()


@pytest.mark.root
@needs_root
@pytest.mark.parametrize("target", TARGETS)
def test_program_is_the_model(target: str) -> None:
    """Random packets of three workers and of the server, through one port."""
    draw, model = random.Random(5), AtpModel(HOSTS)
    job = JobSection(workers=HOSTS, slots=4, collective=KIND)
    with sockets(target, AtpPlane(), job, (HOSTS, SERVER_PORT)) as opened:
        ways = {"up": [opened[3]], "down": opened[:3]}
        seen = dict.fromkeys(("up", "down", "drop"), 0)
        for number in range(600):
            flags = draw.choice([0, 0, 0, RESEND, ECN, PARAMETER])
            sequence = draw.randrange(1, 9)
            header = HEADER.pack(1, flags, sequence % 4, sequence, 1 << draw.randrange(HOSTS))
            lanes = np.random.default_rng(number).integers(0, 2**32, 64 * WORDS, dtype=np.uint32)
            packet = header + lanes.astype(">u4").tobytes()
            opened[0].send(packet)
            answer = model.receive(packet)
            seen[answer[0] if answer else "drop"] += 1
            if answer is not None:
                assert [receiver.recv(1 << 16) for receiver in ways[answer[0]]] == [answer[1]] * len(ways[answer[0]])
        assert min(seen.values()) > 50


@pytest.mark.parametrize("seed", range(40))
def test_every_sum_is_right_in_random_orders_of_events(seed: int) -> None:
    """Packets are lost, duplicated and reordered; three workers share two aggregators."""
    draw, n, blocks, job = random.Random(seed), 3, 12, JobSection(workers=3, slots=2, window=4, rto_ms=1.0)
    model, server = AtpModel(n), ParameterServer(1, n, 16)
    values = np.random.default_rng(seed).integers(0, 2**32, (n, blocks, 2), dtype=np.uint32)
    speakers = [
        AtpSpeaker(values[rank].astype(">u4").view(np.uint8), job=job, rank=rank, first=1, window=Window(4))
        for rank in range(n)
    ]
    to_switch, to_server = deque[bytes](), deque[bytes]()
    to_worker = [deque[bytes]() for _ in range(n)]
    for speaker in speakers:
        to_switch.extend(speaker.begin(0.0))
    now_s, steps = 0.0, 0
    while any(speaker.left for speaker in speakers):
        steps += 1
        assert steps < 200_000, "no progress"
        waiting = [link for link in (to_switch, to_server, *to_worker) if link]
        if not waiting:
            now_s += 2e-3
            for speaker in speakers:
                to_switch.extend(speaker.expire(now_s))
            continue
        link = draw.choice(waiting)
        at = draw.randrange(min(len(link), 3))
        packet = link[at]
        chance = draw.random()
        if chance > 0.1:  # else it is duplicated
            del link[at]
        if chance > 0.9:
            continue  # lost
        if link is to_switch:
            if (answer := model.receive(packet)) is not None:
                for receiver in {"up": [to_server], "down": to_worker}[answer[0]]:
                    receiver.append(answer[1])
        elif link is to_server:
            parameters = server.receive(packet)
            to_switch.extend([parameters] if parameters else [])
        else:
            rank = next(rank for rank in range(n) if to_worker[rank] is link)
            to_switch.extend(speakers[rank].receive(packet, now_s))
    expected = values.sum(axis=0, dtype=np.uint32)
    for speaker in speakers:
        assert np.array_equal(speaker.sums.view(">u4").astype(np.uint32).reshape(blocks, 2), expected)


def test_window_halves_once_for_a_window_and_grows_by_one() -> None:
    window = Window(64)
    window.shrink(10, newest=70)
    window.shrink(40, newest=75)
    assert window.size == 32
    window.shrink(71, newest=90)
    assert window.size == 16
    for _ in range(17):
        window.grow()
    assert window.size == pytest.approx(17, rel=0.01)
    for number in range(20):
        window.shrink(100 * (number + 1), newest=100 * (number + 1))
    assert window.size == 1


def test_block_is_resent_when_three_later_ones_have_their_parameters() -> None:
    job = JobSection(workers=1, window=8)
    speaker = AtpSpeaker(np.zeros((8, 8), np.uint8), job=job, rank=0, first=1, window=Window(8))
    assert len(list(speaker.begin(0.0))) == 8
    sent: list[bytes] = []
    for sequence in range(2, 2 + AHEAD):
        sent += speaker.receive(HEADER.pack(1, PARAMETER, 0, sequence, 1) + bytes(8), 0.0)
    assert [HEADER.unpack_from(packet)[1::2] for packet in sent] == [(RESEND, 1)]


def test_server_refuses_a_partial_sum_with_a_worker_that_it_has() -> None:
    server = ParameterServer(1, 2, 4)
    lanes = np.array([1], ">u4").tobytes()
    assert server.receive(HEADER.pack(1, 0, 0, 1, 0b01) + lanes) is None
    assert server.receive(HEADER.pack(1, RESEND, 0, 1, 0b11) + lanes) is None
    assert server.refused == 1
    parameters = server.receive(HEADER.pack(1, RESEND | ECN, 0, 1, 0b10) + lanes)
    assert parameters == HEADER.pack(1, PARAMETER | ECN, 0, 1, 0b11) + np.array([2], ">u4").tobytes()
    assert server.receive(HEADER.pack(1, 0, 0, 1, 0b10) + lanes) is None, "a late copy needs no answer"
    assert server.receive(HEADER.pack(1, RESEND, 0, 1, 0b10) + lanes) == parameters


def test_jobs_and_blocks_share_all_aggregators() -> None:
    found = [{index_of(job, sequence, 64) for sequence in range(1, 1000)} for job in (1, 2)]
    assert found == [set(range(64))] * 2


@pytest.mark.root
@needs_root
def test_few_aggregators_leave_most_blocks_to_the_server() -> None:
    every = np.random.default_rng(1).integers(-(2**31), 2**31, (3, 30_000), dtype=np.int64).astype(np.int32)
    with protocol_crew(KIND, "embedded", FIFO, slots=2, rto_ms=20.0) as team:
        for found in team.run(lambda one: one.all_reduce(every[one.rank]).result(30)):
            assert np.array_equal(found, every.sum(axis=0, dtype=np.int32))


TRAINING = """
[run]
target = 0.95
trials = ["all"]
[job]
id = {job}
collective = "{kind}"
modules = "{folder}"
slots = 8
window = 4
workers = {workers}
{fault}
"""


@pytest.mark.root
@pytest.mark.slow
@needs_root
@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("drop", [pytest.param(0.0, marks=pytest.mark.long), 0.01])
def test_digits_reach_95_percent_with_identical_replicas(tmp_path: Any, target: str, drop: float) -> None:
    fault = f"[[fault]]\ndrop = {drop}\n" if drop else ""
    config = TRAINING.format(job=1, kind=KIND, folder=EXAMPLES, workers=4, fault=fault)
    with RealRun(tmp_path, "--json", "--target", target, config=config) as run:
        assert run.wait() == 0, run.text()
        assert run.leftovers() == []
    (trial,) = json.loads(run.stdout.read_text())["trials"]
    assert trial["best_accuracy"] >= 0.95
    assert trial["identity_error"] is None
    assert trial["switch_counters"]["passed on"] > 0, "eight aggregators collide"
    assert trial["retransmissions"] > 0 or not drop


@pytest.mark.root
@pytest.mark.slow
@needs_root
@pytest.mark.parametrize("kind", [KIND, pytest.param("switchml:Switchml", marks=pytest.mark.long)])
@pytest.mark.long
def test_two_jobs_train_on_one_switch(tmp_path: Any, kind: str) -> None:
    one, other = (TRAINING.format(job=job, kind=kind, folder=EXAMPLES, workers=2, fault="") for job in (1, 2))
    with RealRun(tmp_path, "--json", config=one, others=[other]) as run:
        assert run.wait() == 0, run.text()
        assert run.leftovers() == []
    for job in json.loads(run.stdout.read_text())["jobs"]:
        assert job["trials"][0]["best_accuracy"] >= 0.95
        assert job["trials"][0]["identity_error"] is None

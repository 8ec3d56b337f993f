"""The parts of a simulation: clock, machine, links, and the controller's times."""

import importlib
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from kofn.sim.clock import VirtualClock
from kofn.sim.controller import MANAGEMENT_S, PUSH_S, Controller
from kofn.sim.machine import Machine
from kofn.sim.network import FRAME_BYTES, LATENCY_S, QUEUE_BYTES, QUEUE_S, Link
from kofn_common.config.faults import FaultSection
from kofn_common.config.interventions import EventSection
from kofn_common.config.policy import PolicySection
from kofn_common.gso import BUCKET_BYTES, BUCKET_S, coalesced_bytes
from kofn_common.rpc import kofn_pb2 as pb
from kofn_common.wire.packet import HEADER_BYTES, KofnHeader
from kofn_controller.job.journal import Journal
from kofn_controller.policy.control_loop import ControlLoop
from kofn_controller.policy.decision_pacer import DECISION_SHARE, QUIET_S, TICK_S
from kofn_host.transport.fault_injection import Faults
from tests.sim.lab import FREE


def ended(clock: VirtualClock, at: float) -> list[Any]:
    """Let all events before a moment happen."""
    clock.after(at, clock.end)
    assert clock.run()
    return []


def test_events_happen_in_order_and_simultaneous_ones_as_scheduled() -> None:
    clock, seen = VirtualClock(), list[tuple[str, float]]()

    def note(name: str) -> None:
        seen.append((name, clock.time()))
        if name == "b":
            clock.call_at(0.5, note, "past")

    for name, when in (("c", 3.0), ("a", 1.0), ("b", 2.0), ("d", 3.0)):
        clock.call_at(when, note, name)
    clock.call_at(2.5, note, "not").cancel()
    assert not clock.run(), "no call is left, and none has ended the clock"
    assert seen == [("a", 1.0), ("b", 2.0), ("past", 2.0), ("c", 3.0), ("d", 3.0)]


def test_no_event_happens_after_the_end() -> None:
    clock, seen = VirtualClock(), list[int]()
    clock.call_at(2.0, seen.append, 2)
    clock.call_at(1.0, clock.end)
    assert clock.run()
    assert (seen, clock.time()) == ([], 1.0)


@pytest.mark.parametrize(
    ("cores", "done"), [(0, [1.0, 1.0, 1.0, 1.0]), (1, [1.0, 2.0, 3.5, 4.5]), (2, [1.0, 1.0, 2.5, 2.5])]
)
def test_cores_do_one_thing_after_another(cores: int, done: list[float]) -> None:
    """The third task takes half a second, and nothing waits for its end."""
    clock, seen = VirtualClock(), list[float]()
    machine = Machine(clock, cores)
    machine.work(1.0, lambda: seen.append(clock.time()))
    machine.work(1.0, lambda: seen.append(clock.time()))
    machine.spend(0.5)
    machine.spend(0.5 if cores == 2 else 0.0)
    machine.work(1.0, lambda: seen.append(clock.time()))
    machine.work(1.0, lambda: seen.append(clock.time()))
    clock.run()
    assert seen == done


PACKET_BYTES = HEADER_BYTES + 256 + FRAME_BYTES


def link_of(clock: VirtualClock, mbps: float, seen: list[tuple[int, float]]) -> Link:
    """Return a link without faults that notes each packet's block and arrival time."""
    faults = Faults((), rank=0, direction="send", seed=1)
    return Link(clock, mbps, faults, lambda header, values: seen.append((header.block, clock.time())))


def send(link: Link, blocks: range) -> None:
    for block in blocks:
        link.send(KofnHeader(block=block), bytes(256))


def test_idle_link_passes_a_burst_at_once_then_keeps_its_rate() -> None:
    clock, seen = VirtualClock(), list[tuple[int, float]]()
    link = link_of(clock, 8.0, seen)  # a byte takes a microsecond
    count, burst = 300, max(BUCKET_BYTES, 2000)
    clock.after(1.0, send, link, range(count))
    clock.run()
    paid_s = [max(0, (block + 1) * PACKET_BYTES - burst) * 1e-6 for block in range(count)]
    assert [block for block, _ in seen] == list(range(count))
    assert [when for _, when in seen] == pytest.approx([1.0 + late_s + LATENCY_S for late_s in paid_s])
    assert (link.packets, link.payload_bytes) == (count, count * (HEADER_BYTES + 256))


@pytest.mark.parametrize("mbps", [0.5, 20.0, 200.0, 2000.0])
def test_bucket_and_queue_are_those_of_the_emulated_network(mbps: float, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(Path(__file__).parents[2] / "mininet"))
    interfaces = importlib.import_module("interfaces")
    assert max(mbps * 1e6 / 8 * BUCKET_S, BUCKET_BYTES) == interfaces.burst_bytes(mbps, 9000)
    assert max(mbps * 1e6 / 8 * QUEUE_S, QUEUE_BYTES) == interfaces.queue_bytes(mbps)
    assert coalesced_bytes(mbps) < interfaces.burst_bytes(mbps, 9000), "no bucket segments a coalesced packet"


def test_packet_that_finds_the_queue_full_is_lost() -> None:
    clock, seen = VirtualClock(), list[tuple[int, float]]()
    link = link_of(clock, 8.0, seen)
    most = QUEUE_BYTES // PACKET_BYTES
    clock.after(1.0, send, link, range(most + 500))
    clock.after(10.0, send, link, range(5000, 5001))
    clock.run()
    assert [block for block, _ in seen] == [*range(most), 5000], "packets beyond the queue's length are lost"


@given(
    first_mbps=st.floats(0.5, 50),
    rates=st.lists(st.tuples(st.floats(1e-5, 0.01), st.floats(0.5, 50)), max_size=5),
    packets=st.integers(1, 200),
)
def test_transfer_takes_as_long_as_the_links_rates_imply(
    first_mbps: float, rates: list[tuple[float, float]], packets: int
) -> None:
    """A packet leaves when all earlier bytes beyond the burst are paid, each at the rate of its time."""
    clock, seen = VirtualClock(), list[tuple[int, float]]()
    link = link_of(clock, first_mbps, seen)
    send(link, range(packets))
    moment, steps = 0.0, [(0.0, first_mbps)]
    for gap_s, mbps in rates:
        moment += gap_s
        steps.append((moment, mbps))
        clock.after(moment, link.shape, mbps)
    clock.run()
    assert [block for block, _ in seen] == list(range(packets))
    for block, arrived_s in seen:
        until = [*(begin for begin, _ in steps[1:]), float("inf")]
        left_s = arrived_s - LATENCY_S
        carried = sum(
            max(0.0, min(end, left_s) - begin) * mbps for (begin, mbps), end in zip(steps, until, strict=True)
        )
        assert carried * 1e6 / 8 == pytest.approx(max(0, (block + 1) * PACKET_BYTES - BUCKET_BYTES), rel=1e-6, abs=1e-6)


def test_packet_sent_after_a_rate_change_waits_for_earlier_ones() -> None:
    clock, seen, first = VirtualClock(), list[tuple[int, float]](), 200
    link, paid_s = link_of(clock, 8.0, seen), (first * PACKET_BYTES - BUCKET_BYTES) * 1e-6
    send(link, range(first))
    clock.after(paid_s / 2, link.shape, 4.0)
    clock.after(paid_s, send, link, range(first, first + 2))
    clock.run()
    left_s = [1.5 * paid_s + number * PACKET_BYTES * 2e-6 for number in (1, 2)]
    assert [when for _, when in seen[first:]] == pytest.approx([each + LATENCY_S for each in left_s])


@pytest.mark.parametrize(("fault", "arrive"), [({"drop": 1.0}, 0), ({"duplicate": 1.0}, 40), ({"corrupt": 1.0}, 0)])
def test_faults_equal_those_of_a_run(fault: dict[str, float], arrive: int) -> None:
    """The receiver drops a damaged packet."""
    clock, seen = VirtualClock(), list[bytes]()
    faults = Faults((FaultSection(**fault),), rank=0, direction="receive", seed=1)  # type: ignore[arg-type]
    link = Link(clock, None, faults, lambda header, values: seen.append(values))
    for number in range(20):
        link.send(KofnHeader(), bytes([number]) * 256)
    clock.run()
    assert len(seen) == arrive
    assert all(values in [bytes([number]) * 256 for number in range(20)] for values in seen)


class Driven:
    """A controller of three workers that all report at given moments."""

    def __init__(self, *events: EventSection, decide_s: float = 0.01) -> None:
        self.clock, self.pushed = VirtualClock(), list[tuple[float, int]]()
        self.controller = Controller(
            clock=self.clock,
            control_loop=ControlLoop(workers=3, policy=PolicySection(objective="throughput")),
            journal=Journal(None),
            job=1,
            events=events,
            set_k=lambda k: self.pushed.append((self.clock.time(), k)),
            set_late_policy=lambda late_policy: None,
            set_link=lambda rank, link: None,
            machine=Machine(self.clock, 0),
            costs=replace(FREE, decide_s=decide_s),
        )
        self.controller.start()

    def report(self, iteration: int, at: float) -> None:
        """Report an iteration; one worker is slow."""
        for rank in range(3):
            first_block_s = 0.2 if rank == 2 else 0.01
            self.clock.call_at(
                at, self.controller.report, rank, pb.Report(iteration=iteration, first_block_s=first_block_s)
            )


def test_k_reaches_the_switch_after_decision_and_push() -> None:
    driven = Driven()
    for iteration in range(1, 6):
        driven.report(iteration, at=0.3 * iteration)
    ended(driven.clock, 2.0)
    ((when, k),) = driven.pushed
    assert k == 2
    ticks = int((0.3 + MANAGEMENT_S + QUIET_S) / TICK_S) + 1
    assert when == pytest.approx(ticks * TICK_S + 0.01 + PUSH_S), "the push must follow the tick after the last report"
    assert driven.controller.changes == 1


def test_decision_is_followed_by_a_pause() -> None:
    driven, decided = Driven(decide_s=0.01), list[float]()
    choose = driven.controller.control_loop.choose

    def noted(now_s: float) -> Any:
        decided.append(now_s)
        return choose(now_s)

    object.__setattr__(driven.controller, "control_loop", _With(driven.controller.control_loop, noted))
    for iteration in range(1, 200):
        driven.report(iteration, at=0.01 * iteration)
    ended(driven.clock, 2.0)
    gaps = [later - earlier for earlier, later in pairwise(decided)]
    assert min(gaps) >= 0.01 * (1 + 1 / DECISION_SHARE) - 1e-9
    assert len(decided) >= 8


class _With:
    """A control loop that notes its decisions."""

    def __init__(self, control_loop: ControlLoop, choose: Any) -> None:
        self._control_loop, self.choose = control_loop, choose

    def __getattr__(self, name: str) -> Any:
        return getattr(self._control_loop, name)


def test_objective_of_an_event_is_set_once_after_its_iteration() -> None:
    driven = Driven(EventSection(at_iteration=4, objective="fixed:1", after_s=0.1))
    for iteration in range(1, 9):
        driven.report(iteration, at=0.3 * iteration)
    ended(driven.clock, 3.0)
    assert driven.controller.control_loop.goal.name == "fixed:1"
    assert driven.pushed[-1] == (pytest.approx(1.2 + MANAGEMENT_S + 0.1 + 0.01 + PUSH_S), 1)
    assert [k for _, k in driven.pushed] == [2, 1]

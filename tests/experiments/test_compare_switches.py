"""compare-switches.toml: the bytes of two runs on two switches, from made-up frames."""

from collections.abc import Sequence
from pathlib import Path

import pytest
from scapy.utils import RawPcapWriter

from examples.experiments.compare_switches import TargetTraffic, same_bytes
from kofn.experiments.artefact import prepare
from kofn.experiments.cells import Cell, cells_of
from kofn.experiments.claims import Verdict
from kofn.experiments.experiment_file import ExperimentFile
from kofn.experiments.reader import Experiment
from kofn.run.conclusion import summarised
from kofn.run.plan import prepare as prepare_run
from kofn_common.config.dump import to_toml
from kofn_common.wire import packet as wire
from kofn_common.wire.errors import ChecksumError, WireError
from kofn_common.wire.packet import Flag, Kind, KofnHeader
from tests.experiments.given import EXAMPLES
from tests.run import fake_run

VALUES = bytes(range(256))


def frame(header: KofnHeader, values: bytes = VALUES, *, identification: int = 1, udp_port: int = wire.PORT) -> bytes:
    """Return a packet in Ethernet, IPv4 and UDP."""
    payload = wire.encode(header, values)
    ip = bytearray.fromhex("4500 0000 0000 4000 4011 0000 0a000001 0a0000fe")
    ip[2:4] = (28 + len(payload)).to_bytes(2)
    ip[4:6] = identification.to_bytes(2)
    ip[10:12] = (0xFFFF - wire.sum_of(bytes(ip))).to_bytes(2, "little")
    udp = wire.PORT.to_bytes(2) + udp_port.to_bytes(2) + (8 + len(payload)).to_bytes(2) + b"\0\0"
    return bytes.fromhex("080000000001 0800000000fe 0800") + bytes(ip) + udp + payload


def seen(*frames: bytes) -> TargetTraffic:
    return TargetTraffic.of(frames)


FIRST, SECOND = KofnHeader(job=1, generation=7, block=1), KofnHeader(job=1, generation=7, block=2)


def test_order_generation_and_identification_do_not_matter() -> None:
    one = seen(frame(FIRST, identification=4711), frame(SECOND, identification=4712))
    other = seen(frame(SECOND._replace(generation=9)), frame(FIRST._replace(generation=9)))
    assert one.frames == other.frames
    assert (len(one.frames), one.size, one.left_out) == (2, 2 * (14 + 20 + 8 + 68 + 256), 0)


COMPARED = [
    name for name, _ in wire.HEADER_FIELDS if name not in ("version", "words", "bitmaps", "checksum", "generation")
]


@pytest.mark.parametrize("field", COMPARED)
def test_every_other_field_is_compared(field: str) -> None:
    other = FIRST._replace(**{field: int(Kind.STALE) if field == "kind" else getattr(FIRST, field) ^ 3})
    assert seen(frame(FIRST)).frames != seen(frame(other)).frames


def test_values_and_addresses_are_compared() -> None:
    assert seen(frame(FIRST)).frames != seen(frame(FIRST, bytes(256))).frames
    moved = bytearray(frame(FIRST))
    moved[0] ^= 2
    assert seen(frame(FIRST)).frames != seen(bytes(moved)).frames


def test_retransmissions_and_their_answers_are_left_out() -> None:
    answer = FIRST._replace(kind=Kind.RESULT)
    once, late = seen(frame(FIRST), frame(answer)), frame(FIRST._replace(kind=Kind.LATE))
    retransmitted = frame(FIRST._replace(flags=Flag.AGAIN), identification=2)
    again = seen(frame(FIRST), retransmitted, frame(answer._replace(flags=Flag.AGAIN)), frame(answer), late)
    assert again.frames == once.frames
    assert (once.left_out, again.left_out) == (0, 3)


def test_frames_of_other_programs_are_ignored() -> None:
    arp = bytes.fromhex("ffffffffffff 080000000001 0806") + bytes(28)
    other_port = bytearray(frame(FIRST))
    other_port[34:38] = bytes(4)
    assert seen(arp, bytes(other_port)).frames == frozenset()


def test_damaged_frame_is_an_error() -> None:
    damaged, header = bytearray(frame(FIRST)), bytearray(frame(FIRST))
    damaged[-1] ^= 1
    header[22] ^= 1
    with pytest.raises(ChecksumError):
        seen(bytes(damaged))
    with pytest.raises(WireError, match="IP header does not fit its checksum"):
        seen(bytes(header))


@pytest.fixture
def cells(tmp_path: Path) -> dict[str, Cell]:
    """Return the cells of int8, by switch."""
    file = ExperimentFile.load(EXAMPLES / "compare-switches.toml").only({"compress.codec": ["int8"]})
    found = cells_of(prepare(file, tmp_path), tmp_path)
    return {cell.config.network.target: cell for cell in found}


def ran(cell: Cell, links: dict[str, Sequence[bytes]], *, seed: int = 1) -> None:
    """Write a run that has left these frames."""
    plan = cell.plan()
    run = prepare_run(plan, "{}")
    fake = fake_run.simulate(workers=2, iterations=3, seed=seed)
    for lines in fake.lines:
        for line in lines:
            line["params"] = f"{seed}-{line['iteration']}"
    fake_run.write_job(run.jobs[0], [fake])
    run.jobs[0].config.write_text(to_toml(plan.shared))
    (entry,) = run.jobs[0].trials
    (entry.shared / "pcap").mkdir()
    for name, frames in links.items():
        with RawPcapWriter(str(entry.shared / "pcap" / f"{name}.pcap"), linktype=1) as writer:
            writer.write_header(None)
            for one in frames:
                writer.write_packet(one)
    summarised(run, plan.configs)


def said(folder: Path) -> Verdict:
    (verdict,) = same_bytes(Experiment(folder))
    return verdict


def test_equal_bytes_are_claimed_link_by_link(cells: dict[str, Cell], tmp_path: Path) -> None:
    assert list(cells) == ["embedded", "bmv2"]
    assert all(cell.config.network.pcap for cell in cells.values())
    one, two = frame(FIRST), frame(SECOND)
    ran(cells["embedded"], {"s1-eth1_in": [one, two], "s1-eth1_out": [two]})
    assert (said(tmp_path).answer, said(tmp_path).numbers) == ("not asked", "needs runs of bmv2")
    ran(cells["bmv2"], {"s1-eth1_in": [two, one, one], "s1-eth1_out": [two]})
    verdict = said(tmp_path)
    assert verdict.holds
    assert verdict.numbers == "3 frames, 1,098 bytes in 2 directions of links; retransmitted, and left out: 1"


@pytest.mark.parametrize(
    ("links", "seed", "words"),
    [
        ({"a": [frame(FIRST)], "b": []}, 1, "differing: b (1 and 0 frames)"),
        ({"a": [frame(FIRST)]}, 1, "differing: b"),
        ({"a": [frame(SECOND)], "b": [frame(SECOND)]}, 1, "differing: a (1 and 1 frames)"),
        ({"a": [frame(FIRST)], "b": [frame(SECOND)]}, 2, "differing: the parameters"),
    ],
)
def test_different_bytes_are_reported(
    cells: dict[str, Cell], links: dict[str, Sequence[bytes]], seed: int, words: str, tmp_path: Path
) -> None:
    ran(cells["embedded"], {"a": [frame(FIRST)], "b": [frame(SECOND)]})
    ran(cells["bmv2"], links, seed=seed)
    verdict = said(tmp_path)
    assert verdict.holds is False
    assert words in verdict.numbers


def test_two_empty_recordings_are_not_equal(cells: dict[str, Cell], tmp_path: Path) -> None:
    for cell in cells.values():
        ran(cell, {"a": []})
    assert said(tmp_path).holds is False

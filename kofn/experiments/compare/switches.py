"""The same run on the embedded switch and on BMv2: are the same bytes on every link?

The kofn frames of every link, in either direction, are compared byte by byte with the frames of the other run, in any
order, because the order depends on time. The comparison leaves out parts that always differ between runs:

- the job's generation, which is a Unix time, and the identification in the IP header, which the kernel counts. Both
  fields are read as 0, and the checksums that cover these fields are verified instead;
- repetitions: retransmissions after a timeout, the switch's answers to them, and LATE answers. The number of these
  frames is reported.

Frames of other protocols (ARP, pings) are not compared.
"""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from kofn.experiments.claims import Verdict
from kofn.experiments.compare.points import checked, load
from kofn.experiments.matrix import Cell, CellResult, Scenario, cells
from kofn_common.results.worker_metrics import read_trial
from kofn_common.wire import packet as wire
from kofn_common.wire.errors import WireError
from kofn_common.wire.packet import Kind

TARGETS = ("embedded", "bmv2")
STEM = "switches"

CLAIM = "the embedded switch and BMv2 give the same bytes on every link, and the same parameters"

ETHERNET, IPV4, UDP = 14, 20, 8
"""Bytes of the headers before kofn's header."""

HEADERS = ETHERNET + IPV4 + UDP


def switch_cells(folder: Path, codecs: Sequence[str], settings: Sequence[str]) -> list[Cell]:
    """Return two runs for every codec: a run on the embedded switch, and a run on BMv2."""
    scenarios = [_scenario(target, codec, settings) for codec in codecs for target in TARGETS]
    return cells(scenarios, 1, folder)


def _scenario(target: str, codec: str, settings: Sequence[str]) -> Scenario:
    name = f"{STEM}-{codec}-{target}"
    return checked(name, load(STEM, [f"network.target={target}", f"compress.codec={codec}", *settings], name))


@dataclass(frozen=True, slots=True, kw_only=True)
class TargetTraffic:
    """kofn's frames that passed one interface of the switch in one direction."""

    frames: frozenset[bytes]
    """The compared form of the frames, without repetitions."""
    size: int
    """Bytes of `frames`."""
    left_out: int
    """The number of frames that repeat another frame, or answer a repeated frame."""

    @classmethod
    def of(cls, frames: Iterable[bytes]) -> Self:
        """Read captured Ethernet frames. Raise WireError if a kofn frame is damaged."""
        counts: Counter[bytes] = Counter()
        late = 0
        for frame in filter(_is_kofn, frames):
            header = wire.decode_header(frame[HEADERS:])
            if header.kind == Kind.LATE:
                late += 1
            else:
                counts[_compared(frame, header)] += 1
        again = sum(counts.values()) - len(counts)
        return cls(frames=frozenset(counts), size=sum(map(len, counts)), left_out=again + late)


def _is_kofn(frame: bytes) -> bool:
    """Return whether a frame is to or from kofn's UDP port."""
    if len(frame) < HEADERS or frame[12:14] != b"\x08\x00" or frame[ETHERNET + 9] != 17:
        return False
    return wire.PORT in (int.from_bytes(frame[34:36]), int.from_bytes(frame[36:38]))


def _compared(frame: bytes, header: wire.KofnHeader) -> bytes:
    """Return a frame without parts that always differ between runs. Raise WireError if the IP header is damaged."""
    if wire.sum_of(frame[ETHERNET : ETHERNET + IPV4]):
        raise WireError(f"a frame's IP header does not fit its checksum: {frame[ETHERNET:HEADERS].hex()}")
    same = bytearray(frame)
    same[ETHERNET + 4 : ETHERNET + 6] = same[ETHERNET + 10 : ETHERNET + 12] = b"\0\0"
    same[HEADERS : HEADERS + wire.HEADER_BYTES] = wire.encode_header(header._replace(generation=0, checksum=0))
    return bytes(same)


def verdicts(results: Sequence[CellResult]) -> list[Verdict]:
    """Return a claim for each codec that was run on both switches."""
    by_name = {result.cell.scenario.name: result for result in results if result.trials}
    codecs = dict.fromkeys(name.split("-")[1] for name in by_name)
    return [
        _verdict(codec, embedded, bmv2)
        for codec in codecs
        if (embedded := by_name.get(f"{STEM}-{codec}-{TARGETS[0]}"))
        and (bmv2 := by_name.get(f"{STEM}-{codec}-{TARGETS[1]}"))
    ]


def _verdict(codec: str, embedded: CellResult, bmv2: CellResult) -> Verdict:
    links = [_links(result) for result in (embedded, bmv2)]
    seen = [traffic for link in links for traffic in link.values()]
    differing = [_difference(name, links[0][name], links[1].get(name)) for name in links[0]]
    differing = [words for words in differing if words] + [name for name in links[1] if name not in links[0]]
    if _digests(embedded) != _digests(bmv2):
        differing.append("the parameters")
    frames = sum(len(traffic.frames) for traffic in links[0].values())
    size = sum(traffic.size for traffic in links[0].values())
    compared = f"{frames:,} frames, {size:,} bytes in {len(links[0])} directions of links"
    words = f"{compared}; differing: {', '.join(differing)}" if differing else compared
    again = sum(traffic.left_out for traffic in seen)
    return Verdict(
        claim=f"{CLAIM} ({codec})",
        holds=bool(frames) and not differing,
        numbers=f"{words}; retransmitted, and left out: {again}",
    )


def _difference(name: str, first: TargetTraffic, other: TargetTraffic | None) -> str:
    """Return how many frames of each run the other run lacks, as text; empty if both runs have the same frames."""
    if other is None:
        return name
    mine, theirs = first.frames - other.frames, other.frames - first.frames
    return f"{name} ({len(mine)} and {len(theirs)} frames)" if mine or theirs else ""


def _links(result: CellResult) -> dict[str, TargetTraffic]:
    """Return the traffic of every captured interface and direction."""
    from scapy.utils import RawPcapReader  # noqa: PLC0415  # takes a third of a second

    ((entry,),) = (result.cell.job().trials,)
    found: dict[str, TargetTraffic] = {}
    for path in sorted((entry.shared / "pcap").glob("*.pcap")):
        with RawPcapReader(str(path)) as reader:
            found[path.stem] = TargetTraffic.of(data for data, _ in reader)
    return found


def _digests(result: CellResult) -> list[tuple[int, int, str]]:
    """Return the digest of every worker's parameters after every iteration."""
    (folder,) = result.cell.job().trials
    workers = read_trial(folder, result.cell.config.job.workers)
    return [(worker.rank, line.iteration, line.params) for worker in workers for line in worker.iterations]

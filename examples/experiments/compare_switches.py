"""The claim of compare-switches.toml: the same run on the embedded switch and on BMv2 has the same bytes on every link.

The kofn frames of every link, in either direction, are compared byte by byte with the frames of the other run, in any
order, because the order depends on time. The comparison leaves out parts that always differ between runs:

- the job's generation, which is a Unix time, and the identification in the IP header, which the kernel counts. Both
  fields are read as 0, and the checksums that cover these fields are verified instead;
- repetitions: retransmissions after a timeout, repeated and LATE answers, and the flag of an answer to a
  retransmission. The number of these frames is reported.

Frames of other protocols (ARP, pings) are not compared.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Self

from kofn.experiments.claims import Verdict
from kofn.experiments.reader import Experiment, FinishedTrial
from kofn_common.results.folder import TrialFolder
from kofn_common.wire import packet as wire
from kofn_common.wire.errors import WireError
from kofn_common.wire.packet import Flag, Kind

TARGETS = ("embedded", "bmv2")

ETHERNET, IPV4, UDP = 14, 20, 8
"""Bytes of the headers before kofn's header."""

REQUESTS = (Kind.CONTRIBUTE, Kind.PULL)

HEADERS = ETHERNET + IPV4 + UDP


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
        repeated = 0
        for frame in filter(_is_kofn, frames):
            header = wire.decode_header(frame[HEADERS:])
            if header.kind == Kind.LATE or (header.kind in REQUESTS and header.flags & Flag.AGAIN):
                repeated += 1
            else:
                counts[_compared(frame, header)] += 1
        again = sum(counts.values()) - len(counts)
        return cls(frames=frozenset(counts), size=sum(map(len, counts)), left_out=again + repeated)


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
    once = header._replace(generation=0, checksum=0, flags=header.flags & ~Flag.AGAIN)
    same[HEADERS : HEADERS + wire.HEADER_BYTES] = wire.encode_header(once)
    return bytes(same)


def same_bytes(experiment: Experiment) -> Iterator[Verdict]:
    """Yield a verdict for each codec that was run on both switches."""
    found = {(trial.config.compress.codec, str(trial.cell.point.contender)): trial for trial in experiment.finished}
    for codec in dict.fromkeys(codec for codec, _ in found):
        claim = (
            f"the embedded switch and BMv2 send the same bytes on every link, and give the same parameters ({codec})"
        )
        if missing := [target for target in TARGETS if (codec, target) not in found]:
            yield Verdict(claim=claim, holds=None, numbers=f"needs runs of {missing[0]}")
            continue
        first, other = (found[codec, target] for target in TARGETS)
        holds, numbers = compared(_links(first.folder), _links(other.folder), same=_digests(first) == _digests(other))
        yield Verdict(claim=claim, holds=holds, numbers=numbers)


def compared(first: Mapping[str, TargetTraffic], other: Mapping[str, TargetTraffic], *, same: bool) -> tuple[bool, str]:
    """Compare the traffic of two runs by link and direction; `same`: whether the runs have the same parameters. Return
    whether all is equal, and the counts."""
    differing = [words for name in first if (words := _difference(name, first[name], other.get(name)))]
    differing += [name for name in other if name not in first] + ([] if same else ["the parameters"])
    frames = sum(len(traffic.frames) for traffic in first.values())
    size = sum(traffic.size for traffic in first.values())
    left_out = sum(traffic.left_out for traffic in (*first.values(), *other.values()))
    words = [f"{frames:,} frames, {size:,} bytes in {len(first)} directions of links"]
    words += [f"differing: {', '.join(differing)}"] if differing else []
    return bool(frames) and not differing, "; ".join([*words, f"retransmitted, and left out: {left_out}"])


def _difference(name: str, first: TargetTraffic, other: TargetTraffic | None) -> str:
    """Return how many frames of each run the other run lacks, as text; empty if both runs have the same frames."""
    if other is None:
        return name
    mine, theirs = first.frames - other.frames, other.frames - first.frames
    return f"{name} ({len(mine)} and {len(theirs)} frames)" if mine or theirs else ""


def _links(folder: TrialFolder) -> dict[str, TargetTraffic]:
    """Return the traffic of every captured interface and direction."""
    from scapy.utils import RawPcapReader  # noqa: PLC0415  # takes a third of a second

    found: dict[str, TargetTraffic] = {}
    for path in sorted((folder.shared / "pcap").glob("*.pcap")):
        with RawPcapReader(str(path)) as reader:
            found[path.stem] = TargetTraffic.of(data for data, _ in reader)
    return found


def _digests(trial: FinishedTrial) -> list[tuple[int, int, str]]:
    """Return the digest of every worker's parameters after every iteration."""
    return [(worker.rank, line.iteration, line.params) for worker in trial.metrics() for line in worker.iterations]

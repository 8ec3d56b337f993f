"""Truncated and oversized frames with random headers, through native code."""

import ctypes
import random
import time
from collections.abc import Sequence
from ctypes import c_char_p, c_uint32, c_uint64, c_void_p
from pathlib import Path

from kofn_common.nativebuild.library import compile_file
from kofn_switch.compiler.build import RUNTIME, compile_runtime
from tests.switch.fuzz.programs import Subject

SOURCE = Path(__file__).with_name("frames.c")
BATCH = 10_000


def run(subjects: Sequence[Subject], *, seconds: float, chance: random.Random) -> None:
    """Run each program for its share of the time. A finding ends the process."""
    ctypes.CDLL(str(compile_runtime()), mode=ctypes.RTLD_GLOBAL)  # frames.c calls it
    library = ctypes.CDLL(str(compile_file(SOURCE, include=RUNTIME)))
    library.fuzz_frames.restype = c_uint64
    library.fuzz_frames.argtypes = [c_void_p, c_char_p, c_void_p, c_void_p, c_uint32, c_uint64, c_uint64]
    for subject in subjects:
        _run(library, subject, seconds / len(subjects), chance)


def _run(library: ctypes.CDLL, subject: Subject, seconds: float, chance: random.Random) -> None:
    engine, packets = subject.load()
    corpus = b"".join(data for _, data in packets)
    lengths = (c_uint32 * len(packets))(*(len(data) for _, data in packets))
    ports = (c_uint32 * len(packets))(*(port for port, _ in packets))
    end, frames, emitted = time.monotonic() + seconds, 0, 0
    while time.monotonic() < end:
        seed = chance.getrandbits(64)
        emitted += library.fuzz_frames(engine._core, corpus, lengths, ports, len(packets), BATCH, seed)
        frames += BATCH
    drops = {reason: count for reason, count in engine.stats().drops.items() if count}
    print(f"frames, {subject.name}: {frames:,} in, {emitted:,} bytes out, dropped: {drops}", flush=True)
    assert emitted, f"{subject.name}: no frame was sent, so the entries do not fit the packets"

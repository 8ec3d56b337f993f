"""A pretend accelerator, "pretend:0" to "pretend:3": load() makes it this process's torch.accelerator, for good.

pretend.cpp has the device. It is compiled once for each version of PyTorch (ten seconds).
"""

import ctypes
import hashlib
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch.utils.backend_registration import _DummyBackendModule

DEVICES = 4

LATE, HASTY, TURN, RANDOM, EAGER = range(5)
"""When tasks run: when a thread waits for them; at once except those of one stream; at once except those of every third
stream of a device; by dice; at once."""

COMPILER = os.environ.get("CXX") or "c++"

_c: Any = None


def missing() -> str | None:
    """Return why it cannot be had here; None where it can."""
    return None if shutil.which(COMPILER) else f"no C++ compiler ({COMPILER}) for the pretend accelerator"


def load() -> None:
    global _c  # noqa: PLW0603  # a process has one torch.accelerator
    if _c is not None:
        return
    torch.utils.rename_privateuse1_backend("pretend")
    torch._register_device_module("pretend", _Module())
    torch.utils.generate_methods_for_privateuse1_backend()
    built = _built()
    torch.ops.load_library(str(built))
    _c = ctypes.CDLL(str(built))
    for name in ("pending", "waits", "blocks", "pinned"):
        getattr(_c, f"pretend_{name}").restype = ctypes.c_int64


def mode(which: int, value: int | torch.Stream = 0) -> None:
    """Set the mode: HASTY's slow stream, TURN's turn (0, 1 or 2), or the seed of RANDOM's dice."""
    if isinstance(value, torch.Stream):
        value = value.stream_id or -1 - value.device_index
    _c.pretend_mode(which, ctypes.c_int64(value))


def pending() -> int:
    """Return the number of tasks that have not run."""
    return int(_c.pretend_pending())


def waits() -> int:
    """Return how often the calling thread has waited for a device."""
    return int(_c.pretend_waits())


def blocks() -> int:
    """Return the number of blocks of device memory in use."""
    return int(_c.pretend_blocks())


def pinned() -> int:
    """Return the number of blocks of pinned memory that were ever allocated."""
    return int(_c.pretend_pinned())


@contextmanager
def limited(device: int = -1, host: int = -1) -> Iterator[None]:
    """Have allocations of more bytes of device memory, or of pinned memory, than these fail."""
    _c.pretend_limit(ctypes.c_int64(device), ctypes.c_int64(host))
    try:
        yield
    finally:
        _c.pretend_limit(ctypes.c_int64(-1), ctypes.c_int64(-1))


@contextmanager
def lost() -> Iterator[None]:
    """Lose the devices: tasks are dropped, and every further one is an error."""
    _c.pretend_lose(1)
    try:
        yield
    finally:
        _c.pretend_lose(0)


class _Module(_DummyBackendModule):
    """torch.pretend, with the functions that PyTorch calls by name."""

    Stream, Event = torch.Stream, torch.Event

    def is_initialized(self) -> bool:
        return True

    def set_device(self, device: Any) -> None:
        torch._C._accelerator_setDeviceIndex(device if isinstance(device, int) else torch.device(device).index)

    def device(self, device: int | torch.device) -> Any:
        return torch.accelerator.device_index(device if isinstance(device, int) else device.index)

    def current_device(self) -> int:
        return int(torch._C._accelerator_getDeviceIndex())

    def device_count(self) -> int:
        return DEVICES

    def current_stream(self, device: Any = None) -> torch.Stream:
        return torch.accelerator.current_stream(device or torch.device("pretend", self.current_device()))

    def stream(self, stream: torch.Stream) -> torch.Stream:
        return stream

    def synchronize(self, device: Any = None) -> None:
        torch.accelerator.synchronize()

    def get_rng_state(self, device: Any = None) -> torch.Tensor:
        return torch.get_rng_state()

    def set_rng_state(self, state: torch.Tensor, device: Any = None) -> None:
        torch.set_rng_state(state)

    def get_amp_supported_dtype(self) -> list[torch.dtype]:
        return [torch.bfloat16, torch.float16]


def _built() -> Path:
    source, at = Path(__file__).with_name("pretend.cpp"), Path(torch.__file__).parent
    name = hashlib.sha256(source.read_bytes() + torch.__version__.encode()).hexdigest()[:16]
    built = Path(tempfile.gettempdir()) / f"kofn-pretend-{os.getuid()}" / f"{name}.so"
    if not built.exists():
        built.parent.mkdir(mode=0o700, exist_ok=True)
        partial, include = built.with_suffix(f".{os.getpid()}"), at / "include"
        options = [
            "-std=c++20",
            "-O1",
            "-fPIC",
            "-shared",
            f"-D_GLIBCXX_USE_CXX11_ABI={int(torch._C._GLIBCXX_USE_CXX11_ABI)}",
        ]
        folders = [f"-I{include}", f"-I{include}/torch/csrc/api/include", f"-L{at}/lib"]
        command = [COMPILER, *options, *folders, str(source), "-ltorch_cpu", "-lc10", "-o", str(partial)]
        subprocess.run(command, check=True, capture_output=True, text=True)
        partial.rename(built)
    return built

"""Copies between an accelerator's memory and main memory, in which the communicator works.

Values are copied to pinned memory on a separate stream. One thread waits for the end of each copy, and hands the values
over. Means return on another stream. The futures' events order the device's later work after the means, so no other
thread waits for the device. All other modules read tensors by on_host(), a copy that waits.
"""

import threading
from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from queue import SimpleQueue
from typing import Any

import torch

from kofn_host.errors import HostError
from kofn_torch.errors import TorchError

PIECE = 1 << 22
"""The most elements of a digest: the device needs 16 bytes for each element meanwhile."""


class DeviceError(TorchError):
    """A device that is out of memory, or lost."""


def device_of(tensors: dict[str, torch.Tensor]) -> torch.device:
    """Return the device of these tensors. Raise TorchError if they are on several devices, or on a device that cannot
    be staged."""
    first, device = next(((name, tensor.device) for name, tensor in tensors.items()), ("", torch.device("cpu")))
    for name, tensor in tensors.items():
        if tensor.device != device:
            raise TorchError(
                f"{name} must be on {device}, as {first} is, got {tensor.device}: a model on several devices has no"
                " order of copies"
            )
    accelerator = torch.accelerator.current_accelerator()
    if device.type == "mps":
        raise TorchError(f"{first} must be on the cpu, got mps: PyTorch has no streams and no pinned memory there")
    if device.type != "cpu" and (accelerator is None or device.type != accelerator.type):
        raise TorchError(f"{first} must be on the cpu or an accelerator that PyTorch finds, got {device}")
    return device


def on_host(tensor: torch.Tensor) -> torch.Tensor:
    """Return the values in main memory: the tensor itself if it is there, else a copy that waits for its device."""
    return tensor.detach().cpu()


def future_on(device: torch.device) -> Any:
    """Return a future of a value on this device. The device computes the value before it does other work with the
    value."""
    return torch.futures.Future(devices=[] if device.type == "cpu" else [device])


def settle(device: torch.device) -> None:
    """Wait for all work of the device. A thread that reads or writes a training's tensors between two steps calls
    this."""
    if device.type != "cpu":
        torch.accelerator.synchronize(device)


def after_backward(function: Callable[[], object]) -> None:
    """Call a function at the end of the running backward pass, when DDP has its futures' values. In join() no backward
    pass runs, and the function is not called."""
    if torch._C._current_graph_task_id() < 0:
        return
    engine = torch.autograd.Variable._execution_engine
    engine.queue_callback(lambda: engine.queue_callback(function))  # DDP queues its own callback after its last hook


def digests(tensors: Sequence[torch.Tensor]) -> torch.Tensor:
    """Return the tensors' digests, int64, one for each PIECE elements of a tensor. They are computed on the tensors'
    device, and are the same for equal bits.

    A digest is a sum over the elements: the integer of an element's bits, times an odd number that depends on the
    element's place. So a digest does not depend on the order of the sum, and one changed element always changes it.
    """
    with errors_of(tensors[0].device):
        return _digests(tensors)


def _digests(tensors: Sequence[torch.Tensor]) -> torch.Tensor:
    kinds = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64, 16: torch.int64}
    bits = [tensor.detach().contiguous().reshape(-1).view(kinds[tensor.element_size()]) for tensor in tensors]
    odd = 1 - 0x61C8_8646_80B5_83EB * torch.arange(
        min(PIECE, max(flat.numel() for flat in bits)), device=bits[0].device
    )
    odd.bitwise_or_(1)
    return torch.stack([(part.long() * odd[: part.numel()]).sum() for flat in bits for part in flat.split(PIECE)])


@contextmanager
def errors_of(device: torch.device) -> Iterator[None]:
    """Raise DeviceError in place of PyTorch's errors."""
    try:
        yield
    except RuntimeError as error:
        raise DeviceError(f"{device} failed while gradients or parameters were staged: {error}") from error


class Staging:
    """The copies of one device; `failed` is called, in any thread, with the error of a copy or of a function
    that takes values."""

    def __init__(self, device: torch.device, failed: Callable[[HostError], object]) -> None:
        self.device, self._failed = device, failed
        self._out, self._back = torch.Stream(device), torch.Stream(device)
        self._free = dict[Hashable, list[torch.Tensor]]()
        """Pinned buffers for their next use, by key."""
        self._reads = dict[Hashable, torch.Event]()
        """The event after which the device has read the values that receive() copied, by key."""
        self._calls = SimpleQueue[Callable[[], object] | None]()
        self._thread = threading.Thread(target=self._call_all, name="kofn-staging", daemon=True)
        self._thread.start()  # no executor: sessions also close while Python ends

    def send(self, key: Hashable, values: torch.Tensor, taken: Callable[[torch.Tensor], object]) -> None:
        """Have `taken` called with flat values in main memory, which are valid during that call; return at once."""

        def take(host: torch.Tensor) -> None:
            taken(host)
            self.give(key, host)

        self.copy_out(key, values, take, lambda error: None)

    def reduce(self, key: Hashable, values: torch.Tensor, reduce: Callable[[torch.Tensor], Any]) -> Any:
        """Return a future on the device. Its values are those of the future that `reduce` returns, and they replace the
        given values in memory.

        If `reduce` raises a HostError, the future has the given values. The next call with the same key must be ordered
        after the future of this call.
        """
        means = future_on(self.device)

        def take(host: torch.Tensor) -> None:
            reduce(host).add_done_callback(partial(self._copy_back, key, values, host, means))

        def end(error: Exception) -> None:
            if isinstance(error, HostError) and not isinstance(error, DeviceError):
                means.set_result(values)
            else:  # a lost device records no event of a result
                means.set_exception(error)

        self.copy_out(key, values, take, end)
        return means

    def receive(self, key: Hashable, values: torch.Tensor) -> torch.Tensor:
        """Copy flat values from main memory to the device, on the current stream, and return the copy."""
        host, read = self._take(key, values), self._reads.get(key)
        with errors_of(self.device):
            if read is not None and not read.query():
                read.synchronize()
            host.copy_(values)
            found = host.to(self.device, non_blocking=True)
            self._reads[key] = torch.accelerator.current_stream(self.device).record_event()
        self.give(key, host)
        return found

    def copy_out(
        self,
        key: Hashable,
        values: torch.Tensor,
        take: Callable[[torch.Tensor], object],
        end: Callable[[Exception], object],
    ) -> None:
        """Copy values as send() does; but the values in main memory stay valid after `take`, until give(). `end` gets
        the error of the copy or of `take`."""
        host = self._take(key, values)
        with errors_of(self.device):
            self._out.wait_stream(torch.accelerator.current_stream(self.device))
            with self._out:
                host.copy_(values, non_blocking=True)
                copied = self._copied()
        self._calls.put(partial(self._hand_over, values, host, copied, take, end))

    def give(self, key: Hashable, host: torch.Tensor) -> None:
        """Give back the values of copy_out()."""
        self._free[key].append(host)

    def wait(self) -> None:
        """Wait until all values so far are handed over."""
        here = threading.Event()
        self._calls.put(here.set)
        here.wait()

    def close(self) -> None:
        """Wait as wait() does, and end the thread."""
        self._calls.put(None)
        self._thread.join()

    def _call_all(self) -> None:
        while call := self._calls.get():
            call()
            del call  # its tensors must not stay until the next call

    def _take(self, key: Hashable, like: torch.Tensor) -> torch.Tensor:
        """Return a flat pinned buffer."""
        free = self._free.setdefault(key, [])
        while free:
            host = free.pop()
            if (host.numel(), host.dtype) == (like.numel(), like.dtype):
                return host
        try:
            return torch.empty(like.numel(), dtype=like.dtype, pin_memory=True)
        except RuntimeError as error:
            raise TorchError(f"pinned memory must have {like.nbytes} bytes to allocate, got: {error}") from error

    def _hand_over(
        self,
        values: torch.Tensor,  # kept, so that its memory stays until the copy has ended
        host: torch.Tensor,
        copied: torch.Event,
        take: Callable[[torch.Tensor], object],
        end: Callable[[Exception], object],
    ) -> None:
        try:
            with errors_of(self.device):
                copied.synchronize()
            take(host)
        except Exception as error:  # a future that never ends would hang the training
            self._failed(error if isinstance(error, HostError) else TorchError(f"staging failed: {error!r}"))
            end(error)

    def _copy_back(self, key: Hashable, values: torch.Tensor, host: torch.Tensor, means: Any, reduced: Any) -> None:
        try:
            if (found := reduced.value()) is not host:
                host.copy_(found)
            with self._back:  # the values are free: the host has waited for the copy out, which waited for backward
                values.copy_(host, non_blocking=True)
                self.give(key, host)
                means.set_result(values)
        except Exception as error:
            means.set_exception(error)

    def _copied(self) -> torch.Event:
        """Record an event on the current stream; CUDA's own kind of event can be waited for without a busy core."""
        event = torch.cuda.Event(blocking=True) if self.device.type == "cuda" else torch.Event(self.device)
        event.record()
        return event

"""The cost of a gradient between an accelerator and the network; `make accelerator` runs it, in under four minutes.

    python -m bench.accelerator

One process: an iteration with DDP's own all-reduce (NCCL on a device of NVIDIA), with the hook's staging and a network
that takes no time, and with copies that wait.  A step's time is divided: "copy out" until a bucket is in main memory,
"pack" until the network has it, "back" until its means are on the device.  "hidden" is the share of the copies' time by
which a step with staging is shorter than one with copies that wait.  Then 2 and 4 processes share the device in a run
without limits of rate (bench/torch_ddp.py): without a network, by gloo, by the switch.
"""

import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

import torch
import torch.distributed as dist
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel

from examples.torch.gpt import GPT, batch_of, read_text
from kofn_torch.staging import Staging, future_on, on_host, settle

SHAPES = {"10 million": (384, 6), "120 million": (896, 12)}
"""Width and layers of the GPTs, by their number of parameters."""

STEPS, FIRST = 12, 3
"""Steps of a measurement, and how many of them are not measured: DDP rebuilds its buckets in them."""

MISSING = "NO accelerator (torch.accelerator finds none): not shown on a device"


class Timed:
    """A network that takes no time, behind a staging; the times of its parts are added up for each step."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.staging = Staging(device, _raise)
        self.parts = {"copy out": 0.0, "pack": 0.0, "back": 0.0}

    def staged(self, state: Any, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
        handed_s = time.perf_counter()

        def reduce(host: torch.Tensor) -> Any:
            copied_s = time.perf_counter()
            future = torch.futures.Future()
            host.mul_(1.0)  # as the exchange reads and writes it
            packed_s = time.perf_counter()
            future.set_result(host)
            self.parts["copy out"] += copied_s - handed_s
            self.parts["pack"] += packed_s - copied_s
            self.parts["back"] += time.perf_counter() - packed_s
            return future

        return self.staging.reduce(bucket.index(), bucket.buffer(), reduce)

    def waiting(self, state: Any, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
        values, future = bucket.buffer(), future_on(self.device)
        values.copy_(on_host(values).mul_(1.0))
        settle(self.device)
        future.set_result(values)
        return future


def one_process(device: torch.device, shapes: dict[str, tuple[int, int]], steps: int = STEPS) -> list[str]:
    """Return the table's lines for one process."""
    text, characters = read_text()
    lines = [f"{'parameters':12}{'':18}{'step ms':>9}{'copy out':>10}{'pack':>8}{'back':>8}{'hidden':>8}"]
    for name, (width, layers) in shapes.items():
        found = dict[str, float]()
        for way in ("DDP's own", "copies that wait", "staging"):
            timed = Timed(device)
            model = DistributedDataParallel(GPT(characters, width=width, layers=layers).to(device))
            hooks: dict[str, Callable[..., Any]] = {"staging": timed.staged, "copies that wait": timed.waiting}
            if way in hooks:
                model.register_comm_hook(None, hooks[way])
            found[way] = _step_s(model, device, text, timed, steps)
            timed.staging.close()
            sizes = zip(timed.parts.values(), (10, 8, 8), strict=True)
            parts = "".join(f"{1e3 * each / (steps - FIRST):{size}.1f}" for each, size in sizes)
            copies_s = found["copies that wait"] - found["DDP's own"] if way == "staging" else 0.0
            hidden = (found["copies that wait"] - found[way]) / copies_s if copies_s > 0 else 0.0
            more = f"{parts}{hidden:8.0%}" if way == "staging" else ""
            lines.append(f"{name:12}{way:18}{1e3 * found[way]:9.1f}{more}")
    return lines


def _step_s(model: Any, device: torch.device, text: torch.Tensor, timed: Timed, steps: int) -> float:
    """Return the median time of a step; the parts of the steps before those that count are left out."""
    optimizer, generator, spent = torch.optim.SGD(model.parameters(), lr=0.01), torch.Generator().manual_seed(1), []
    for step in range(steps):
        given, wanted = (each.to(device) for each in batch_of(text, generator))
        if step == FIRST:
            timed.parts.update(dict.fromkeys(timed.parts, 0.0))
        settle(device)
        begun_s = time.perf_counter()
        optimizer.zero_grad(set_to_none=False)
        cross_entropy(model(given).flatten(0, 1), wanted.flatten()).backward()
        optimizer.step()
        settle(device)
        spent.append(time.perf_counter() - begun_s)
    return median(spent[FIRST:])


def several_processes(workers: int, shape: tuple[int, int]) -> list[str]:
    """Return what worker 0 of a run says; all of them share the device."""
    with tempfile.TemporaryDirectory() as folder:
        arguments, links = [str(each) for each in (*shape, 3, 3)], Path(folder, "links.json")
        links.write_text(json.dumps(_unshaped(workers)))
        settings = [f"job.workers={workers}", f"torch.arguments={arguments!r}", f"network.topology={str(links)!r}"]
        command = [sys.executable, "-m", "kofn.cli.start", "run", "bench/torch_ddp.toml", "--out", f"{folder}/run"]
        ended = subprocess.run(
            [*command, *(part for each in settings for part in ("--set", each))],
            capture_output=True,
            text=True,
            check=False,
        )
        if ended.returncode:
            return [f"{workers} processes: NO, the run failed: {ended.stdout[-300:]}{ended.stderr[-300:]}"]
        return (Path(folder) / "run/all/logs/worker-0.log").read_text().splitlines()[-4:]


def _unshaped(workers: int) -> dict[str, Any]:
    """Return a topology whose links have no rate."""
    numbers = range(1, workers + 1)
    hosts = {f"h{each}": {"ip": f"10.0.0.{each}/24", "mac": f"08:00:00:00:00:{each:02x}"} for each in numbers}
    return {"hosts": hosts, "switches": {"s1": {}}, "links": [[f"h{each}", f"s1-p{each}"] for each in numbers]}


def _raise(error: Exception) -> None:
    raise error


def main() -> None:
    device = torch.accelerator.current_accelerator(check_available=True)
    if device is None:
        print(MISSING)
        return
    device = torch.device(device.type, 0)
    dist.init_process_group(rank=0, world_size=1, store=dist.HashStore())
    print(f"{device}, PyTorch {torch.__version__}")
    print(*one_process(device, SHAPES), sep="\n")
    dist.destroy_process_group()
    for workers in (2, 4):
        for shape in SHAPES.values():
            print(*several_processes(workers, shape), sep="\n", flush=True)


if __name__ == "__main__":
    main()

"""Iterations of DDP with gloo's all-reduce and with the switch, side by side over the same links.

    kofn run bench/torch_ddp.toml --set network.link_mbps=200 && cat runs/latest/all/logs/worker-0.log

Each worker trains a GPT by turns: without any network, by gloo, by the switch.  A line says for each the median time of
an iteration, how many times that is the bound (the computation, or one gradient's bytes at the link's rate, whichever
takes longer), and what processor time a worker took.  With --set network.topology=unshaped.json links have no rate and
nothing is paced: then it is what each way costs.  Arguments: width and layers of the GPT, turns, steps a turn.  All
workers share the machine's accelerator, if there is one.
"""

import os
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from pathlib import Path
from statistics import median
from typing import Any

import torch
import torch.distributed as dist
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel

sys.path.append(str(Path(__file__).parents[1]))

import kofn_torch
from examples.torch.gpt import GPT, batch_of, read_text
from kofn_common.config.schema import Config
from kofn_torch.staging import settle

DEVICE = torch.accelerator.current_accelerator(check_available=True) or torch.device("cpu")

Spent = tuple[float, float]
"""Seconds of an iteration: wall time, and processor time of all threads together."""


def trainer(characters: int, shape: Sequence[int]) -> DistributedDataParallel:
    torch.manual_seed(1)
    model = GPT(characters, width=shape[0], layers=shape[1]).to(DEVICE)
    return DistributedDataParallel(model, gradient_as_bucket_view=True)


def steps(model: Any, count: int, text: torch.Tensor, *, alone: bool) -> list[Spent]:
    optimizer, generator = torch.optim.SGD(model.parameters(), lr=0.01), torch.Generator().manual_seed(1)
    spent = []
    for _ in range(count):
        given, wanted = (each[:1].to(DEVICE) for each in batch_of(text, generator))  # little computation
        begun_s, worked_s = time.perf_counter(), time.process_time()
        with model.no_sync() if alone else nullcontext():
            cross_entropy(model(given).flatten(0, 1), wanted.flatten()).backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=False)
        settle(DEVICE)
        spent.append((time.perf_counter() - begun_s, time.process_time() - worked_s))
    return spent


def words(way: str, spent: Sequence[Spent], bound_s: float) -> str:
    clock_s, processor_s = (median(each) for each in zip(*spent, strict=True))
    return f"{way:18}{1e3 * clock_s:6.0f} ms, {clock_s / bound_s:5.2f} x bound, processors {1e3 * processor_s:4.0f} ms"


def main(width: int = 384, layers: int = 6, turns: int = 3, count: int = 3) -> None:
    dist.init_process_group("gloo")
    text, characters = read_text()
    by_gloo, by_switch = (trainer(characters, (width, layers)) for _ in range(2))
    elements = sum(each.numel() for each in by_gloo.parameters())
    kofn_torch.ddp_hook(by_switch)
    for model in (by_switch, by_gloo):
        steps(model, 2, text, alone=False)  # DDP rebuilds its buckets after the first
    ways: dict[str, Callable[[], list[Spent]]] = {
        "computation alone": lambda: steps(by_gloo, count, text, alone=True),
        "gloo": lambda: steps(by_gloo, count, text, alone=False),
        "switch": lambda: steps(by_switch, count, text, alone=False),
    }
    spent: dict[str, list[Spent]] = {way: [] for way in ways}
    for _ in range(turns):
        for way, run in ways.items():
            dist.barrier()
            spent[way] += run()
    mbps = Config.load(Path(os.environ["KOFN_CONFIG"])).pace_mbps() or float("inf")
    bound_s = max(median(clock_s for clock_s, _ in spent["computation alone"]), elements * 32e-6 / mbps)
    links = "links without a rate" if mbps == float("inf") else f"links of {mbps:g} Mbit/s"
    title = f"{elements:,} elements, {dist.get_world_size()} workers, {links}"
    said = [words(way, each, bound_s) for way, each in spent.items()]
    print("\n".join([f"{title}: bound {1e3 * bound_s:.0f} ms", *said]), flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))

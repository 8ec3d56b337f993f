"""Layers as on an accelerator: each pass is a wait of a given length, each gradient is random.

A wait takes no processor time, so it slows nothing down.  Passes are queued as on an accelerator: a pass begins once it
is submitted and the previous pass has ended.  All passes of a backward pass are submitted together.  The worker waits
only for weight gradients, which it sends.
"""

import time
from collections.abc import Sequence
from itertools import accumulate

import numpy as np

from kofn_common.config.errors import ConfigError
from kofn_common.config.schedule import LayerSection
from kofn_common.config.schema import Config
from kofn_host.arrays import Floats
from kofn_host.schedule.layers import Layer, LayerTimes
from kofn_host.schedule.orders import Step
from kofn_host.workload.layered import LayeredModel, LayeredWorkload


def layers_of(sections: Sequence[LayerSection]) -> list[Layer]:
    """Return the layers of [[layer]]; the name of an unnamed layer is its number, from 1."""
    ends = accumulate(section.elements for section in sections)
    return [
        Layer(section.name or str(number), end - section.elements, end)
        for number, (section, end) in enumerate(zip(sections, ends, strict=True), 1)
    ]


def times_of(sections: Sequence[LayerSection]) -> LayerTimes:
    """Return the times of [[layer]]."""
    kinds = ("forward", "error", "weight")
    return LayerTimes(*([getattr(section, f"{kind}_ms") / 1000 for section in sections] for kind in kinds))


class Waits(LayeredModel):
    """A model of the layers in [[layer]]; gradients depend on `seed` and the batch."""

    def __init__(self, config: Config, seed: tuple[int, int]) -> None:
        self._sections = config.layer
        self.layers = layers_of(config.layer)
        self.parameters: Floats = np.zeros(self.layers[-1].end, np.float32)
        self._random = np.random.default_rng(seed).normal(0, 0.01, self.parameters.size).astype(np.float32)
        self._factor = np.float32(1)
        self._free_s = 0.0  # the time when all submitted passes have ended
        self._queue: dict[Step, tuple[float, float]] = {}  # submitted steps whose result was not requested yet

    def begin(self, iteration: int, batch: int) -> None:
        self._factor = np.float32(1 + (iteration + batch) % 7)

    def forward(self, layer: int) -> None:
        self.span_s = self._submit(self._sections[layer].forward_ms)

    def loss(self) -> None:
        """Return None: there is no loss."""

    def expect(self, steps: Sequence[Step]) -> None:
        self._queue = {step: self._submit(self._takes_ms(step)) for step in steps}

    def error(self, layer: int) -> None:
        self._submitted(Step("error", layer))

    def weight(self, layer: int) -> Floats:
        _, end_s = self._submitted(Step("weight", layer))
        part = self._random[self.layers[layer].begin : self.layers[layer].end] * self._factor
        time.sleep(max(0.0, end_s - time.monotonic()))
        return part

    def _submitted(self, step: Step) -> tuple[float, float]:
        self.span_s = span_s = self._queue.pop(step, None) or self._submit(self._takes_ms(step))
        return span_s

    def _takes_ms(self, step: Step) -> float:
        section = self._sections[step.layer]
        return section.error_ms if step.kind == "error" else section.weight_ms

    def _submit(self, takes_ms: float) -> tuple[float, float]:
        """Submit a pass; return the times of its begin and its end."""
        begin_s = max(self._free_s, time.monotonic())
        self._free_s = begin_s + takes_ms / 1000
        return begin_s, self._free_s


class Accelerator(LayeredWorkload):
    """A worker's workload of waits, without evaluation."""

    metric = None
    model: Waits

    def __init__(self, config: Config, rank: int) -> None:
        self.model = Waits(config, (config.run.seed, rank))
        self.parameters = self.model.parameters

    def begin(self, iteration: int, batch: int = 0) -> None:
        self.model.begin(iteration, batch)

    @classmethod
    def check(cls, config: Config) -> None:
        if not config.layer:
            raise ConfigError("one [[layer]] or more must be given with model.workload = 'accelerator', got none")


accelerator = Accelerator

"""The time that gradients take in links and switches, and when iterations end, for `--scale`."""

from dataclasses import dataclass, field

import numpy as np

from kofn.sim.network import LATENCY_S
from kofn_common.config.interventions import LinkSection
from kofn_common.config.schema import Config
from kofn_controller.estimate.measurements import FloatArray
from kofn_controller.policy.process import IntArray

MEGABIT = 8.0
"""The number of megabits in a megabyte."""


@dataclass(slots=True, kw_only=True)
class Transfers:
    """The transfers of whole gradients from workers to switch; results come back while other blocks still leave."""

    config: Config
    _extra_s: FloatArray = field(init=False)  # (workers,)
    _coming: list[LinkSection] = field(init=False)  # future changes of links; the next change is the last entry

    def __post_init__(self) -> None:
        self._extra_s = np.zeros(self.config.job.workers)
        self._coming = sorted(self.config.link, key=lambda link: link.at_iteration)[::-1]

    @property
    def overhead_s(self) -> float:
        """The seconds of an iteration after the k-th gradient: the network's time, and scale.overhead_ms."""
        return self.way_s + self.config.scale.overhead_ms / 1000

    @property
    def way_s(self) -> float:
        """The seconds of a transfer at full rate, and of the links' latency in both directions."""
        config, levels = self.config, 1 if self.config.job.racks == 1 else 2
        up_s = self._transfer_s(config.network.uplink_mbps) if levels > 1 else 0.0
        least_s = max(self._transfer_s(config.network.link_mbps), up_s)  # blocks leave one by one, so levels overlap
        return least_s + 2 * levels * LATENCY_S

    def extra_s(self, ended: int) -> FloatArray:
        """Return by how many seconds the workers' transfers exceed a transfer at full rate (workers,), after `ended`
        iterations."""
        while self._coming and self._coming[-1].at_iteration <= ended:
            link = self._coming.pop()
            least_s = self._transfer_s(self.config.network.link_mbps)
            self._extra_s[list(link.workers)] = self._transfer_s(link.mbps) - least_s
        return self._extra_s

    def _transfer_s(self, mbps: float | None) -> float:
        return self.config.scale.gradient_mb * MEGABIT / mbps if mbps else 0.0


def ends(config: Config, ks: IntArray, points_s: FloatArray) -> FloatArray:
    """Return when iterations end (seeds, 1), from the times at which gradients arrive (seeds, ...) and each seed's k.

    In a tree an iteration ends with the k-th gradient, as at a single switch, because leaves send their sums when the
    root lacks few gradients. With scale.rack_share an iteration ends when this share of the racks is complete. A rack
    is complete when it has its part of k: k divided by the number of racks that must be complete, rounded up, but at
    most the number of its workers.
    """
    racks = config.job.racks
    if config.scale.rack_share:
        needed = int(np.ceil(config.scale.rack_share * racks))
        of_rack = np.minimum(-(-ks // needed), config.job.workers // racks)
        in_racks = points_s.reshape(len(points_s), -1, racks, config.job.workers // racks).swapaxes(1, 2)
        closed_s = np.stack(
            [
                np.partition(row.reshape(racks, -1), k - 1, axis=1)[:, k - 1]
                for row, k in zip(in_racks, of_rack.tolist(), strict=True)
            ]
        )
        return np.partition(closed_s, needed - 1, axis=1)[:, needed - 1, None]
    if len(set(ks.tolist())) == 1:
        return np.partition(points_s, ks[0] - 1, axis=1)[:, ks[0] - 1, None]
    return np.stack([np.partition(row, k - 1)[k - 1, None] for row, k in zip(points_s, ks.tolist(), strict=True)])

"""The TOML file's [[shard]]: classes of images that one worker alone holds."""

from collections.abc import Sequence
from typing import Annotated

from msgspec import Meta

from kofn_common.config.errors import ConfigError
from kofn_common.config.job import JobSection
from kofn_common.config.model import ModelSection
from kofn_common.config.section import Section

CLASSES = 10
"""The number of classes of images: the ten digits."""


class ShardSection(Section, frozen=True):
    """One worker that alone holds all training images of some classes, and no others."""

    worker: Annotated[int, Meta(ge=0)]
    classes: tuple[Annotated[int, Meta(ge=0, lt=CLASSES)], ...]

    def check(self, owners: dict[int, int]) -> None:
        """Add its classes to those that have an owner already."""
        if not self.classes:
            raise ConfigError(f"shard.classes of worker {self.worker} is empty: one or more classes are needed")
        for label in self.classes:
            if label in owners:
                raise ConfigError(
                    f"shard.classes of worker {self.worker} has {label}, which worker {owners[label]} holds:"
                    " each class can be given once"
                )
            owners[label] = self.worker


def check_shards(shards: Sequence[ShardSection], job: JobSection, model: ModelSection) -> None:
    """Check: one shard a worker, one owner a class; the other workers have the other classes."""
    if shards and model.replay is not None:
        raise ConfigError("shard and model.replay must not both be given: a replay reads no image")
    if shards and model.dirichlet is not None:
        raise ConfigError("shard and model.dirichlet must not both be given: each deals the images out")
    owners: dict[int, int] = {}
    sharing = set(range(job.workers))
    for shard in shards:
        job.check_ranks((shard.worker,), "shard.worker")
        if shard.worker not in sharing:
            raise ConfigError(f"a worker must have one shard, got two for shard.worker {shard.worker}")
        sharing.remove(shard.worker)
        shard.check(owners)
    left = [label for label in range(CLASSES) if label not in owners]
    if left and not sharing:
        raise ConfigError(f"shard leaves no worker for the classes {left}: give them to one, or leave one without")
    if sharing and not left:
        raise ConfigError(f"shard leaves no class for the workers {sorted(sharing)}: leave one, or give them some")

"""In-network gradient aggregation from the fastest k of n workers.

Each part is a separate distribution (docs/explanation/architecture.md); the distribution `kofn` puts them together.

>>> import kofn
>>> config = kofn.Config.parse("[job]\\nworkers = 8")
>>> config.job.workers
8
>>> kofn.Config.parse("[job]\\nworkers = 65")
Traceback (most recent call last):
kofn_common.config.errors.ConfigError: job.workers must be 1 to 64 with job.racks = 1, got 65
"""

from kofn_common.exports import lazy

__getattr__, __dir__, __all__ = lazy(__name__, __file__)

"""PyTorch through the switch: a communication hook for DistributedDataParallel, an elastic optimizer, a process
group and a sharded optimizer (ZeRO).

The package needs kofn[torch], and no other package of kofn imports it. docs/howto/pytorch.md shows its use.
"""

from kofn_common import check_name
from kofn_torch.attach import ddp_hook, elastic, schedule
from kofn_torch.errors import TorchError
from kofn_torch.process_group import SwitchGroup, follow, use
from kofn_torch.scheduled import ScheduledSession
from kofn_torch.session import Session
from kofn_torch.zero import ShardedOptimizer, zero

check_name(__name__)

__all__ = [
    "ScheduledSession",
    "Session",
    "ShardedOptimizer",
    "SwitchGroup",
    "TorchError",
    "ddp_hook",
    "elastic",
    "follow",
    "schedule",
    "use",
    "zero",
]

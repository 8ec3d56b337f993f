"""PyTorch through the switch: a communication hook for DistributedDataParallel, and an optimizer that is elastic.

Needs kofn[torch]; nothing else of kofn imports this.  How to: docs/howto/pytorch.md.
"""

from kofn.torch.attach import ddp_hook, elastic
from kofn.torch.errors import TorchError
from kofn.torch.session import Session

__all__ = ["Session", "TorchError", "ddp_hook", "elastic"]

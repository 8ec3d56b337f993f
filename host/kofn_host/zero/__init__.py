"""ZeRO: every worker keeps a shard of optimizer state, gradients and parameters; 1-bit Adam and 1-bit LAMB.

ZeRO: S. Rajbhandari et al., SC 2020.  1-bit Adam: H. Tang et al., ICML 2021.  1-bit LAMB: C. Li et al., HiPC 2022.
This package uses NumPy and a Communicator, but neither PyTorch nor packets.
"""

from kofn_common.exports import lazy

__getattr__, __dir__, __all__ = lazy(__name__, __file__)

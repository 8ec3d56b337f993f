"""Errors between a training in PyTorch and its job."""

from kofn_host.errors import ScriptError

TorchError = ScriptError
"""A model, an optimizer, a call or an environment that kofn_torch cannot work with; a worker's place raises it too."""

"""Errors between a training in PyTorch and its job."""

from collections.abc import Iterator
from contextlib import contextmanager

from kofn_host.errors import HostError, PlaceError


class TorchError(HostError):
    """A model, an optimizer, a call or an environment that kofn_torch cannot work with."""


@contextmanager
def place_errors() -> Iterator[None]:
    """Raise TorchError if the process cannot take its place in the job."""
    try:
        yield
    except PlaceError as error:
        raise TorchError(str(error)) from error

"""The data of the training."""

import hashlib

from kofn_host.workload.model import load_digits

REFERENCE = "f6d9e39f37dc45d327f6db33428ee58970ccceabb2535a5c179de35886b70443"
"""SHA-256 of sklearn.datasets.load_digits(), scikit-learn 1.9.1: data as float64, then target as int64."""


def test_digits_equal_scikit_learns() -> None:
    pixels, digits = load_digits()
    assert (pixels.shape, pixels.dtype, digits.shape, digits.dtype) == ((1797, 64), "float64", (1797,), "int64")
    assert hashlib.sha256(pixels.tobytes() + digits.tobytes()).hexdigest() == REFERENCE

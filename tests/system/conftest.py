"""The certificates of the tests of kofn_common.rpc."""

from tests.common.rpc.conftest import foreign, own

__all__ = ["foreign", "own"]

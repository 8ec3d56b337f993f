"""Tests on an accelerator: the pretend one, or with `make accelerator` that of this machine."""

import os

collect_ignore_glob = [] if os.environ.get("KOFN_TEST_DEVICE") else ["test_*.py"]

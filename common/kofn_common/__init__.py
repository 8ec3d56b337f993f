"""The agreements of the distributions of kofn: configuration, messages, packets, the files of a run."""

import os

os.environ.setdefault("GRPC_VERBOSITY", "NONE")  # read when gRPC is imported; kofn reports each failure once


def check_name(package: str) -> None:
    """Refuse a package that is imported from a checkout's root as FOLDER.PACKAGE: its classes would exist twice."""
    if "." in package:
        raise ImportError(f"{package.rpartition('.')[2]} must be imported by this name, got {package}")


check_name(__name__)

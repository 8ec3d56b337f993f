"""`kofn compare`: carry out examples/experiments/compare.toml of the checkout."""

import sys
from pathlib import Path
from typing import Any

import click

import kofn
from kofn.experiments.experiment_command import experiment_options, run_file
from kofn.run.ending import ending
from kofn_common.config.errors import ConfigError

FILE = Path(kofn.__file__).parents[1] / "examples" / "experiments" / "compare.toml"

EXAMPLES = """
\b
Examples:
  kofn compare --dry-run                         the trainings, and how long they take at most
  kofn compare                                   everything: hours; the same command continues after Ctrl-C
  kofn compare --only model=1m --only straggler=none --only job.workers=4 --only link=100-mbps --seeds 1
  kofn compare --only contender=ring,full-int32 --only model=10m --seeds 1
  kofn compare --set model.replay=my-gradients   your own gradients: a folder of .npy files, float32, all of one size
  kofn compare --set network.target=bmv2         on simple_switch_grpc
  kofn experiment examples/experiments/compare-torch.toml       a GPT in PyTorch's DistributedDataParallel
  kofn experiment examples/experiments/compare-switches.toml    the bytes of the embedded switch and of BMv2

\b
Exit codes: as of kofn experiment.
"""


@click.command(epilog=EXAMPLES)
@experiment_options
def command(**options: Any) -> None:
    """Compare all methods to reduce gradients, with the same network, model, seeds and stragglers.

    The command is short for `kofn experiment examples/experiments/compare.toml`, and needs a checkout.

    Outside the network: server is a parameter server behind the switch, ring a ring of the workers over TCP, gloo
    PyTorch's all-reduce, mpi Open MPI's; gloo and mpi are left out where they are not installed. In the network: full
    waits for all workers, fixed for all but one, adaptive for as many as the controller chooses.

    digits is trained to its target accuracy. For 1m and 10m (only if --only names it) gradients are replayed, without
    computing, so that an iteration is an all-reduce and its consequences.
    """
    with ending("compare"):
        if not FILE.exists():
            raise ConfigError(f"{FILE} must exist, got no such file: kofn compare needs a checkout of kofn")
        code = run_file(FILE, **options)
    sys.exit(code)

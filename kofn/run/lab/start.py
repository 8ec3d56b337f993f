"""The start of a run's network in a laboratory: connections, the run's files on each machine, then the network."""

from collections.abc import Iterator, Sequence
from pathlib import Path

from kofn.run.lab.checkout import Checkout
from kofn.run.lab.lab_file import Lab
from kofn.run.lab.machine import ConnectedMachine
from kofn.run.lab.network import LabNetwork
from kofn_common.config.schema import Config
from kofn_common.results.folder import RunFolder
from kofn_common.rpc.names import AUTHORITY, CONTROLLER, token_name, worker_name


async def start_network(
    lab: Lab, folder: RunFolder, configs: Sequence[Config], certificates: Path | None
) -> LabNetwork:
    """Connect to the machines, put the run's files there, and make the network."""
    settings, placed, checkout = configs[0].network, lab.placed(configs), Checkout.own()
    given = [path for path in _given(configs) if not checkout.covers(path)]
    network = await LabNetwork.connect(placed, checkout, folder.path, settings)
    try:
        for machine in network.machines.values():
            for number, path in enumerate(given):
                await machine.give(path, number)
            await _put_files(machine, placed.on(machine.described), folder, configs, certificates)
        await network.make(
            folder.topology,
            management=settings.management,
            coalesced=settings.coalesced,
            jobs=[config.job for config in configs],
        )
    except BaseException:
        await network.stop()
        raise
    return network


def _given(configs: Sequence[Config]) -> list[Path]:
    """Return the files and folders of the user that configurations name, each once."""
    named = [
        path
        for config in configs
        for path in (
            config.job.modules,
            config.model.replay,
            config.model.trace,
            config.torch.script and Path(config.torch.script).parent,
        )
        if path
    ]
    return list(dict.fromkeys(Path(path).resolve() for path in named))


async def _put_files(
    machine: ConnectedMachine,
    nodes: Sequence[str],
    folder: RunFolder,
    configs: Sequence[Config],
    certificates: Path | None,
) -> None:
    """Put the files that processes of these nodes read into the run's folder on a machine."""
    await machine.put(folder.topology, folder.topology.read_bytes())
    for job in folder.jobs:
        await machine.put_text(job.effective)
    for name in _credentials(nodes, configs) if certificates else ():
        assert certificates is not None
        await machine.put(certificates / name, (certificates / name).read_bytes())


def _credentials(nodes: Sequence[str], configs: Sequence[Config]) -> Iterator[str]:
    """Yield the names of certificates, keys and tokens that processes of these nodes show."""
    yield AUTHORITY
    names, first = [CONTROLLER] if {"s0", "s1"} & {*nodes} else [], 1
    for config in configs:
        yield token_name(config.job.id)
        names += [worker_name(config.job.id, rank) for rank in range(config.job.workers) if f"h{first + rank}" in nodes]
        first += config.job.workers
    for name in names:
        yield f"{name}.pem"
        yield f"{name}.key"

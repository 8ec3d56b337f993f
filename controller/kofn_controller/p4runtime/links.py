"""Makes the connections to all switches of a network."""

from collections.abc import Sequence

from kofn_controller.errors import StartError
from kofn_controller.p4runtime.data_plane import DataPlane
from kofn_controller.p4runtime.program import SwitchCredentials
from kofn_controller.p4runtime.roles import roles_of
from kofn_controller.p4runtime.slots import JobSlots, LeafSlots, Slots
from kofn_controller.p4runtime.switch_link import SwitchLink
from kofn_controller.p4runtime.topology import PortMap


def make_links(
    topology: PortMap,
    jobs: Sequence[Slots],
    *,
    addresses: Sequence[str],
    device_id: int,
    plane: DataPlane,
    credentials: SwitchCredentials = None,
) -> list[SwitchLink]:
    """Return the link to the only switch, or the links of a tree: to the root, then to each leaf by rack.

    `addresses` and the device ids, from `device_id` on, have this order. StartError for a wrong number of addresses.
    """
    for slots in jobs:
        slots.leaves = [LeafSlots(root=slots, rack=rack) for rack in range(len(topology.uplinks))]
    by_switch: list[Sequence[JobSlots]] = [jobs]
    by_switch += [[slots.leaves[rack] for slots in jobs] for rack in range(len(topology.uplinks))]
    if len(addresses) != len(by_switch):
        raise StartError(
            f"--p4runtime must be given {len(by_switch)} times, once for each switch of the topology, got "
            f"{', '.join(addresses)}"
        )
    return [
        SwitchLink(
            address=address,
            device_id=device_id + number,
            plane=plane,
            jobs=at_switch,
            role=role,
            credentials=credentials,
        )
        for number, (address, at_switch, role) in enumerate(zip(addresses, by_switch, roles_of(topology), strict=True))
    ]

"""The ports of this node as others outside have to dial them: those that the router has opened, or
otherwise the ports that this node listens on."""

from __future__ import annotations

from dataclasses import dataclass

from p2ptrain.node.state.context import Context
from p2ptrain.peers.reach_verdict import OpenedPorts, OwnPlace


@dataclass(frozen=True, slots=True)
class OutsidePorts:
    """The ports to dial from outside. `opened` is None unless the router has opened both ports."""

    control: int
    data: int
    opened: OpenedPorts | None = None


def outside_ports(context: Context, place: OwnPlace) -> OutsidePorts:
    """Return the ports at which others can reach this node, if they can at all. Only the router
    says that it has opened them, so members have to try them first."""
    found = {each.internal_port: each for each in context.port_mappings.open_ports(4)}
    control, data = found.get(place.control_port), found.get(place.data_port)
    ports = OutsidePorts(
        control.port if control else place.control_port, data.port if data else place.data_port
    )
    if control is None or data is None:
        return ports
    every_s = min(control.renewed_every_s, data.renewed_every_s)
    opened = OpenedPorts(str(data.protocol), ports.control, ports.data, every_s)
    return OutsidePorts(ports.control, ports.data, opened)

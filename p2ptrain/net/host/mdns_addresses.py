"""Tell the local network, by mDNS, addresses at which it can dial this node.

libp2p 0.8.1 announces the addresses that it is bound to. For a node that listens at all addresses
of its machine these are 0.0.0.0 and ::, which nobody can dial.
"""

from __future__ import annotations

from typing import Any

from multiaddr import Multiaddr

from p2ptrain.address_group import is_this_machine
from p2ptrain.net.addresses import parse
from p2ptrain.net.listening import dialable


def announce_dialable_addresses(host: Any) -> None:
    """Let mDNS announce such addresses when `host` starts."""
    host.mDNS.broadcaster.host = DialableAddresses(host)


class DialableAddresses:
    """Takes the place of the host in libp2p's mDNS, which asks it for its addresses."""

    def __init__(self, host: Any) -> None:
        self._host = host

    def get_transport_addrs(self) -> list[Multiaddr]:
        """Return the addresses of this machine in its networks. Return its loopback addresses only
        if it has no others: without any, libp2p would announce a port that it made up."""
        here = dialable([parse(str(each)) for each in self._host.get_transport_addrs()])
        far = [each for each in here if not is_this_machine(each.host)]
        return [Multiaddr(each.transport) for each in far or here]

"""Warn if others learn this node's address from --announce, but cannot reach its data plane."""

from __future__ import annotations

from p2ptrain.net.addresses import Address, parse
from p2ptrain.net.scopes import AddressScope, scope_of
from p2ptrain.node.gossip.own_endpoint import own_endpoint
from p2ptrain.node.state.context import Context
from p2ptrain.observe.cautions import Caution

WARNING = "data-address"


def warn_of_data_address(context: Context) -> None:
    """Show the warning that --announce makes the control plane known outside, but not the data
    plane, or clear it. An announced IP address is used for both; a name is not."""
    announced = [scope_of(parse(text)) for text in context.config.announce]
    outside = any(scope in (AddressScope.NAME, AddressScope.PUBLIC) for scope in announced)
    endpoint = own_endpoint(context)
    address = Address("ip6" if ":" in endpoint.host else "ip4", endpoint.host, endpoint.port)
    if outside and (scope := scope_of(address)).code:
        context.alerts.show(
            WARNING,
            Caution(
                "ADDR-DATA-PRIVATE",
                f"peers elsewhere learn this node's address from --announce, but its address for "
                f"bulk data, {endpoint.host}:{endpoint.port}, is {scope.words}",
                "add --data-announce HOST:PORT, the IP address and port at which they reach this "
                "node for bulk data",
            ),
        )
    else:
        context.alerts.clear(WARNING)

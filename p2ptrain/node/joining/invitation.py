"""Print the command with which other peers join, and warn if the address in it cannot be reached
from elsewhere.

Behind a router, and on most rented machines, a node only knows its private addresses. It does not
ask the router for the public address, so it warns the user and says what to do.
"""

from __future__ import annotations

from collections.abc import Sequence

from p2ptrain.net.addresses import parse
from p2ptrain.net.scopes import AddressScope, scope_of
from p2ptrain.node.joining.find_run import PrintLine
from p2ptrain.node.state.context import Context
from p2ptrain.observe.cautions import Caution

WARNING = "address"


def invite(context: Context, print_line: PrintLine) -> None:
    """Print how other peers can take part. If the printed address cannot work for peers elsewhere,
    show a warning."""
    if not (addresses := context.network.addresses()):
        return
    best = best_of(addresses)
    print_line(f"others can take part with: p2ptrain node --bootstrap {best}")
    if caution := caution_about(best):
        context.alerts.show(WARNING, caution)


def best_of(addresses: Sequence[str]) -> str:
    """Return the address that most peers can reach: the first public one, otherwise the first of a
    local network, otherwise the first loopback address."""

    def near(text: str) -> int:
        scope = scope_of(parse(text))
        return 2 if scope is AddressScope.LOOPBACK else int(bool(scope.code))

    return min(addresses, key=near)


def caution_about(text: str) -> Caution | None:
    address = parse(text)
    scope = scope_of(address)
    if not scope.code:
        return None
    return Caution(
        scope.code,
        f"the address for other peers, {address.transport}, is {scope.words}",
        "for peers elsewhere, start this node with --announce "
        f"/ip4/PUBLIC-ADDRESS/tcp/{address.port}, an address at which they can dial it",
    )

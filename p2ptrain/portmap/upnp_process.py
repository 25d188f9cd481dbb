"""`python -m p2ptrain.portmap.upnp_process QUESTION`: ask the router by UPnP, in its own process.

miniupnpc is C code that parses XML from the local network, and it may wait for a slow device for
ever. In a process of its own, it can crash or be killed without harm to the node. The question and
the answer are JSON; `upnp` makes the one and checks the other.

Mappings of other machines and of other programs are left alone: many routers would silently
overwrite them.
"""

from __future__ import annotations

import json
import sys
from typing import Any

DESCRIPTION = "p2ptrain"
"""The name under which a mapping appears on the router's pages."""

OTHER_PORTS = (0, 1000, 2000, 3000)
"""Added to the wished external port, one after the other, while another machine holds the port."""

FOR_EVER = "OnlyPermanentLeasesSupported"
TAKEN = "ConflictInMappingEntry"
DENIED = "Action not authorized"
"""The names of miniupnpc for the UPnP errors 725, 718 and 606."""


def open_port(router: Any, internal: int, wished: int, lifetime_s: int) -> dict[str, object]:
    """Open a port, and return the external address and port."""
    address = router.externalipaddress()
    if address in ("", "0.0.0.0"):
        return {"refused": ["no address", "it has no connection to the internet, or no address"]}
    for step in OTHER_PORTS:
        external = 1024 + (wished + step - 1024) % (65536 - 1024)
        holder = router.getspecificportmapping(external, "TCP")
        if holder is not None and tuple(holder[:2]) != (router.lanaddr, internal):
            continue
        try:
            add(router, internal, external, lifetime_s)
        except Exception as exc:
            if str(exc) != TAKEN:
                raise
            continue
        return {"granted": [address, external]}
    return {"refused": ["temporary", "other machines hold the external ports that were tried"]}


def add(router: Any, internal: int, external: int, lifetime_s: int) -> None:
    """Add a mapping, without an end if the router has no other kind."""
    arguments = external, "TCP", router.lanaddr, internal, DESCRIPTION, ""
    try:
        router.addportmapping(*arguments, lifetime_s)
    except Exception as exc:
        if str(exc) != FOR_EVER:
            raise
        router.addportmapping(*arguments, 0)


def close_port(router: Any, internal: int, external: int) -> dict[str, object]:
    """Close a port unless the router has given it to somebody else in the meantime."""
    holder = router.getspecificportmapping(external, "TCP")
    if holder is not None and tuple(holder[:2]) == (router.lanaddr, internal):
        router.deleteportmapping(external, "TCP")
    return {"closed": True}


def check(router: Any, external_ports: list[int]) -> dict[str, object]:
    """Return the external address, and whether all ports still lead to this machine."""
    holders = [router.getspecificportmapping(port, "TCP") for port in external_ports]
    mapped = all(each is not None and each[0] == router.lanaddr for each in holders)
    return {"checked": [router.externalipaddress(), mapped]}


def answer(question: dict[str, Any]) -> dict[str, object]:
    """Return the answer to a question of `upnp`."""
    try:
        import miniupnpc
    except ImportError:
        return {"refused": ["unsupported", "the package miniupnpc is not installed"]}
    router = miniupnpc.UPnP()
    try:
        router.selectigd(question["url"])
        match question["do"]:
            case "open":
                return open_port(
                    router, question["internal"], question["external"], question["lifetime_s"]
                )
            case "close":
                return close_port(router, question["internal"], question["external"])
            case _:
                return check(router, question["ports"])
    except Exception as exc:  # miniupnpc raises the base class for each fault of the router.
        kind = "denied" if str(exc) == DENIED else "temporary"
        return {"refused": [kind, f"it answers {str(exc)[:100]!r}"]}


if __name__ == "__main__":
    sys.stdout.write(json.dumps(answer(json.loads(sys.argv[1]))))

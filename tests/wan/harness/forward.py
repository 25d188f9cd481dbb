"""Forward ports on the router of an emulated node, as its user would do in the router's settings.

    ip netns exec wan4 python -m tests.wan.harness.forward 4201 4202      forward these ports
    ip netns exec wan4 python -m tests.wan.harness.forward --end 4201     no longer forward this one

The node must be behind a NAT of the kind /pmp. The ports inside and outside are the same. The
node itself does not know of it.
"""

from __future__ import annotations

import argparse
import sys

from p2ptrain.portmap import (
    NONCE_BYTES,
    Closed,
    Granted,
    Interruption,
    MapRequest,
    NoGateway,
    Protocol,
    Router,
    UnmapRequest,
    find_gateway,
)

LIFETIME_S = 7200
NONCE = bytes(NONCE_BYTES)


def change(router: Router, port: int, *, end: bool) -> str:
    """Forward `port`, or end that. Return why it did not work; "" if it did."""
    request = (
        UnmapRequest(Protocol.NAT_PMP, port, port, NONCE)
        if end
        else MapRequest(Protocol.NAT_PMP, port, port, LIFETIME_S, NONCE)
    )
    with Interruption() as interruption:
        reply = router.ask(request, interruption)
    if isinstance(reply, Closed) or (isinstance(reply, Granted) and reply.port == port):
        return ""
    return f"the router did not change port {port}: {reply}"


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.wan.harness.forward")
    parser.add_argument("ports", nargs="+", type=int)
    parser.add_argument("--end", action="store_true")
    given = parser.parse_args()
    gateway = find_gateway(4)
    if isinstance(gateway, NoGateway):
        sys.stderr.write(f"{gateway.reason}\n")
        return 1
    failed = [why for port in given.ports if (why := change(Router(gateway), port, end=given.end))]
    sys.stderr.writelines(f"{why}\n" for why in failed)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())

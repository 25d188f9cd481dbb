"""The error codes of addresses and connections in words: part of `error_codes`."""

from __future__ import annotations

ADDRESSES = {
    "ADDR-SYNTAX": (
        "An address is not a multiaddr. One looks like /ip4/203.0.113.7/tcp/4201/p2p/12D3KooW…; "
        "copy it whole, as the other node prints it."
    ),
    "ADDR-NO-PEER-ID": (
        "An address lacks its end, /p2p/12D3KooW…. Without it nobody could tell whether the right"
        " peer answers. Ask for the whole address."
    ),
    "ADDR-NONE": (
        "There is no address to dial: no --bootstrap was given and no peers were met before. Ask "
        "the organiser for one."
    ),
    "ADDR-SELF": "An address is this node's own. Give the address of another peer.",
    "ADDR-LISTEN": (
        "An address to listen on cannot be used as such. The usual one is /ip4/0.0.0.0/tcp/0, "
        "where port 0 lets the system choose."
    ),
    "ADDR-LOOPBACK": (
        "An address points to the machine that dials it (127.0.0.1). It works for several nodes "
        "on one machine only."
    ),
    "ADDR-PRIVATE": (
        "An address is of a private network, or of a provider's own, and cannot be dialled from "
        "the internet. A seed is told with --announce under which address it can be; its router "
        "must forward that port to it."
    ),
}

NETWORK = {
    "NET-UNREACHABLE": (
        "Nobody could be reached. The lines above it say what happened with each address."
    ),
    "NET-DNS": (
        "A host name in an address has no answer: it is misspelt, gone, or DNS does not work here."
    ),
    "NET-REFUSED": (
        "The other machine is up, but nothing listens on that port. The peer is down, most "
        "likely; it is not your machine's fault. Wait, or ask for a fresh address."
    ),
    "NET-TIMEOUT": (
        "Nothing came back at all. The other machine is off, or a firewall on the way drops what "
        "is sent to this port."
    ),
    "NET-NO-ROUTE": (
        "This machine knows no way to that address: it is offline, or the address is IPv6 and "
        "there is no IPv6 here."
    ),
    "NET-SILENT": (
        "A connection was made and then nothing was said. An overloaded peer, or another program."
    ),
    "NET-NOT-LIBP2P": (
        "Something answers on that port, but it is not a p2ptrain node. Check the port."
    ),
    "NET-RESET": (
        "The connection was cut off while it was being made, by a firewall or by the peer."
    ),
    "NET-WRONG-ID": (
        "Another peer answers than the address names. The address is old, or somebody answers in "
        "its place; in both cases ask for a fresh one."
    ),
    "NET-OUTBOUND-ONLY": (
        "A warning: nobody can dial this node from outside. It takes part by the connections that"
        " it makes itself. Forwarding a port to it would help others."
    ),
    "ORDER-BARRED": (
        "Members whom nobody can dial have to average side by side, and cannot connect: each such "
        "exchange fails once and goes on without one of the two. Whoever forwards a port to its "
        "data plane ends that."
    ),
    "FLOOD": (
        "More messages come than this node can judge. Some are left unread; peers say again what "
        "matters. One peer alone may be the cause: the journal names it."
    ),
    "LISTEN-FAILED": (
        "This node could not listen on the address that it was given. Choose another with "
        "--listen, or leave the port to the system with /tcp/0."
    ),
    "LOCK-FOLDER": (
        "The folder for the locks of ports, p2ptrain-UID in $XDG_RUNTIME_DIR or in the folder for "
        "temporary files, is another user's, or others can write to it. Set XDG_RUNTIME_DIR to a "
        "folder of your own."
    ),
    "PORT-IN-USE": "Another program, or another node, listens on that port already.",
    "SHUT-DOWN": "The network of this node has been closed; it is stopping.",
    "ISOLATED": (
        "Fewer members can be reached than the run needs to agree on anything. Nothing is lost: "
        "training goes on when they are back. Who was taken off the allowlist is not heard; the "
        "organiser can let it in again."
    ),
}

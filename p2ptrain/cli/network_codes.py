"""Explanations of the error codes for addresses and connections; a part of `error_codes`."""

from __future__ import annotations

ADDRESSES = {
    "ADDR-SYNTAX": (
        "The address is not a multiaddr. A valid one looks like "
        "/ip4/203.0.113.7/tcp/4201/p2p/12D3KooW…; copy the whole address that the other node "
        "prints."
    ),
    "ADDR-NO-PEER-ID": (
        "The address is incomplete: its last part, /p2p/12D3KooW…, is missing. Without this part, "
        "your node cannot tell whether the right peer answers. Ask for the whole address."
    ),
    "ADDR-NONE": (
        "There is no address to dial: you gave no --bootstrap, and this node has not met peers "
        "before. Ask the organiser for an address."
    ),
    "ADDR-SELF": "The address is this node's own. Give the address of another peer.",
    "ADDR-LISTEN": (
        "The address to listen on is not valid. The usual one is /ip4/0.0.0.0/tcp/0; with port 0 "
        "the system chooses a port."
    ),
    "ADDR-LOOPBACK": (
        "The address points to the machine that dials it (127.0.0.1). It works only for several "
        "nodes on one machine."
    ),
    "ADDR-PRIVATE": (
        "The address belongs to a private network or to a provider's network, and cannot be "
        "dialled from the internet. Give the seed a public address with --announce, and let its "
        "router forward that port to it."
    ),
}

NETWORK = {
    "NET-UNREACHABLE": (
        "No peer could be reached. The lines above show what happened with each address."
    ),
    "NET-DNS": (
        "The host name in the address has no DNS entry: it is misspelt or outdated, or DNS does "
        "not work here."
    ),
    "NET-REFUSED": (
        "The other machine is up, but no program listens on that port. Most likely the peer is "
        "down; your machine is not at fault. Wait, or ask for a new address."
    ),
    "NET-TIMEOUT": (
        "There was no answer at all. The other machine is off, or a firewall drops connections to "
        "this port."
    ),
    "NET-NO-ROUTE": (
        "This machine has no route to the address: it is offline, or the address is IPv6 and there "
        "is no IPv6 here."
    ),
    "NET-SILENT": (
        "A connection was made, but no data came. The peer is overloaded, or another program "
        "listens there."
    ),
    "NET-NOT-LIBP2P": "The program on that port is not a p2ptrain node. Check the port.",
    "NET-RESET": "A firewall or the peer cut the connection off while it was being made.",
    "NET-WRONG-ID": (
        "The peer that answers is not the one that the address names. The address is outdated, or "
        "the peer that answers impersonates the one that you want. In both cases ask for a new "
        "address."
    ),
    "NET-OUTBOUND-ONLY": (
        "This is a warning: other peers cannot dial this node. It takes part through connections "
        "that it makes itself. Forward a port to it to help others."
    ),
    "ORDER-BARRED": (
        "Two members are neighbours in an exchange, but other peers cannot dial either of them, so "
        "they cannot connect. Each such exchange fails once and continues without one of the two. "
        "To prevent that, forward a port to the data plane of one of them."
    ),
    "FLOOD": (
        "More messages arrive than this node can process, so it drops some. Peers repeat important "
        "messages. If one peer is the cause, the journal names it."
    ),
    "LISTEN-FAILED": (
        "This node could not listen on the address that you gave. Choose another with --listen, or "
        "let the system choose a port with /tcp/0."
    ),
    "LOCK-FOLDER": (
        "The folder for the locks of ports is p2ptrain-UID in $XDG_RUNTIME_DIR, or in the folder "
        "for temporary files. It belongs to another user, or others can write to it. Set "
        "XDG_RUNTIME_DIR to a folder of your own."
    ),
    "PORT-IN-USE": "Another program, or another node, already listens on that port.",
    "SHUT-DOWN": "This node's network has been closed; the node is stopping.",
    "ISOLATED": (
        "Fewer members can be reached than the run needs to agree on anything. Nothing is lost: "
        "training continues when enough members are back. Messages from members off the allowlist "
        "are ignored; the organiser can admit these members again."
    ),
}

"""Ask this machine's router to let other peers in: PCP, then NAT-PMP, then UPnP.

`MappingLease` decides, `Router` asks, `find_gateway` finds the router, and `judge` says in words
what was reached. `try_ports` is for a diagnosis. The package does not know what the ports are for,
and starts nothing by itself.
"""

from p2ptrain.portmap.datagrams import Interruption
from p2ptrain.portmap.gateway import Gateway, NoGateway, find_gateway
from p2ptrain.portmap.lease import MappingLease, OpenPort, Standing
from p2ptrain.portmap.router import Router
from p2ptrain.portmap.trial import opened_ports, try_ports
from p2ptrain.portmap.values import (
    NONCE_BYTES,
    CheckRequest,
    Closed,
    Granted,
    IPAddress,
    MapRequest,
    Protocol,
    Reply,
    Request,
    Silent,
    UnmapRequest,
)
from p2ptrain.portmap.verdict import Kind, Verdict, candidates, judge

__all__ = [
    "NONCE_BYTES",
    "CheckRequest",
    "Closed",
    "Gateway",
    "Granted",
    "IPAddress",
    "Interruption",
    "Kind",
    "MapRequest",
    "MappingLease",
    "NoGateway",
    "OpenPort",
    "Protocol",
    "Reply",
    "Request",
    "Router",
    "Silent",
    "Standing",
    "UnmapRequest",
    "Verdict",
    "candidates",
    "find_gateway",
    "judge",
    "opened_ports",
    "try_ports",
]

"""Bulk data between peers: mutual TLS 1.3 sockets for threads, with the same peer ids as libp2p.

Credentials, peer_of_certificate   certificates that carry a peer id
Endpoint                           the address of a peer's listener, and the peer's certificate
dial, Listener                     the two ends of a connection
prove, PROOF                       check that a peer listens at an address
SecureSocket                       the interface of a connection that ring and swarm use
RingInbox                          holds the ring's incoming sockets until the ring takes them
probe, ProbeServer                 measure the rate of the path from a peer to this node
probe_upload, UploadProbeServer    measure the rate of the path from this node to a peer
Congestion, probe_congestion       whether our sockets use BBR
Uplink, UplinkShare, PeerShares    a limit on the bytes sent per second, and how it is shared
"""

from __future__ import annotations

from p2ptrain.dataplane.certificates import Credentials, peer_of_certificate
from p2ptrain.dataplane.congestion import Congestion
from p2ptrain.dataplane.congestion import probe as probe_congestion
from p2ptrain.dataplane.dialling import DialHandle
from p2ptrain.dataplane.endpoint import Endpoint
from p2ptrain.dataplane.inbox import RingInbox, RingKey
from p2ptrain.dataplane.listener import Listener, ListenerLimits, try_listening
from p2ptrain.dataplane.pacing import SendPriority, Ticket
from p2ptrain.dataplane.probing import ProbeResult, ProbeServer, probe
from p2ptrain.dataplane.sockets import PeerSocket, SecureSocket, ShutDownHere, plain_pair
from p2ptrain.dataplane.tls import PROOF, dial, prove
from p2ptrain.dataplane.uplink import PeerShares, Uplink, UplinkShare
from p2ptrain.dataplane.upload_probing import UploadProbeServer, probe_upload

__all__ = [
    "PROOF",
    "Congestion",
    "Credentials",
    "DialHandle",
    "Endpoint",
    "Listener",
    "ListenerLimits",
    "PeerShares",
    "PeerSocket",
    "ProbeResult",
    "ProbeServer",
    "RingInbox",
    "RingKey",
    "SecureSocket",
    "SendPriority",
    "ShutDownHere",
    "Ticket",
    "Uplink",
    "UplinkShare",
    "UploadProbeServer",
    "dial",
    "peer_of_certificate",
    "plain_pair",
    "probe",
    "probe_congestion",
    "probe_upload",
    "prove",
    "try_listening",
]

"""Bulk data between peers: mutual TLS 1.3 sockets for threads, with the same peer ids as libp2p.

Credentials, peer_of_certificate   certificates that carry a peer id
Endpoint                           the address of a peer's listener, and the peer's certificate
dial, Listener                     the two ends of a connection
prove, PROOF                       check that a peer listens at an address
SecureSocket                       the interface of a connection that ring and swarm use
RingInbox                          holds the ring's incoming sockets until the ring takes them
probe, ProbeServer                 measure the rate of the path from a peer to this node
probe_upload, UploadProbeServer    measure the rate of the path from this node to a peer
LocalPort                          a port of this machine that several sockets use at once
observe, ObserveServer             ask a member for the external address of a local port
PunchSessions                      how two peers behind NATs agree to call each other (sans-IO)
ExternalAddress, Sightings         the addresses that a node may call if a peer asks for it
punch_and_dial, punch_and_serve    the two ends of a connection that both peers open at once
relaying                         connections through a third peer (a package of its own)
Congestion, probe_congestion       whether our sockets use BBR
Uplink, UplinkShare, PeerShares    a limit on the bytes sent per second, and how it is shared
"""

from __future__ import annotations

from p2ptrain.dataplane.binding import try_listening
from p2ptrain.dataplane.candidates import ExternalAddress, Sightings
from p2ptrain.dataplane.certificates import Credentials, peer_of_certificate
from p2ptrain.dataplane.congestion import Congestion
from p2ptrain.dataplane.congestion import probe as probe_congestion
from p2ptrain.dataplane.dialling import DialHandle
from p2ptrain.dataplane.endpoint import Endpoint
from p2ptrain.dataplane.inbox import RingInbox, RingKey, SocketWait
from p2ptrain.dataplane.listener import Listener, ListenerLimits
from p2ptrain.dataplane.local_port import LocalPort
from p2ptrain.dataplane.observing import Observation, ObserveServer, observe
from p2ptrain.dataplane.pacing import SendPriority, Ticket
from p2ptrain.dataplane.probing import ProbeResult, ProbeServer, probe
from p2ptrain.dataplane.punch_sessions import PunchSessions
from p2ptrain.dataplane.punching import PunchTimes, punch_and_dial, punch_and_serve
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
    "ExternalAddress",
    "Listener",
    "ListenerLimits",
    "LocalPort",
    "Observation",
    "ObserveServer",
    "PeerShares",
    "PeerSocket",
    "ProbeResult",
    "ProbeServer",
    "PunchSessions",
    "PunchTimes",
    "RingInbox",
    "RingKey",
    "SecureSocket",
    "SendPriority",
    "ShutDownHere",
    "Sightings",
    "SocketWait",
    "Ticket",
    "Uplink",
    "UplinkShare",
    "UploadProbeServer",
    "dial",
    "observe",
    "peer_of_certificate",
    "plain_pair",
    "probe",
    "probe_congestion",
    "probe_upload",
    "prove",
    "punch_and_dial",
    "punch_and_serve",
    "try_listening",
]

"""Every function that reads bytes from peers or from other processes, as a target for fuzzers.

A target takes any bytes. It returns, or raises one of the errors that its callers handle. Any other
error is a crash. Documents are signed correctly here, so that the fuzzer reaches the code after the
signature check. This module does not depend on the fuzzer or the corpus.
"""

from __future__ import annotations

import json
import socket
import tempfile
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass
from functools import cache
from ipaddress import IPv4Address
from pathlib import Path
from typing import Any

import numpy as np
from google.protobuf.message import DecodeError
from libp2p.pubsub.pb import rpc_pb2

from p2ptrain import kernels
from p2ptrain.archive import chain_log
from p2ptrain.dataplane import observing, probing, punch_messages, tls
from p2ptrain.dataplane.certificates import peer_of_certificate
from p2ptrain.dataplane.endpoint import Endpoint
from p2ptrain.dataplane.relaying import messages as relay_wire
from p2ptrain.dataplane.sockets import PeerSocket
from p2ptrain.encoding import unpack
from p2ptrain.errors import (
    ConfigError,
    ManifestInvalid,
    PeerError,
    RemoteProtocolError,
    RunMismatch,
    VersionMismatch,
)
from p2ptrain.export.certificate import WeightsCertificate
from p2ptrain.identity import Identity
from p2ptrain.ipc import admission, slices
from p2ptrain.ipc import wire as trainer_wire
from p2ptrain.kernels import BadScale
from p2ptrain.ledger.chain import canonical
from p2ptrain.ledger.history import base, decode_state
from p2ptrain.ledger.messages import evidence
from p2ptrain.ledger.messages import wire as ledger_wire
from p2ptrain.net import addresses, invitation, kad
from p2ptrain.net.gossip import frames
from p2ptrain.net.records import ProviderRecords
from p2ptrain.node.control import control_socket
from p2ptrain.node.joining import base_server
from p2ptrain.node.joining.startup_status import StartupStatus
from p2ptrain.node.optimizer_sharing import optimizer_offer
from p2ptrain.observe.journal import Journal
from p2ptrain.peers import (
    forwarded_messages,
    heartbeat,
    heartbeat_delta,
    hello_messages,
    identity_messages,
    relay_messages,
)
from p2ptrain.peers.series import event_pages, history_pages
from p2ptrain.portmap import natpmp, pcp, ssdp, upnp
from p2ptrain.portmap.values import NONCE_BYTES, MapRequest, Protocol
from p2ptrain.proofs import claims, hidden_states, signed_sums, sketch_messages
from p2ptrain.proofs.stated_sketch import read_statement
from p2ptrain.proofs.text_proof import TextProof
from p2ptrain.ring import wire as ring_wire
from p2ptrain.run import (
    JoinRequest,
    Run,
    SignedAllowlist,
    SignedDenial,
    SignedGrant,
    SignedHandOver,
    SignedToken,
    Ticket,
    data_index,
)
from p2ptrain.run.amendment import SignedAmendment
from p2ptrain.run.envelope import Signed
from p2ptrain.state.layout import Layout
from p2ptrain.store import CHUNK_BYTES_MAX
from p2ptrain.store.blob import BlobManifest
from p2ptrain.swarm import wire as swarm_wire
from p2ptrain.testing.published import manifest_of

ORGANISER = Identity.from_seed(bytes(32))
MEMBERS = tuple(Identity.from_seed(bytes([n]) * 32).peer for n in range(1, 4))
WAIT_S = 0.5
"""Socket timeout in seconds. It is never reached, since the other end of each socket has finished
sending.
"""

Read = Callable[[bytes], object]


@dataclass(frozen=True, slots=True)
class Target:
    """A function to fuzz. `read` may raise only the errors in `handled`."""

    read: Read
    handled: tuple[type[BaseException], ...] = (RemoteProtocolError,)

    def run(self, data: bytes) -> bool:
        """Return whether `data` is accepted. Errors that callers do not handle are not caught."""
        try:
            self.read(data)
        except self.handled:
            return False
        return True


@cache
def run() -> Run:
    return Run.publish(ORGANISER, manifest_of(ORGANISER.peer))


def _signed(kind: str, read: Read) -> Read:
    """Return a reader of a document with a fuzzed payload and a valid signature."""
    return lambda data: read(Signed.by(ORGANISER, kind, data).to_bytes())


def _over_socket(read: Callable[[PeerSocket], object]) -> Read:
    """Return a reader of bytes that a peer has sent before it finished sending."""

    def over_socket(data: bytes) -> object:
        ours, theirs = socket.socketpair()
        with closing(ours), closing(theirs):
            theirs.sendall(data[: 1 << 16])  # More would block, since nothing is read meanwhile.
            theirs.shutdown(socket.SHUT_WR)
            return read(PeerSocket(ours, MEMBERS[0], deadline_s=WAIT_S))

    return over_socket


def _raw_socket(read: Callable[[socket.socket], object]) -> Read:
    def raw_socket(data: bytes) -> object:
        ours, theirs = socket.socketpair()
        with closing(ours), closing(theirs):
            theirs.sendall(data[: 1 << 16])
            theirs.shutdown(socket.SHUT_WR)
            return read(ours)

    return raw_socket


def _chunk(sock: PeerSocket) -> object:
    return swarm_wire.receive_response(sock, bytearray(CHUNK_BYTES_MAX), WAIT_S)


def _relay_hello(data: bytes) -> object:
    value = unpack(data, bytes_max=tls.HELLO_BYTES_MAX)
    hello = value if isinstance(value, dict) else {}
    return relay_wire.RelayRequest.from_hello(hello, MEMBERS[0])


def _ring_header(data: bytes) -> object:
    """Decode a header of exactly HEADER_BYTES, since a lane reads exactly as many bytes."""
    return ring_wire.decode_header(data[: ring_wire.HEADER_BYTES].ljust(ring_wire.HEADER_BYTES))


def _codec(name: kernels.CodecName, block: int) -> Read:
    """Return a reader that dequantises a payload of the right length, since a lane reads only such
    payloads.
    """
    codec = kernels.codec(name, block)
    count = 1000
    out = np.empty(count, dtype=np.float32)
    size = codec.encoded_bytes(count)

    def dequantise(data: bytes) -> object:
        codec.dequantise(np.frombuffer(data[:size].ljust(size, b"\0"), dtype=np.uint8), out)
        return out

    return dequantise


def _gossip_frame(data: bytes) -> object:
    rpc = rpc_pb2.RPC.FromString(data)
    return [frames.is_ordinary(each) for each in rpc.publish], frames.subscriptions_of(rpc)


def _kad_request(data: bytes) -> object:
    records = ProviderRecords(lambda peer: True)
    answerer = kad.KadServer(
        ORGANISER.peer, records, lambda: {MEMBERS[1]: ["/ip4/127.0.0.1/tcp/1"]}
    )
    return answerer.answer(MEMBERS[0], data, 0.0)


@cache
def _reception() -> StartupStatus:
    return StartupStatus(ORGANISER.peer, Journal(Path(tempfile.mkdtemp()) / "journal.jsonl"))


def _command(line: bytes) -> object:
    """Answer a command of the control socket, as a node that is still starting. Such a node does
    not have to wait for anything before it answers."""
    answering: Any = control_socket.answer(_reception(), line)
    try:
        answering.send(None)
    except StopIteration as done:
        return json.dumps(done.value)
    raise AssertionError("the answer to a command must not wait for anything")


OPEN_PORT = MapRequest(Protocol.UPNP, 4201, 4201, 3600, bytes(NONCE_BYTES))


def invitation_of(body: bytes) -> str:
    """Return an invitation with this body, and with a valid checksum if the body is not too
    long."""
    symbols = invitation.framed(body)
    return invitation.PREFIX + "".join(invitation.ALPHABET[each] for each in symbols)


def _texts(data: bytes) -> list[str]:
    return data.decode("utf-8", "replace").split("\n")


CHUNK = np.arange(0x3F00, 0x3F00 + 640, dtype=np.uint16)[None]
"""A chunk of bf16 numbers, with which a proof of hidden states is compared."""

NOT_A_FRAME = (RemoteProtocolError, DecodeError)
FROM_SOCKET = (RemoteProtocolError, PeerError)

TARGETS: dict[str, Target] = {
    # control plane: requests, replies and gossip
    "ledger-message": Target(ledger_wire.decode),
    "ledger-evidence": Target(evidence.decode_evidence),
    "ledger-base": Target(base.decode_base),
    "ledger-state": Target(decode_state.decode_state),
    "ledger-canonical": Target(lambda data: canonical.parse(data, bytes_max=1 << 20)),
    "ledger-chain": Target(lambda data: chain_log.read_chain(data.split(b"\n"))),
    "heartbeat": Target(heartbeat.decode),
    "beat": Target(heartbeat_delta.decode_beat),
    "hello-request": Target(hello_messages.decode_request),
    "hello-reply": Target(hello_messages.decode_reply),
    "base-request": Target(base_server.decode_named),
    "history-request": Target(history_pages.decode_request),
    "history-page": Target(
        lambda data: history_pages.decode_page(
            history_pages.KIND.signed(data, ORGANISER), run().id, ORGANISER.peer
        )
    ),
    "history-events": Target(
        lambda data: event_pages.decode_events(
            event_pages.KIND.signed(data, ORGANISER), run().id, ORGANISER.peer
        )
    ),
    "identity-question": Target(identity_messages.decode_question),
    "identity-reply": Target(identity_messages.decode_reply),
    "identity-notice": Target(identity_messages.decode_notice),
    "forwarded-message": Target(forwarded_messages.decode),
    "donation-offer": Target(
        _signed(
            optimizer_offer.KIND,
            lambda data: optimizer_offer.OptimizerOffer.decode(data, ORGANISER.peer),
        )
    ),
    "envelope": Target(lambda data: Signed.from_bytes(data, kind="manifest")),
    "manifest": Target(_signed("manifest", Run.from_bytes), (RemoteProtocolError, VersionMismatch)),
    "allowlist": Target(
        _signed("allowlist", lambda data: SignedAllowlist.from_bytes(data, run())),
        (RemoteProtocolError, RunMismatch),
    ),
    "amendment": Target(
        _signed("amendment", lambda data: SignedAmendment.from_bytes(data, run())),
        (RemoteProtocolError, RunMismatch),
    ),
    "denial": Target(
        _signed("denial", lambda data: SignedDenial.from_bytes(data, run())),
        (RemoteProtocolError, RunMismatch),
    ),
    "grant": Target(
        _signed("grant", lambda data: SignedGrant.from_bytes(data, run())),
        (RemoteProtocolError, RunMismatch),
    ),
    "hand-over": Target(
        _signed("hand-over", lambda data: SignedHandOver.from_bytes(data, run().id))
    ),
    "token": Target(
        _signed("admission-token", lambda data: SignedToken.from_bytes(data, run())),
        (RemoteProtocolError, RunMismatch),
    ),
    "ticket": Target(lambda data: Ticket.from_bytes(data, run().id, ORGANISER.peer)),
    "join-request": Target(_signed("join-request", JoinRequest.from_bytes)),
    "data-index": Target(
        lambda data: data_index.DataIndex.from_bytes(data, train_blocks=2, validation_blocks=1),
        (ManifestInvalid,),
    ),
    "gossip-frame": Target(_gossip_frame, NOT_A_FRAME),
    "dht-request": Target(_kad_request, NOT_A_FRAME),
    "dht-reply": Target(lambda data: kad.providers_in(data, b"key"), NOT_A_FRAME),
    "addresses": Target(lambda data: addresses.parse_told(_texts(data), MEMBERS[0])),
    # the local network's router
    "router-pcp": Target(pcp.decode_map),
    "router-pcp-clock": Target(pcp.decode_announcement),
    "router-natpmp": Target(natpmp.decode_map),
    "router-natpmp-address": Target(natpmp.decode_address),
    "router-search": Target(lambda data: ssdp.location(data, IPv4Address("192.168.1.1"))),
    "router-upnp": Target(lambda data: upnp.reply_of(OPEN_PORT, data)),
    "invitation": Target(
        lambda data: invitation.decode(data.decode("utf-8", "replace")),
        (ConfigError, VersionMismatch),
    ),
    "invitation-body": Target(
        lambda data: invitation.decode(invitation_of(data)), (ConfigError, VersionMismatch)
    ),
    # data plane
    "endpoint": Target(lambda data: Endpoint.from_wire(unpack(data, bytes_max=4096))),
    "certificate": Target(peer_of_certificate),
    "data-hello": Target(_over_socket(tls.receive_hello), FROM_SOCKET),
    "data-hello-answer": Target(
        _over_socket(lambda sock: tls.introduce(sock, {"purpose": "ring"})), FROM_SOCKET
    ),
    "chunk-request": Target(_over_socket(swarm_wire.receive_request), FROM_SOCKET),
    "chunk-response": Target(_over_socket(_chunk), FROM_SOCKET),
    "observe-answer": Target(observing.decode_answer),
    "punch-message": Target(punch_messages.decode),
    "relay-hello": Target(_relay_hello),
    "relay-answer": Target(relay_wire.decode_answer),
    "relay-meeting": Target(relay_messages.decode_request),
    "relay-meeting-reply": Target(relay_messages.decode_reply),
    "probe-request": Target(_over_socket(probing.wanted_bytes), FROM_SOCKET),
    "ring-header": Target(_ring_header),
    "ring-blame": Target(lambda data: ring_wire.decode_blame(data, MEMBERS)),
    "ring-int8": Target(_codec("int8", 64), (BadScale,)),
    "ring-int4": Target(_codec("int4", 64), (BadScale,)),
    "ring-fp16": Target(_codec("fp16", 64), (BadScale,)),
    "ring-fp32": Target(_codec("fp32", 64), (BadScale,)),
    "blob-manifest": Target(BlobManifest.from_wire, (ManifestInvalid,)),
    "layout": Target(Layout.from_wire),
    # contributions
    "claim-document": Target(claims.decode_claim),
    "sums-request": Target(signed_sums.decode_request),
    "sums-reply": Target(signed_sums.decode_runs),
    "sketch-request": Target(sketch_messages.decode_request),
    "sketch-reply": Target(sketch_messages.decode_reply),
    "sketch-statement": Target(lambda data: read_statement(data, lambda *told: True)),
    # files from anybody
    "text-proof": Target(TextProof.from_bytes),
    "hidden-states-proof": Target(lambda data: hidden_states.compare(CHUNK, [data])),
    "weights-certificate": Target(
        lambda data: WeightsCertificate.from_bytes(data).certificate.verified(),
        (RemoteProtocolError, VersionMismatch),
    ),
    # local sockets
    "control-command": Target(_command),
    "trainer-frame": Target(lambda data: trainer_wire.FrameReader().feed(data)),
    "rank-message": Target(slices.decode),
    "rank-greeting": Target(
        _raw_socket(lambda sock: admission.challenge(sock, bytes(32), WAIT_S)),
        (RemoteProtocolError, OSError),
    ),
    "rank-proof": Target(
        _raw_socket(
            lambda sock: admission.prove(
                sock, bytes(32), admission.Claim(0, 1, admission.Purpose.SLICES), WAIT_S
            )
        ),
        (RemoteProtocolError, OSError),
    ),
}
"""Targets by the name of the message that they read."""

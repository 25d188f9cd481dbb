"""A valid example of each kind of message, made by our own encoders. Fuzzing starts from these
examples.

Recorded examples become outdated when a format changes. These examples do not.
"""

from __future__ import annotations

import struct

import base58
import numpy as np
from libp2p.pubsub.pb import rpc_pb2

from p2ptrain import kernels
from p2ptrain.archive.ledger_on_disk import rules_of
from p2ptrain.dataplane import punch_messages
from p2ptrain.dataplane.candidates import ExternalAddress
from p2ptrain.dataplane.certificates import Credentials
from p2ptrain.dataplane.relaying import messages as relay_wire
from p2ptrain.encoding import pack
from p2ptrain.export.certificate import SnapshotCertificate, WeightsCertificate
from p2ptrain.identity import Identity
from p2ptrain.ids import Digest
from p2ptrain.ledger.chain.apply import genesis
from p2ptrain.ledger.chain.state import encode_state
from p2ptrain.ledger.history.base import Checkpoint
from p2ptrain.net import addresses, invitation, kad
from p2ptrain.node.joining import base_server
from p2ptrain.observe.series.rows import EventRow, PeerStepRow, SampleRow, StepRow
from p2ptrain.peers import (
    forwarded_messages,
    heartbeat,
    hello_messages,
    identity_messages,
    relay_messages,
)
from p2ptrain.peers.series import event_pages, history_pages
from p2ptrain.peers.series.step_report import StepReport
from p2ptrain.proofs import hidden_states
from p2ptrain.proofs.claims import Claim, encode_claim
from p2ptrain.proofs.signed_sums import SumsRequest, encode_runs
from p2ptrain.proofs.sketch_messages import SketchReply, SketchRequest
from p2ptrain.proofs.stated_sketch import SKETCH_BYTES, StatedSketch
from p2ptrain.proofs.text_proof import TextProof
from p2ptrain.ring import SignedRun
from p2ptrain.ring import wire as ring_wire
from p2ptrain.ring.blame import Blame
from p2ptrain.run import (
    Allowlist,
    Amendment,
    Denial,
    Grant,
    HandOver,
    JoinRequest,
    Signed,
    SignedAllowlist,
    SignedAmendment,
    Ticket,
)
from p2ptrain.run.reading import plain
from tests.fuzz.targets import CHUNK, MEMBERS, ORGANISER, run

DIGEST = Digest("ab" * 32)
NONCE = bytes(16)
RELAY_KEY = relay_wire.EdgeKey(run().id, 3, 0, 1, MEMBERS[0])


def frame(body: bytes) -> bytes:
    """Return `body` as a frame of the data plane."""
    return struct.pack(">I", len(body)) + body


def payload(codec_name: kernels.CodecName) -> bytes:
    codec = kernels.codec(codec_name, 64)
    out = np.zeros(codec.encoded_bytes(1000), dtype=np.uint8)
    codec.quantise(np.linspace(-1, 1, 1000, dtype=np.float32), out)
    return out.tobytes()


def heartbeat_bytes() -> bytes:
    return heartbeat.encode(
        heartbeat.Heartbeat(
            run=run().id,
            incarnation=7,
            serial=1,
            state="training",
            trains=True,
            joining=False,
            leaving=False,
            height=0,
            line=run().id,
            head=Digest(run().id),
            step=0,
            inner_step=1,
            inner_steps=2,
            tokens_per_s=10,
            endpoint=b"",
            addresses=("/ip4/127.0.0.1/tcp/4201",),
            ready=None,
            reduce=None,
            mark=bytes(64),
            step_report=StepReport(3, 900, loss=2.5, device="cpu", version="0.1.0"),
        )
    )


def gossip_frame() -> bytes:
    rpc = rpc_pb2.RPC()
    message = rpc.publish.add()
    message.topicIDs.append("/p2ptrain/1/heartbeat")
    message.data, message.seqno, message.signature = b"a heartbeat", bytes(8), bytes(64)
    message.from_id = base58.b58decode(MEMBERS[0])
    subscription = rpc.subscriptions.add()
    subscription.subscribe, subscription.topicid = True, "/p2ptrain/1/ledger"
    rpc.control.graft.add(topicID="/p2ptrain/1/ledger")
    return bytes(rpc.SerializeToString())


def endpoint() -> bytes:
    certificate = Credentials.create(Identity.from_seed(bytes(32))).certificate_der
    wire = {"peer": ORGANISER.peer, "host": "127.0.0.1", "port": 4202, "certificate": certificate}
    return pack(wire)


def pcp_port() -> bytes:
    """Return the part of a PCP response that names TCP, the ports and the external address."""
    return bytes.fromhex("06000000 1069c351 00000000000000000000ffff cb007107")


INVITATION = invitation.Invitation.of(
    run().id,
    ORGANISER.peer,
    [
        addresses.parse(f"/ip4/192.0.2.1/tcp/4201/p2p/{MEMBERS[0]}"),
        addresses.parse(f"/dns4/seed.example/tcp/4201/p2p/{ORGANISER.peer}"),
    ],
    b"a ticket",
)
TICKET = Ticket.issue(ORGANISER, run().id, bytes(range(32)), uses=3, expires_unix=2**31)
LIST = (
    Allowlist.of(run().id, 1, [ORGANISER.peer, *MEMBERS])
    .without_peer(MEMBERS[0], tracks=True)
    .with_peer(MEMBERS[0], "reader")
)
AMENDMENT = Amendment(run().id, 1, 2, lr=0.01, admitters=tuple(sorted(MEMBERS)))
REQUEST = JoinRequest(
    run().id,
    ORGANISER.peer,
    1,
    "a note",
    TICKET.signed.signed.to_bytes(),
    TICKET.proof_for(ORGANISER.peer),
    device="cuda",
    reach="private",
)
PROOF = identity_messages.IdentityProof(NONCE, 7, False, bytes(64))

STATES_PROOF = hidden_states.encode(CHUNK)[0]
CERTIFICATE = WeightsCertificate(SnapshotCertificate.of(run(), None), b"chunks", b"rest")

CLAIM = Claim(MEMBERS[0], DIGEST, 3, 1, None, 4096, 2, DIGEST)
STATED = StatedSketch(DIGEST, MEMBERS[0], (bytes(SKETCH_BYTES),) * 2)

GOOD: dict[str, bytes] = {
    "text-proof": TextProof(run().id, b"", tuple(range(40)), 8, (STATES_PROOF,) * 2).to_bytes(),
    "hidden-states-proof": STATES_PROOF,
    "weights-certificate": CERTIFICATE.to_bytes(),
    "claim-document": encode_claim(CLAIM),
    "sketch-request": SketchRequest(
        DIGEST, (0, 2), (1,), encode_claim(CLAIM), b"statement"
    ).encode(),
    "sums-request": SumsRequest(DIGEST, 256, 512).encode(),
    "sums-reply": encode_runs([SignedRun(MEMBERS[0], 256, 512, bytes(64), bytes(64))] * 2),
    "sketch-reply": SketchReply((encode_claim(CLAIM),), (b"statement",)).encode(),
    "sketch-statement": STATED.signed(lambda told: bytes(64)),
    "ledger-state": encode_state(genesis(rules_of(run()))),
    "heartbeat": heartbeat_bytes(),
    "beat": heartbeat_bytes(),
    "hello-request": hello_messages.encode_request(hello_messages.HelloRequest(run().id, b"")),
    "hello-reply": hello_messages.encode_reply(
        hello_messages.HelloReply(
            b"manifest", b"", b"", True, {MEMBERS[0]: ("/ip4/127.0.0.1/tcp/1",)}
        )
    ),
    "base-request": base_server.encode_named(Checkpoint(7, DIGEST)),
    "history-request": history_pages.encode_request(history_pages.HistoryRequest(run().id, 1, 600)),
    "history-page": history_pages.encode_body(
        history_pages.HistoryPage(
            (StepRow(3, time=9.0, tokens=5, tokens_total=5, loss=2.5),),
            (PeerStepRow(3, MEMBERS[0], tokens=5, train_ms=700, device="cpu", version="0.1.0"),),
        ),
        run().id,
    ),
    "history-events": event_pages.events_body(
        [
            EventRow(9.0, 3, "join", MEMBERS[0], "It joined."),
            EventRow(9.5, 3, "skip", "", "Skipped."),
        ],
        [SampleRow(3, 0, MEMBERS[1], "Once upon a time")],
        run().id,
    ),
    "identity-question": identity_messages.encode_question(
        identity_messages.IdentityQuestion(NONCE, 7, False, (PROOF,))
    ),
    "identity-reply": identity_messages.encode_reply(
        identity_messages.IdentityReply(True, (NONCE,), (PROOF,), None)
    ),
    "forwarded-message": forwarded_messages.ForwardedMessage(
        run().id, MEMBERS[0], MEMBERS[1], 7, 9, 3, "/p/1", False, b"x", bytes(64)
    ).encode(),
    "identity-notice": identity_messages.encode_notice(
        identity_messages.IdentityNotice(MEMBERS[0], NONCE, PROOF)
    ),
    "donation-offer": pack(
        {"run": run().id, "layout": DIGEST, "step": 1, "count": 1, "digest": DIGEST}
    ),
    "manifest": run().signed.payload,
    "envelope": run().signed.to_bytes(),
    "allowlist": SignedAllowlist.publish(ORGANISER, LIST).signed.payload,
    "amendment": SignedAmendment.publish(ORGANISER, AMENDMENT, run()).signed.payload,
    "join-request": Signed.from_bytes(REQUEST.to_bytes(ORGANISER), kind="join-request").payload,
    "grant": pack(plain(Grant(run().id, MEMBERS[0], 1, 1, 1))),
    "hand-over": pack(plain(HandOver(run().id, 1, ORGANISER.peer, MEMBERS[0], 5, 3, 1))),
    "denial": pack(plain(Denial(run().id, MEMBERS[0], 1, 2, "a reason"))),
    "token": TICKET.signed.signed.payload,
    "ticket": TICKET.to_bytes(),
    "data-index": bytes(96),
    "gossip-frame": gossip_frame(),
    "dht-request": kad.question(b"key"),
    "dht-reply": kad.question(b"key"),
    "addresses": b"/ip4/192.0.2.1/tcp/4201\n/dns4/seed.example/tcp/4201",
    "invitation": invitation.encode(INVITATION).encode(),
    "invitation-body": invitation.body_of(INVITATION),
    "endpoint": endpoint(),
    "data-hello": frame(pack({"purpose": "ring", "run": run().id, "step": 3})),
    "data-hello-answer": frame(pack({"accepted": True, "reason": ""})),
    "chunk-request": frame(pack({"chunk": bytes(32)})),
    "chunk-response": struct.pack(">BI", 0, 5) + b"chunk",
    "observe-answer": pack({"host": "203.0.113.7", "port": 4202}),
    "punch-message": punch_messages.encode(
        punch_messages.PunchOffer(NONCE, "a stream", 0, (ExternalAddress("203.0.113.7", 4202),))
    ),
    "relay-hello": pack(relay_wire.RelayRequest(MEMBERS[0], MEMBERS[1], RELAY_KEY).to_hello()),
    "relay-answer": relay_wire.encode_answer(None),
    "relay-meeting": relay_messages.MeetRequest(MEMBERS[1], RELAY_KEY).encode(),
    "relay-meeting-reply": relay_messages.encode_reply("busy"),
    "probe-request": frame(pack({"bytes": 1 << 20})),
    "ring-header": ring_wire.Header(ring_wire.Kind.SUM, 0, 1, 2, 64, 3, 0, bytes(8)).encode(),
    "ring-blame": ring_wire.encode_blame(Blame((MEMBERS[0],), "it is silent")),
    "ring-int8": payload("int8"),
    "ring-int4": payload("int4"),
    "ring-fp16": payload("fp16"),
    "ring-fp32": payload("fp32"),
    "router-pcp": bytes.fromhex("02810000 00000e10 00000400") + bytes(24) + pcp_port(),
    "router-pcp-clock": bytes.fromhex("02800000 00000000 00000400") + bytes(12),
    "router-natpmp": bytes.fromhex("00820000 00000400 1069c351 00000e10"),
    "router-natpmp-address": bytes.fromhex("00800000 00000400 cb007107"),
    "router-search": b"HTTP/1.1 200 OK\r\nST: urn:schemas-upnp-org:device:InternetGatewayDevice:1"
    b"\r\nLOCATION: http://" + b"192.168.1.1:5000/root.xml\r\n\r\n",
    "router-upnp": b'{"granted": ["203.0.113.7", 4201]}',
    "control-command": b'{"command": "status"}',
}

"""One peer of the all-reduce benchmark. It exchanges addresses with the other peers through files
in a shared folder, connects to them, and runs the all-reduce several times.

Peers can run in any processes that have access to the folder, each with its own address: on one
machine, or in network namespaces with simulated delay and loss. As a program, this module runs one
peer: SETTING-JSON NUMBER HOST MEETING-FOLDER.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import numpy as np
from blake3 import blake3

from p2ptrain import kernels
from p2ptrain.bench.all_reduce.slow_link import SlowLink
from p2ptrain.bench.meeting import all_have, await_files, post_endpoint, read_endpoint
from p2ptrain.dataplane import (
    Credentials,
    Endpoint,
    Listener,
    RingInbox,
    RingKey,
    SecureSocket,
    Uplink,
    dial,
)
from p2ptrain.identity import Identity, verify
from p2ptrain.ids import Digest, PeerId, RunId
from p2ptrain.kernels import CodecName
from p2ptrain.proofs.signed_sums import SumSigner
from p2ptrain.ring import Difference, Reduce, ReduceRequest, Schedule

RUN = RunId("be" * 32)
ROSTER = Digest("be" * 32)
CONNECT_S = 120.0
DEADLINE_S = 600.0


@dataclass(frozen=True, slots=True)
class AverageSetting:
    """The measurement. `order` lists the peers in ring order; empty means in ascending order."""

    peers: int
    elements: int
    codec: CodecName = "int8"
    block: int = 256
    schedule: Schedule = "ring"
    encrypted: bool = True
    streams: int = 1
    segment_bytes: int = 1024 * 1024
    repeats: int = 5
    limit_bytes_per_s: float = 0.0
    order: tuple[int, ...] = ()
    slow_link: tuple[int, int, float] | None = None
    """The numbers of two peers, and the bytes per second of the link between them."""
    signed: bool = False
    """Whether the peers sign their sums, as nodes do in runs with claims."""


@dataclass(frozen=True, slots=True)
class AverageMeasured:
    """The measurements of one peer: seconds and CPU seconds of each repeat, and for the last repeat
    the bytes that the peer sent and the digest of the mean."""

    seconds: tuple[float, ...]
    cpu_s: tuple[float, ...]
    sent_bytes: int
    digest: str


def average(setting: AverageSetting, me: int, host: str, meeting: Path) -> AverageMeasured:
    """Run peer number `me`: exchange addresses with the other peers, and measure all repeats."""
    request = _request(setting, me)
    rng = np.random.default_rng(me)
    theta = np.random.default_rng(99).standard_normal(setting.elements, dtype=np.float32)
    local = theta + np.float32(0.01) * rng.standard_normal(setting.elements, dtype=np.float32)
    out = np.zeros(request.codec.encoded_bytes(setting.elements), np.uint8)
    uplink = Uplink(setting.limit_bytes_per_s) if setting.limit_bytes_per_s else None
    seconds, cpu_s = [], []
    with _connected(setting, me, host, meeting) as links:
        for repeat in range(setting.repeats):
            attempt = replace(request, attempt=repeat)
            all_have(meeting, me, setting.peers, f"begun-{repeat}", CONNECT_S)
            begun, cpu_begun = time.monotonic(), time.process_time()
            signing = SumSigner(ROSTER, name_of_peer(me), _identity(me).sign, verify)
            given = attempt, links, Difference(theta, local), out, uplink
            report = Reduce(*given, signing=signing if setting.signed else None).run()
            seconds.append(time.monotonic() - begun)
            cpu_s.append(time.process_time() - cpu_begun)
        all_have(meeting, me, setting.peers, "ended", CONNECT_S)
    digest = blake3(out.tobytes()).hexdigest()
    return AverageMeasured(tuple(seconds), tuple(cpu_s), report.sent_bytes, digest)


def _request(setting: AverageSetting, me: int) -> ReduceRequest:
    names = [_identity(number).peer for number in setting.order or range(setting.peers)]
    return ReduceRequest(
        run=RUN,
        step=0,
        attempt=0,
        peers=tuple(names),
        me=names.index(_identity(me).peer),
        weights=(1,) * setting.peers,
        numel=setting.elements,
        codec=kernels.codec(setting.codec, setting.block),
        schedule=setting.schedule,
        streams=setting.streams,
        segment_bytes=setting.segment_bytes,
        deadline_s=DEADLINE_S,
        silence_s=60.0,
        signed=setting.signed,
    )


def name_of_peer(number: int) -> PeerId:
    return _identity(number).peer


def _identity(number: int) -> Identity:
    return Identity.from_seed(number.to_bytes(32, "big"))


Connections = dict[PeerId, list[SecureSocket]]


@contextmanager
def _connected(setting: AverageSetting, me: int, host: str, meeting: Path) -> Iterator[Connections]:
    """Connect to the neighbours in the ring, and close the links at the end of the `with` block."""
    request, credentials = _request(setting, me), Credentials.create(_identity(me))
    inbox = RingInbox()
    with ExitStack() as stack:
        listener = Listener(
            credentials, host, 0, allowed=lambda peer: True, encrypted=setting.encrypted
        )
        stack.enter_context(listener)
        listener.handle("ring", inbox.handle)
        mine = Endpoint(credentials.peer, *listener.address, credentials.certificate_der)
        endpoints = _meet(setting, me, mine, meeting)
        for endpoint in endpoints.values():
            listener.trust_certificate(endpoint.certificate_der)
        all_have(meeting, me, setting.peers, "trusts", CONNECT_S)
        links: Connections = {}
        for peer in sorted(request.neighbours, key=request.peers.index):
            links[peer] = []
            for stream in range(setting.streams):
                first = request.me < request.peers.index(peer)
                key = RingKey(RUN, 0, 0, stream, credentials.peer if first else peer)
                link: SecureSocket
                if first:
                    link = dial(
                        credentials,
                        stack.enter_context(_way_to(setting, me, endpoints[peer])),
                        key.to_hello(),
                        deadline_s=CONNECT_S,
                        encrypted=setting.encrypted,
                    )
                else:
                    link = inbox.wait_for_socket(key, deadline_s=CONNECT_S)
                stack.callback(link.close)
                links[peer].append(link)
        yield links


@contextmanager
def _way_to(setting: AverageSetting, me: int, endpoint: Endpoint) -> Iterator[Endpoint]:
    """Yield the endpoint to dial: `endpoint` itself, or the slow link that leads there."""
    if setting.slow_link is not None:
        *ends, bytes_per_s = setting.slow_link
        if {name_of_peer(me), endpoint.peer} == {name_of_peer(int(end)) for end in ends}:
            with SlowLink((endpoint.host, endpoint.port), bytes_per_s) as relay:
                host, port = relay.address
                yield replace(endpoint, host=host, port=port)
            return
    yield endpoint


def _meet(
    setting: AverageSetting, me: int, mine: Endpoint, meeting: Path
) -> dict[PeerId, Endpoint]:
    """Exchange endpoints with the other peers through the folder."""
    post_endpoint(meeting / f"{me}.json", mine)
    files = [meeting / f"{number}.json" for number in range(setting.peers)]
    await_files(files, CONNECT_S)
    return {endpoint.peer: endpoint for endpoint in map(read_endpoint, files)}


def main(setting_json: str, me: str, host: str, meeting: str) -> None:
    given = json.loads(setting_json)
    slow = given["slow_link"]
    tuples = {"order": tuple(given["order"]), "slow_link": tuple(slow) if slow else None}
    setting = AverageSetting(**given | tuples)
    sys.stdout.write(json.dumps(asdict(average(setting, int(me), host, Path(meeting)))))


if __name__ == "__main__":
    main(*sys.argv[1:])

"""Measure the CPU time that a real node needs for a received gossip frame, for the costliest kinds
of frames.

Run `scripts/worst_frames`. Each line is one frame, sent by an admitted peer that is not a member.
Column "in" says whether its message was accepted. Column "limit/s" says how many such frames per
second one neighbour may send in the long run.
"""

from __future__ import annotations

import string
import sys
import time
from collections.abc import Iterator
from itertools import islice, product
from typing import Any

import trio
from libp2p.pubsub.pb import rpc_pb2
from libp2p.pubsub.validators import PUBSUB_SIGNING_PREFIX

from p2ptrain.eviction import nobody
from p2ptrain.net.gossip.limits import BYTES_PER_UNIT, FRAMES_PER_S, GossipLimits

from .conftest import eventually, networks
from .hostile import Hostile, hostile_to

TOPIC = "heartbeats"
MIB = 1 << 20
REPEATS = 3


def signed(by: Hostile, number: int, topics: list[str], size_bytes: int = 100) -> rpc_pb2.Message:
    made = rpc_pb2.Message(
        from_id=by.host.get_id().to_bytes(),
        data=bytes(size_bytes),
        topicIDs=topics,
        seqno=number.to_bytes(8, "big"),
    )
    key = by.host.get_private_key()
    made.signature = key.sign(PUBSUB_SIGNING_PREFIX.encode() + made.SerializeToString())
    return made


def distinct_topics() -> list[str]:
    letters = string.printable[:90]
    return ["".join(letter) for letter in islice(product(letters, repeat=3), 190_000)]


def nested(tag: int, body: bytes) -> bytes:
    """Return `body` as a field of a protocol buffer."""
    length, rest = bytearray(), len(body)
    while rest >= 128:
        length.append(rest & 127 | 128)
        rest >>= 7
    return bytes([tag, *length, rest]) + body


def frames(by: Hostile, number: int) -> Iterator[tuple[str, bytes]]:
    """Yield frames of at most 1 MiB. A different `number` for each repetition makes its messages
    different, so that they do not count as duplicates."""
    half = MIB // 2 - 16
    many = signed(by, number, [TOPIC, *distinct_topics()])
    yield "190,000 topics", rpc_pb2.RPC(publish=[many]).SerializeToString()
    yield (
        "one message of 100 B",
        rpc_pb2.RPC(publish=[signed(by, number + 1, [TOPIC])]).SerializeToString(),
    )
    long = signed(by, number + 2, [TOPIC], 480 << 10)
    yield "one message of 480 KiB", rpc_pb2.RPC(publish=[long]).SerializeToString()
    small = [signed(by, number + 10 + n, [TOPIC]) for n in range(200)]
    yield "200 messages", rpc_pb2.RPC(publish=small).SerializeToString()
    yield "empty messages", b"\x12\x00" * half
    yield "empty subscriptions", b"\x0a\x00" * half
    told = [rpc_pb2.RPC.SubOpts(subscribe=True, topicid=f"{number} {n}") for n in range(32)]
    yield "32 subscriptions", rpc_pb2.RPC(subscriptions=told).SerializeToString()
    for tag, name in (
        (0x0A, "ihave"),
        (0x12, "iwant"),
        (0x1A, "graft"),
        (0x22, "prune"),
        (0x2A, "idontwant"),
    ):
        yield f"empty {name}", nested(0x1A, bytes([tag, 0]) * half)
    names = rpc_pb2.ControlIHave(topicID=TOPIC, messageIDs=[b"%046d" % n for n in range(20_000)])
    yield (
        "ihave of 20,000 names",
        rpc_pb2.RPC(control=rpc_pb2.ControlMessage(ihave=[names])).SerializeToString(),
    )
    yield "iwant of empty names", nested(0x1A, nested(0x12, b"\x0a\x00" * (half - 8)))
    yield "prune with peers", nested(0x1A, nested(0x22, b"\x12\x00" * (half - 8)))
    yield "unknown fields", b"\x78\x00" * half


async def main() -> None:
    async with networks(1) as (victim,), hostile_to(victim) as hostile:
        victim.subscribe(TOPIC)
        pubsub, peer = victim._gossip.pubsub, hostile.host.get_id()
        await eventually(lambda: TOPIC in pubsub.topic_ids)
        say("frame", "MB", "CPU s", "CPU s/MB", "in", "limit/s")
        router: Any = pubsub.router
        for index in range(len(list(frames(hostile, 0)))):
            spent, let_in, frame, name = [], 0, b"", ""
            for repeat in range(REPEATS):
                name, frame = list(frames(hostile, 1000 * (index * REPEATS + repeat)))[index]
                pubsub._limits = GossipLimits(nobody)  # each frame has the full allowance
                seen, began = len(router.mcache.msgs), time.process_time()
                await pubsub._take_frame(peer, rpc_pb2.RPC.FromString(frame))
                spent.append(time.process_time() - began)
                let_in += len(router.mcache.msgs) - seen
            cpu_s, size_mb = min(spent), len(frame) / 1e6
            limit = FRAMES_PER_S / (1 + len(frame) // BYTES_PER_UNIT)
            say(
                name,
                f"{size_mb:.3f}",
                f"{cpu_s:.4f}",
                f"{cpu_s / size_mb:.3f}",
                "yes" if let_in > 0 else "no",
                f"{limit:.1f}",
            )


def say(name: str, *columns: str) -> None:
    sys.stdout.write(f"{name:24}" + "".join(f"{column:>9}" for column in columns) + "\n")


if __name__ == "__main__":
    trio.run(main)

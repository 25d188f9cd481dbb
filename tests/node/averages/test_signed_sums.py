"""A node keeps what was signed in its newest reduces, and shows it to other members."""

from __future__ import annotations

from pathlib import Path

import pytest

from p2ptrain.archive.kept_sums import REDUCES_KEPT, KeptSums, SignedReduce
from p2ptrain.errors import RemoteProtocolError, TryLater
from p2ptrain.ids import Digest
from p2ptrain.node.averages.signed_sums import PEER_BURST, serve_sums, sums_of
from p2ptrain.peers.protocol_names import SUMS_PROTOCOL
from p2ptrain.proofs.signed_sums import SumsRequest, decode_runs
from p2ptrain.ring import SignedRun
from p2ptrain.store import digest_of
from tests.node.rig import BOB, rig
from tests.node.swarm import CLAIMS

FIRST, SECOND = (
    SignedRun(BOB.peer, start, start + 256, bytes(64), bytes(64)) for start in (0, 256)
)


def roster(number: int) -> Digest:
    return digest_of(f"roster {number}".encode())


def reduce(step: int, number: int | None = None) -> SignedReduce:
    return SignedReduce(step, roster(step if number is None else number), (FIRST, SECOND))


def test_signed_sums_survive_a_restart(tmp_path: Path) -> None:
    kept = KeptSums(tmp_path / "sums.log")
    kept.note(reduce(3))
    kept.save()
    again = KeptSums(tmp_path / "sums.log")
    assert again.shown(roster(3), 0, 512) == (FIRST, SECOND)
    assert again.shown(roster(3), 255, 256) == (FIRST,)
    assert again.shown(roster(3), 512, 600) == again.shown(roster(4), 0, 512) == ()


def test_signed_sums_are_forgotten_with_the_contributions(tmp_path: Path) -> None:
    kept = KeptSums(tmp_path / "sums.log")
    for step in range(5):
        kept.note(reduce(step))
    found = [bool(kept.shown(roster(step), 0, 512)) for step in range(5)]
    assert found == [False, False, True, True, True]
    for number in range(10, 10 + REDUCES_KEPT):
        kept.note(reduce(4, number))
    assert kept.shown(roster(4), 0, 512) == ()
    assert kept.shown(roster(10), 0, 512)


def test_damaged_file_of_signed_sums_does_not_stop_a_node(tmp_path: Path) -> None:
    (tmp_path / "sums.log").write_bytes(b"damaged" * 100)
    kept = KeptSums(tmp_path / "sums.log")
    kept.note(reduce(1))
    kept.save()
    assert KeptSums(tmp_path / "sums.log").shown(roster(1), 0, 512)


async def test_members_are_shown_what_was_signed(tmp_path: Path) -> None:
    async with rig(tmp_path, trust=CLAIMS) as r:
        serve_sums(r.context)
        ask = r.network.handlers[SUMS_PROTOCOL]
        asked = SumsRequest(roster(1), 0, 256)
        assert decode_runs(await ask(BOB.peer, asked.encode())) == ()
        assert r.context.reduce.sums is not None
        r.context.reduce.sums.note(reduce(1))
        assert decode_runs(await ask(BOB.peer, asked.encode())) == (FIRST,)
        assert await sums_of(r.context, r.context.me, asked) == (FIRST,)
        with pytest.raises(RemoteProtocolError):
            await ask(BOB.peer, b"no request")
        with pytest.raises(TryLater):
            for _ in range(PEER_BURST):
                await ask(BOB.peer, asked.encode())

"""A past average is compared with the contributions that its participants claimed."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from p2ptrain.archive.past_average import PastAverage
from p2ptrain.errors import ConfigError, RemoteProtocolError
from p2ptrain.ledger.chain.values import Participant
from p2ptrain.node.averages.checking import Compared, average_of, compared
from p2ptrain.node.averages.documents import serve_claims
from p2ptrain.peers.protocol_names import CLAIM_PROTOCOL
from p2ptrain.proofs.average import AverageTerms, recompute
from p2ptrain.proofs.claims import decode_claim
from p2ptrain.ring.schedules import SCHEDULES, Schedule
from p2ptrain.store import digest_of
from p2ptrain.testing.published import policy
from tests.node.rig import ANN, BOB, CAI, opening, rig
from tests.node.swarm import CLAIMS
from tests.node.training.test_claiming import TOKENS, claimed

PEERS = (ANN.peer, BOB.peer, CAI.peer)


async def test_first_wrong_block_of_an_average_is_found(tmp_path: Path) -> None:
    async with rig(tmp_path, trust=CLAIMS) as r:
        outer_step = r.context.outer_step(0)
    codec, numel = outer_step.codec, outer_step.update.numel
    random, given = np.random.default_rng(2), []
    for _ in PEERS:
        payload = bytearray(codec.encoded_bytes(numel))
        codec.quantise(random.standard_normal(numel, np.float32), payload)
        given.append(bytes(payload))

    def judged(schedule: Schedule, at: int) -> Compared:
        terms = AverageTerms(schedule, (32, 64, 32), numel, codec)
        right = recompute(terms, 0, numel, given)
        average = PastAverage(
            outer_step,
            tuple(Participant(peer, TOKENS, 2, digest_of(peer.encode())) for peer in PEERS),
            terms,
            digest_of(b"update"),
            digest_of(b"commit"),
            digest_of(b"roster"),
        )
        assert compared(average, 0, numel, given, right) == Compared()
        forged = bytearray(right)
        forged[at] ^= 1
        return compared(average, 0, numel, given, bytes(forged))

    row, block = codec.encoded_bytes(codec.block), codec.block
    for schedule in SCHEDULES:
        for at in (0, row - 1, row, len(given[0]) - 1):
            found = judged(schedule, at)
            assert found.wrong == "the update does not follow from the contributions"
            assert found.element == at // row * block


@pytest.mark.parametrize("schedule", SCHEDULES)
async def test_only_a_contribution_that_is_too_large_is_named(
    tmp_path: Path, schedule: Schedule
) -> None:
    """The sum is out of range at another peer, which has received something else."""
    async with rig(tmp_path, trust=CLAIMS) as r:
        outer_step = r.context.outer_step(0)
    codec, numel = outer_step.codec, outer_step.update.numel
    given = []
    for value in (1e-3, 1.2e30, 1.2e30):
        payload = bytearray(codec.encoded_bytes(numel))
        codec.quantise(np.full(numel, value, np.float32), payload)
        given.append(bytes(payload))
    average = PastAverage(
        outer_step,
        tuple(Participant(peer, TOKENS, 2, digest_of(peer.encode())) for peer in PEERS),
        AverageTerms(schedule, (32, 64, 32), numel, codec),
        *map(digest_of, (b"update", b"commit", b"roster")),
    )
    found = compared(average, 0, numel, given, bytes(len(given[0])))
    assert found.element is None
    assert [(each.peer, each.kind) for each in found.named] == [
        (PEERS[1], "lied"),
        (PEERS[2], "lied"),
    ]


async def test_document_is_shown_once_a_roster_names_its_claim(tmp_path: Path) -> None:
    async with rig(tmp_path, trust=CLAIMS, rules=policy(participants_min=1)) as r:
        context = r.context
        serve_claims(context)
        ask = r.network.handlers[CLAIM_PROTOCOL]
        claim = (await claimed(r)).made.claim
        question = claim.digest.encode()
        assert await ask(BOB.peer, question) == b""
        blocks = len(context.ledger.snapshot.leases[context.me])
        part = Participant(context.me, TOKENS, blocks, claim.digest)
        r.decide(opening(context.ledger.snapshot, part))
        assert decode_claim(await ask(BOB.peer, question)) == claim
        assert await ask(BOB.peer, digest_of(b"another").encode()) == b""
        with pytest.raises(RemoteProtocolError):
            await ask(BOB.peer, b"no digest")


async def test_average_that_cannot_be_checked_is_refused_with_a_reason(tmp_path: Path) -> None:
    async with rig(tmp_path / "with", trust=CLAIMS) as r:
        with pytest.raises(ConfigError, match="not among the finished ones"):
            average_of(r.context, 0)
    async with rig(tmp_path / "without") as r:
        with pytest.raises(ConfigError, match="not claims"):
            average_of(r.context, 0)

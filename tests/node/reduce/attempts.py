"""An attempt of a reduce among this node and three others, whose answers a test controls."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from p2ptrain.archive.contribution_format import ContributionFormat
from p2ptrain.errors import PeerUnreachable
from p2ptrain.identity import Identity
from p2ptrain.ids import PeerId
from p2ptrain.ledger.chain.values import Participant, Roster
from p2ptrain.node.reduce.sketch_exchange import (
    book_of,
    cuts_of,
    exchange_sketches,
)
from p2ptrain.node.reduce.sketch_judging import Attempt, judge_average
from p2ptrain.node.training import claiming
from p2ptrain.proofs.average import AverageTerms, recompute
from p2ptrain.proofs.claims import Claim, encode_claim
from p2ptrain.proofs.sketch_messages import decode_request, reply_of
from p2ptrain.proofs.sketch_parts import part_of, sketch_of_bytes
from p2ptrain.proofs.sketches import unit_exponent_of
from p2ptrain.proofs.stated_sketch import StatedSketch
from p2ptrain.run.trust_rules import TrustRules
from p2ptrain.store import digest_of
from p2ptrain.sync.trainer_orders import LocalWork
from p2ptrain.testing.fake_trainer import trace
from tests.node.rig import ANN, BOB, CAI, Rig, rig

CLAIMS, TOKENS, BLOCKS = TrustRules(claims=True), 32, 2
OTHERS = (ANN, BOB, CAI)
Floats = NDArray[np.float32]


@dataclass
class Attempted:
    """An attempt of this node and `OTHERS`, all of whose contributions are in this node's store.
    `stated` replaces the values whose sketches somebody states. `silent` peers do not answer."""

    r: Rig
    given: dict[PeerId, Floats]
    stated: dict[PeerId, Floats] = field(default_factory=dict)
    silent: set[PeerId] = field(default_factory=set)
    hidden: set[tuple[PeerId, PeerId]] = field(default_factory=set)
    """The pairs of a peer and a participant whose claim and statement it does not show."""
    blocks: dict[PeerId, int] = field(default_factory=dict)
    """The blocks of participants that have not done the work of exactly one lease."""
    clock_s: float = 0.0
    claims: dict[PeerId, Claim] = field(default_factory=dict)
    payloads: dict[PeerId, bytes] = field(default_factory=dict)

    async def open(self) -> Attempt:
        """Let this node claim its work, and open a reduce among all peers."""
        context = self.r.context
        arena, outer_step = context.trainer.arena, context.outer_step(0)
        assert arena is not None
        arena.local[:] = arena.theta - self.given[context.me]
        work = LocalWork(0, context.ledger.snapshot.leases[context.me], TOKENS)
        own = await claiming.claim_work(context, outer_step, work, is_exact=True)
        context.trainer.work, context.trainer.claimed = work, own
        self.claims[context.me] = own.made.claim
        self.payloads[context.me] = bytes(own.contribution.payload)
        for who in OTHERS:
            payload = self.quantised(self.given[who.peer])
            format = ContributionFormat(outer_step.update, who.peer, context.store.chunk_bytes)
            digest = format.write(context.store, payload)
            line = context.ledger.snapshot.line
            blocks = self.blocks.get(who.peer, BLOCKS)
            tokens = TOKENS // BLOCKS * blocks
            self.claims[who.peer] = Claim(who.peer, line, 0, 1, None, tokens, blocks, digest)
            self.payloads[who.peer] = payload
        participants = tuple(
            Participant(peer, claim.tokens, claim.blocks, claim.digest)
            for peer, claim in self.claims.items()
        )
        roster = Roster(0, 0, (context.me,), tuple(each.peer for each in OTHERS), participants)
        self.r.set_chain(roster=roster)
        book = context.reduce.sketches = book_of(context, outer_step, roster)
        assert book is not None
        self.r.network.answer = self.answer
        return Attempt(outer_step, roster, book, [each.tokens for each in participants])

    def quantised(self, values: Floats) -> bytes:
        codec = self.r.context.outer_step(0).codec
        payload = bytearray(codec.encoded_bytes(values.size))
        codec.quantise(values, payload)
        return bytes(payload)

    def average(self, attempt: Attempt) -> bytearray:
        update = attempt.outer_step.update
        terms = AverageTerms("ring", tuple(attempt.weights), update.numel, update.codec)
        return bytearray(recompute(terms, 0, update.numel, list(self.payloads.values())))

    async def answer(self, peer: PeerId, payload: bytes) -> bytes:
        """Answer this node's questions in the name of the others."""
        asked, book = decode_request(payload), self.r.context.reduce.sketches
        assert book is not None
        if peer in self.silent:
            raise PeerUnreachable("it does not answer", peer=peer)
        about = [book.peers[place] for place in asked.documents or asked.statements]
        about = [each for each in about if (peer, each) not in self.hidden]
        documents = [encode_claim(self.claims[each]) for each in about] if asked.documents else []
        is_known = book.seed is not None and asked.statements
        statements = [self.statement(each) for each in about] if is_known else []
        return reply_of(documents, statements).encode()

    def statement(self, peer: PeerId) -> bytes:
        who = next(each for each in OTHERS if each.peer == peer)
        told = self.stated.get(peer)
        payload = self.payloads[peer] if told is None else self.quantised(told)
        return self.statement_of(who, payload)

    def statement_of(self, who: Identity, payload: bytes) -> bytes:
        context, book = self.r.context, self.r.context.reduce.sketches
        assert book is not None
        assert book.seed is not None
        outer_step, roster = context.outer_step(0), context.ledger.snapshot.roster
        assert roster is not None
        cuts, codec = cuts_of(outer_step, roster), outer_step.codec
        unit, seed = unit_exponent_of(outer_step.influence_max), book.seed
        sums = [
            sketch_of_bytes(
                codec,
                part_of(codec, memoryview(payload), cuts, part),
                cuts[part],
                cuts[part + 1],
                seed,
                unit,
            )
            for part in range(len(cuts) - 1)
        ]
        return StatedSketch.of(book.roster, who.peer, sums).signed(who.sign)

    async def judged(self, payload: bytearray | None = None) -> None:
        """Exchange sketches, and judge. Raises ReduceAborted."""
        attempt = await self.open()
        await exchange_sketches(self.r.context, attempt.outer_step, attempt.roster)
        made = self.average(attempt) if payload is None else payload
        await judge_average(self.r.context, attempt, made)


@asynccontextmanager
async def attempted(folder: Path) -> AsyncIterator[Attempted]:
    made: list[Attempted] = []
    clock: Callable[[], float] = lambda: made[0].clock_s if made else 0.0  # noqa: E731
    async with rig(folder, trust=CLAIMS, clock=clock) as r:
        numel, peers = r.context.layout.numel, (r.context.me, *(each.peer for each in OTHERS))
        given = {
            peer: trace(digest_of(peer.encode()), numel) + trace(digest_of(b"more"), numel)
            for peer in peers
        }
        made.append(Attempted(r, given))
        yield made[0]

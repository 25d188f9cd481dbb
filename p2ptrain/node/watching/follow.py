"""Follow a run as an observer: ask its nodes for entries and records, and verify them.

An observer needs an invitation or an address, but no admission, no home and no torch. It only asks.
Nothing that it learns reaches a node, and it sends nothing except its questions.
"""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field

from p2ptrain.errors import (
    NetworkUnreachable,
    NotAuthorised,
    P2PTrainError,
    PeerError,
    RemoteProtocolError,
    TryLater,
)
from p2ptrain.ids import PeerId, RunId
from p2ptrain.ledger.chain.state import Phase
from p2ptrain.ledger.messages.messages import Entries, Pruned
from p2ptrain.ledger.messages.wire import decode
from p2ptrain.names import label
from p2ptrain.peers.outside.watch_messages import (
    COUNT_MAX,
    WatchReply,
    WatchRequest,
    decode_reply,
    encode_request,
)
from p2ptrain.peers.outside.watched_ledger import WatchedLedger, WatchedStep

WITNESSES_MAX = 2
"""Number of further nodes that are asked for records in each round."""

PAGES_MAX = 512
"""Maximum number of pages in one round. A node may claim to have ever more entries, and the round
must end."""

ROUNDS_TO_WAIT = 2
"""Number of rounds for which a step is held back until a record about it has arrived."""

FAILED_ROUNDS_MAX = 20
"""Number of rounds without an answer of any node after which the observer gives up: one minute."""

Ask = Callable[[PeerId, bytes], Awaitable[bytes]]
"""Sends a request to a peer and returns its reply. Raises PeerError, RemoteProtocolError."""


@dataclass(slots=True)
class Follower:
    """Follows `run` through the nodes `sources`. `draw` chooses which of them are asked first."""

    run: RunId
    ledger: WatchedLedger
    sources: Sequence[PeerId]
    ask: Ask
    draw: random.Random = field(default_factory=random.SystemRandom)
    _held: list[WatchedStep] = field(default_factory=list)
    """Verified steps that have not been returned yet."""
    _rounds: int = 0
    """Number of rounds since the newest step was verified."""
    _failed: int = 0
    """Number of rounds since a node last answered."""

    @property
    def ended(self) -> bool:
        """Whether the run is complete and every step has been returned."""
        return self.ledger.state.phase is Phase.ENDED and not self._held

    @property
    def answered(self) -> bool:
        """Whether a node answered in the last round."""
        return self._rounds > 0 and self._failed == 0

    async def round(self) -> list[WatchedStep]:
        """Ask for news, and return the outer steps that can be shown now.

        Raises:
            NotAuthorised: every node answers that the run is not public.
            NetworkUnreachable: no node has answered for some time.
            TryLater: all nodes that answer have pruned the entries that we need.
        """
        order = list(self.sources)
        self.draw.shuffle(order)
        faults = dict[PeerId, P2PTrainError]()
        for number, peer in enumerate(order):
            try:
                await self._read_entries(peer)
            except (PeerError, RemoteProtocolError, TryLater) as exc:
                faults[peer] = exc
                continue
            await self._read_records(order[number + 1 :][:WITNESSES_MAX])
            break
        self._judge(faults, answered=len(faults) < len(order))
        return self._ripe()

    async def _read_entries(self, peer: PeerId) -> None:
        """Read the entries that `peer` has and we lack, and its records."""
        for _ in range(PAGES_MAX):
            reply = await self._asked(peer, self.ledger.state.height + 1)
            page = decode(reply.page)
            if isinstance(page, Pruned):
                raise TryLater(
                    f"it has only the entries after entry {page.up_to} of the ledger",
                    code="LEDGER-PRUNED",
                )
            if not isinstance(page, Entries):
                raise RemoteProtocolError("it did not answer with entries", peer=peer)
            ended, height = self.ledger.add(page.certified), self.ledger.state.height
            if ended:
                self._held += ended
                self._rounds = 0
            self._note(reply)
            if height >= page.height or not page.certified:
                return

    async def _read_records(self, peers: Sequence[PeerId]) -> None:
        """Ask `peers` for their records only: no peer has entries from COUNT_MAX on."""
        for peer in peers:
            try:
                self._note(await self._asked(peer, COUNT_MAX))
            except (PeerError, RemoteProtocolError):
                continue

    async def _asked(self, peer: PeerId, from_height: int) -> WatchReply:
        # Ask again for the records of the newest steps: more nodes have signed them by now.
        after = max(0, self.ledger.state.step - 2)
        request = WatchRequest(self.run, from_height, after, max(0, after - 2))
        return decode_reply(await self.ask(peer, encode_request(request)))

    def _note(self, reply: WatchReply) -> None:
        """Keep the records that count. The others are ignored: they may be about another branch, or
        lies, and neither concerns what the ledger proves."""
        self.ledger.note_records(reply.records)
        self.ledger.note_samples(reply.samples)

    def _judge(self, faults: dict[PeerId, P2PTrainError], *, answered: bool) -> None:
        if answered:
            self._failed = 0
            return
        self._failed += 1
        evidence = [f"{label(peer)}: {exc.what}" for peer, exc in faults.items()]
        codes = {exc.code for exc in faults.values()}
        if codes == {"PEER-REFUSED"}:
            raise NotAuthorised(
                "this run does not let strangers watch",
                evidence=evidence,
                likely="its organiser did not set public.telemetry",
                do="ask the organiser to admit you as a reader, or to let strangers watch",
            )
        if codes == {"LEDGER-PRUNED"}:
            raise TryLater(
                "no node keeps the beginning of the ledger",
                code="LEDGER-PRUNED",
                evidence=evidence,
                do="give --trust-checkpoint with a checkpoint from somebody you trust",
            )
        if self._failed >= FAILED_ROUNDS_MAX:
            raise NetworkUnreachable(
                "no node of the run has answered for a minute",
                evidence=evidence,
                do="try again later, or ask for a newer invitation",
            )

    def _ripe(self) -> list[WatchedStep]:
        """Return the held steps that can be shown: all but the newest, and the newest once it has a
        record, or has waited long enough."""
        self._rounds += 1
        waits = self._held and not self._held[-1].losses and self._rounds <= ROUNDS_TO_WAIT
        cut = len(self._held) - 1 if waits else len(self._held)
        ripe, self._held = self._held[:cut], self._held[cut:]
        return ripe

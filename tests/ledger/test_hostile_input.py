"""A voter never crashes or contradicts itself, whatever peers send or report."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from hypothesis import given, settings
from hypothesis import strategies as st

from p2ptrain.ids import PeerId
from p2ptrain.ledger.chain.apply import genesis
from p2ptrain.ledger.chain.state import LedgerState
from p2ptrain.ledger.chain.values import (
    Commit,
    Entry,
    Participant,
    Roster,
    Skip,
    Vote,
    promise_message,
    vote_message,
)
from p2ptrain.ledger.core import Ledger
from p2ptrain.ledger.messages.effects import Decided, Effect, Persist, Send
from p2ptrain.ledger.messages.events import Event, Received, Tick
from p2ptrain.ledger.messages.evidence import Evidence, Statement
from p2ptrain.ledger.messages.messages import (
    Accept,
    Accepted,
    Accusation,
    Entries,
    EntriesRequest,
    Message,
    Outcome,
    Prepare,
    Promise,
    Propose,
    Pruned,
    Refused,
)
from p2ptrain.ledger.messages.peer_reports import (
    Joining,
    Leaving,
    PeerDown,
    PeerUp,
    Ready,
    ReduceDone,
    ReduceFailed,
    UpdateHeld,
)
from p2ptrain.ledger.paxos.electorate import proof_of
from p2ptrain.simulation.checkers.lines import Lines
from p2ptrain.simulation.checkers.proposals import ProposalsAreEntitled, ProposalsAreSigned
from p2ptrain.simulation.checkers.spec_rules import VotesAreKept
from p2ptrain.simulation.disk import SimDisk, signature_of, signer, verify
from p2ptrain.testing.ledgers import (
    accepted,
    certify,
    chain_of,
    digest,
    peers,
    proposal_of,
    small_rules,
)

A, B, C, D = peers("a b c d")
RULES = small_rules("a b c", outer_steps=2)
OPENING = Roster(0, 0, (A, B, C), (), tuple(Participant(p, 200, 2) for p in (A, B, C)))
OTHER_WAY_ROUND = replace(OPENING, participants=OPENING.participants[::-1])
VALUES = (OPENING, Roster(0, 0, (A, B, C), (D,)), Commit(0, 0, digest("u")), Skip(0))
START = chain_of(RULES, [])[1]
OPEN = chain_of(RULES, [OPENING])[1]
ENTRIES = [Entry(s.height + 1, s.head, value) for s in (START, OPEN) for value in VALUES]
CERTIFIED = [certify(RULES, START, VALUES[0]), certify(RULES, START, VALUES[1])]
CERTIFIED += [certify(RULES, OPEN, VALUES[2]), certify(RULES, OPEN, VALUES[3])]

PEERS = st.sampled_from([A, B, C, D])
OTHERS = st.sampled_from([B, C, D])
"""Peers that sign the random statements. Only `a`, the voter under test, can sign statements of
`a`.
"""
NUMBERS = st.integers(0, 4)
ENTRY = st.sampled_from(ENTRIES)


def double_vote(peer: PeerId, height: int, round: int) -> Evidence:
    digests = [entry.digest for entry in ENTRIES if entry.height == height][:2]
    one, other = (
        Statement(None, round, it, signature_of(peer, vote_message(RULES.run, height, round, it)))
        for it in digests
    )
    return Evidence(RULES.run, height, peer, one, other)


EVIDENCE = st.builds(double_vote, OTHERS, st.integers(1, 2), NUMBERS)


def signed_promise(voter: PeerId, round: int, accepted: Accepted | None, entry: Entry) -> bytes:
    said = (None, None) if accepted is None else (accepted.round, accepted.entry.digest)
    return signature_of(voter, promise_message(RULES.run, entry.height, round, *said))


def claims(entries: st.SearchStrategy[Entry]) -> st.SearchStrategy[Accepted]:
    genuine = st.builds(partial(accepted, RULES), NUMBERS, entries)
    return genuine | st.builds(Accepted, NUMBERS, entries, st.just(b"unsigned"))


@st.composite
def promises(draw: st.DrawFn, sender: PeerId) -> Promise:
    entry, round = draw(ENTRY), draw(NUMBERS)
    accepted = draw(st.none() | claims(st.just(entry)))
    return Promise(entry.height, round, accepted, signed_promise(sender, round, accepted, entry))


@st.composite
def proposals(draw: st.DrawFn) -> Propose:
    entry, round, proofs = draw(ENTRY), draw(NUMBERS), []
    for voter in draw(st.sets(OTHERS)):
        said = draw(st.none() | claims(ENTRY))
        signature = signed_promise(voter, round, said, entry)
        proofs.append(proof_of(voter, Promise(entry.height, round, said, signature)))
    return proposal_of(RULES, round, entry, tuple(proofs))


@st.composite
def votes(draw: st.DrawFn, sender: PeerId) -> Accept:
    entry, round = draw(ENTRY), draw(NUMBERS)
    unsigned = Vote(RULES.run, entry.height, round, entry.digest, sender, b"")
    return Accept(replace(unsigned, signature=signature_of(sender, unsigned.message)))


def _parts(vote: Vote) -> tuple[object, ...]:
    return (vote.line, vote.height, vote.round, vote.entry, vote.voter)


@st.composite
def received(draw: st.DrawFn) -> Received:
    sender = draw(OTHERS)
    message: Message = draw(
        st.one_of(
            st.builds(Prepare, st.integers(1, 3), NUMBERS),
            promises(sender),
            proposals(),
            votes(sender),
            st.builds(Refused, st.integers(1, 3), NUMBERS, NUMBERS, st.just("no")),
            st.builds(Outcome, st.sampled_from(CERTIFIED)),
            st.builds(EntriesRequest, NUMBERS),
            st.builds(Entries, NUMBERS, st.lists(st.sampled_from(CERTIFIED)).map(tuple)),
            st.builds(Pruned, NUMBERS, NUMBERS, st.just(digest("e"))),
            st.builds(Accusation, EVIDENCE),
        )
    )
    return Received(sender, message)


EVENTS: st.SearchStrategy[Event] = st.one_of(
    received(),
    received(),
    st.builds(Ready, PEERS, st.integers(0, 2), st.just(200), st.just(2)),
    st.builds(ReduceDone, PEERS, st.just(0), st.integers(0, 1), st.just(digest("u"))),
    st.builds(ReduceFailed, PEERS, st.just(0), st.integers(0, 1), st.lists(PEERS).map(tuple)),
    st.builds(UpdateHeld, st.just(digest("u"))),
    st.builds(PeerDown, PEERS),
    st.builds(PeerUp, PEERS),
    st.builds(Joining, PEERS),
    st.builds(Leaving, PEERS),
    st.just(Tick()),
)


class Watched:
    """Passes what voter `a` signs and writes to disk to all checkers of statements. The other peers
    may lie. In every roster of these tests, the voters are the founders, so the checkers need not
    know which entries were decided.
    """

    def __init__(self) -> None:
        self.disk, self.lines, liars = SimDisk(), Lines(genesis(RULES)), frozenset((B, C, D))
        self.checkers = (
            VotesAreKept(lines=self.lines, liars=liars),
            ProposalsAreSigned(lines=self.lines, rules=RULES, liars=liars),
            ProposalsAreEntitled(lines=self.lines, rules=RULES, liars=liars),
        )

    def hears(self, event: Event) -> None:
        if isinstance(event, Received):
            self._say(event.sender, event.message)

    def carries_out(self, effect: Effect, state: LedgerState) -> None:
        if isinstance(effect, Persist):
            self.disk.append_record(effect.record)
        elif isinstance(effect, Decided):
            self.disk.chain.append(effect.certified)
            self.lines.note(state)
        elif isinstance(effect, Send):
            self._say(A, effect.message)

    def _say(self, sender: PeerId, message: Message) -> None:
        for checker in self.checkers:
            checker.on_vote(sender, message, self.disk)

    @property
    def violations(self) -> list[str]:
        return [text for checker in self.checkers for text in checker.violations]


@settings(max_examples=250, deadline=None)
@given(st.lists(st.tuples(EVENTS, st.sampled_from([0.0, 0.1, 3.0]), st.booleans()), max_size=25))
def test_voter_among_random_messages_keeps_its_promises(
    story: list[tuple[Event, float, bool]],
) -> None:
    """The voter also crashes between messages, and restarts from its disk."""
    watched, now = Watched(), 0.0
    disk, ledger = watched.disk, Ledger(RULES, A, signer(A), verify)
    for event, passed, crashes in story:
        now += passed
        watched.hears(event)
        for effect in ledger.handle(event, now):
            watched.carries_out(effect, ledger.state)
        deadline = ledger.next_deadline()
        assert deadline is None or deadline >= now
        if crashes:
            state = ledger.state
            ledger = Ledger(RULES, A, signer(A), verify, disk.chain, disk.records, now)
            assert ledger.state == state
    assert watched.violations == []


ELIGIBLE = [Entry(1, START.head, value) for value in (OPENING, OTHER_WAY_ROUND)]
"""Entries that voter `a` accepts if all members are ready and no other entry is forced."""


@st.composite
def later_proposals(draw: st.DrawFn) -> Received:
    """Draw a proposal of a later round by `b` or `c`. It is mostly valid; one or two of its
    promises can be wrong.
    """
    round, entry, proofs = draw(st.sampled_from([1, 3, 4])), draw(st.sampled_from(ELIGIBLE)), []
    for voter in draw(st.sets(OTHERS, min_size=2)):
        said = draw(st.none() | claims(st.sampled_from(ELIGIBLE)))
        signature = signed_promise(voter, round, said, entry)
        proofs.append(proof_of(voter, Promise(1, round, said, signature)))
    return Received(C, proposal_of(RULES, round, entry, tuple(proofs)))


@settings(max_examples=150, deadline=None)
@given(st.lists(later_proposals(), min_size=1, max_size=4))
def test_voter_among_liars_accepts_only_valid_proposals(story: list[Received]) -> None:
    watched, ledger = Watched(), Ledger(RULES, A, signer(A), verify)
    events: list[Event] = [*(Ready(peer, 0, 200, 2) for peer in (A, B, C)), *story]
    for event in events:
        watched.hears(event)
        for effect in ledger.handle(event, 0.0):
            watched.carries_out(effect, ledger.state)
    assert watched.violations == []

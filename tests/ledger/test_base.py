"""A chain can begin at a base: a state together with the Commit that names it. Everything else
works as with a complete chain.
"""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from p2ptrain.errors import RemoteProtocolError
from p2ptrain.ids import Digest
from p2ptrain.ledger.chain.apply import genesis
from p2ptrain.ledger.chain.canonical import canonical
from p2ptrain.ledger.chain.state import LedgerState
from p2ptrain.ledger.chain.values import (
    Branch,
    Certificate,
    Certified,
    Commit,
    Entry,
    Participant,
    Roster,
    SnapshotRef,
    Value,
    branch_message,
    vote_message,
)
from p2ptrain.ledger.chain.verify import replay
from p2ptrain.ledger.core import Ledger
from p2ptrain.ledger.history.base import Base, Checkpoint, decode_base, encode_base
from p2ptrain.ledger.history.check_base import check_base
from p2ptrain.ledger.history.kept_chain import CommittedUpdate, KeptChain
from p2ptrain.ledger.history.pruning import base_after, base_at, entries_up_to, prunable_to
from p2ptrain.ledger.messages.effects import AskEntries, Decided, Note
from p2ptrain.ledger.messages.events import Accused, PeerHeight, Received, Tick
from p2ptrain.ledger.messages.evidence import Evidence, Statement
from p2ptrain.ledger.messages.messages import Entries, EntriesRequest, Outcome, Pruned
from p2ptrain.simulation.disk import signature_of, signer, verify
from p2ptrain.testing.ledgers import LedgerGroup, certify, chain_of, digest, peers, small_rules

A, B, C, D = peers("a b c d")
RULES = small_rules(outer_steps=50)
PART = (Participant(A, 200, 2),)


def history(steps: int, *, snapshot_every: int = 2) -> list[Certified]:
    """Return a chain with a Roster and a Commit for each outer step. The Commit that ends a step
    certifies the snapshot that was taken before that step.
    """
    values: list[Value] = []
    for step in range(steps):
        snaps = step % snapshot_every == 0 and step > 0
        named = (SnapshotRef(step, digest(f"s{step}")), digest("any")) if snaps else (None, None)
        values += [
            Roster(step, 0, (A, B, C), (), PART),
            Commit(step, 0, digest(f"u{step}"), *named),
        ]
    return chain_of(RULES, values)[0]


CHAIN = history(10)


def kept_chain(chain: list[Certified] = CHAIN) -> KeptChain:
    kept = KeptChain(RULES)
    for certified in chain:
        kept.append(certified)
    return kept


def base_of(height: int) -> Base:
    base = base_at(RULES, kept_chain(), height)
    assert base is not None
    return base


BASE = base_of(10)
"""The base at the end of outer step 4, which is height 10."""


def ledger_from_base(rest: list[Certified] | None = None) -> Ledger:
    return Ledger(RULES, A, signer(A), verify, CHAIN[10:] if rest is None else rest, base=BASE)


# ── bases ────────────────────────────────────────────────────────────────────────────────────────


def test_base_is_a_state_and_the_commit_that_names_it() -> None:
    assert BASE.state == replay(RULES, CHAIN[:9], verify)
    assert (BASE.commit, BASE.step) == (CHAIN[9], 4)
    assert str(BASE.checkpoint) == f"10:{CHAIN[9].entry.digest}"
    assert Checkpoint.parse(str(BASE.checkpoint)) == BASE.checkpoint
    assert decode_base(encode_base(BASE)) == BASE


@pytest.mark.parametrize("text", ["", "10", "10:", ":ab", "-1:" + "a" * 64, "x:" + "a" * 64])
def test_malformed_checkpoints_are_refused(text: str) -> None:
    with pytest.raises(ValueError, match="checkpoint"):
        Checkpoint.parse(text)
    with pytest.raises(ValueError, match="checkpoint"):
        Checkpoint(0, digest("x"))


NO_BASE: dict[str, tuple[LedgerState, Certified]] = {
    "another state": (replace(BASE.state, tokens=1), BASE.commit),
    "a roster": (BASE.state, CHAIN[10]),
    "a commit that names no state": (BASE.state, CHAIN[11]),
    "a commit of another height": (
        BASE.state,
        replace(BASE.commit, entry=replace(BASE.commit.entry, height=11)),
    ),
    "a commit with another parent": (
        BASE.state,
        replace(BASE.commit, entry=replace(BASE.commit.entry, parent=digest("x"))),
    ),
}


@pytest.mark.parametrize("name", NO_BASE)
def test_invalid_base_can_be_neither_made_nor_decoded(name: str) -> None:
    state, commit = NO_BASE[name]
    with pytest.raises(ValueError, match="base"):
        Base(state, commit)
    twin = replace(BASE)
    object.__setattr__(twin, "state", state)
    object.__setattr__(twin, "commit", commit)
    with pytest.raises(RemoteProtocolError):
        decode_base(encode_base(twin))


@settings(max_examples=100, deadline=None)
@given(st.integers(0, 3000), st.binary(max_size=3))
def test_damaged_bytes_are_refused_or_decode_to_a_different_base(at: int, damage: bytes) -> None:
    data = encode_base(BASE)
    bad = data[: at % len(data)] + damage + data[at % len(data) + len(damage) :]
    try:
        base = decode_base(bad)
    except RemoteProtocolError:
        return
    assert encode_base(base) == bad
    assert base.checkpoint != BASE.checkpoint or base.state == BASE.state


def test_base_that_is_not_canonically_encoded_is_refused() -> None:
    with pytest.raises(RemoteProtocolError, match="canonical"):
        decode_base(encode_base(BASE) + b" ")
    with pytest.raises(RemoteProtocolError, match="expected a map"):
        decode_base(canonical([]))


def test_base_must_match_the_checkpoint_the_user_names() -> None:
    check_base(RULES, BASE, BASE.checkpoint, verify)
    for other in (Checkpoint(10, digest("x")), base_of(14).checkpoint):
        with pytest.raises(RemoteProtocolError, match="this base has checkpoint 10:"):
            check_base(RULES, BASE, other, verify)


def test_base_with_a_commit_without_a_quorum_is_refused() -> None:
    few = replace(BASE.commit.certificate, votes=BASE.commit.certificate.votes[:1])
    bad = Base(BASE.state, replace(BASE.commit, certificate=few))
    with pytest.raises(RemoteProtocolError, match="not a quorum"):
        check_base(RULES, bad, bad.checkpoint, verify)


# ── chains that begin at a base
# ─────────────────────────────────────────────────────────────────────


def test_ledger_continues_from_a_base_as_from_genesis() -> None:
    whole, cut = Ledger(RULES, A, signer(A), verify, CHAIN), ledger_from_base()
    assert cut.state == whole.state
    assert cut.chain == CHAIN[9:]
    assert cut.updates == {step: whole.updates[step] for step in range(4, 10)}
    assert cut.updates[4] == CommittedUpdate(4, 10, digest("u4"))
    assert (cut.kept.at(9), cut.kept.at(10), cut.kept.at(21)) == (None, CHAIN[9], None)
    assert cut.page(11) == Entries(20, tuple(CHAIN[10:]))
    assert replay(RULES, cut.chain, verify, start=BASE.state) == whole.state


@pytest.mark.parametrize("from_height", [0, 1, 9])
def test_request_for_pruned_entries_is_answered_with_pruned(from_height: int) -> None:
    pruned = Pruned(20, 9, CHAIN[9].entry.digest)
    ledger = ledger_from_base()
    (said,) = ledger.handle(Received(D, EntriesRequest(from_height)), 0.0)
    assert said.message == pruned  # type: ignore[union-attr]


def test_base_without_further_entries_is_a_valid_chain() -> None:
    ledger = ledger_from_base([])
    assert (ledger.state.height, ledger.page(10)) == (10, Entries(10, (CHAIN[9],)))
    effects = ledger.handle(Received(B, Entries(20, tuple(CHAIN[10:]))), 0.0)
    assert [it.certified for it in effects if isinstance(it, Decided)] == CHAIN[10:]


def test_received_entry_that_is_pruned_here_is_not_compared() -> None:
    ledger = ledger_from_base()
    other = certify(RULES, chain_of(RULES, [])[1], Roster(0, 0, (A, B, C), (D,)))
    assert ledger.handle(Received(D, Outcome(other)), 0.0) == []
    second = certify(RULES, BASE.state, Commit(4, 0, digest("another")))
    notes = [it for it in ledger.handle(Received(D, Outcome(second)), 0.0) if isinstance(it, Note)]
    assert "d sent a different entry 10 than this node has: a fork or a forgery" in [
        it.text for it in notes
    ]


def double_vote(peer: str) -> Evidence:
    (voter,) = peers(peer)
    one, two = (
        Statement(None, 0, it, signature_of(voter, vote_message(RULES.run, 3, 0, it)))
        for it in (digest("x"), digest("y"))
    )
    return Evidence(RULES.run, 3, voter, one, two)


def test_former_voter_from_pruned_heights_can_still_be_accused() -> None:
    """The base does not name the voters of pruned heights. But a voter must have contributed before
    it can vote, and the base names all contributors, so it names the former voter `d`.
    """
    gone = replace(BASE.state, tokens_by_peer={**BASE.state.tokens_by_peer, D: 5})
    value = CHAIN[9].entry.value
    assert isinstance(value, Commit)
    commit = replace(value, state=gone.digest)
    ledger = Ledger(RULES, A, signer(A), verify, base=Base(gone, certify(RULES, gone, commit)))
    for name in "bd":
        ledger.handle(Accused(double_vote(name)), 0.0)
    ledger.handle(Accused(double_vote("stranger")), 0.0)
    assert set(ledger.reports.accused) == {B, D}


# ── pruning ───────────────────────────────────────────────────────────────────────────────────


def test_pruning_removes_the_entries_before_the_base() -> None:
    kept = kept_chain()
    assert kept.prune(BASE) == 9
    assert (kept.base, kept.start, kept.entries) == (BASE, BASE.state, CHAIN[9:])
    assert sorted(kept.updates) == list(range(4, 10))
    again = base_at(RULES, kept, 14)
    assert again == base_of(14)
    assert kept.prune(again) == 4
    assert kept.entries == CHAIN[13:]


def test_making_of_a_base_stops_when_the_base_is_not_wanted() -> None:
    kept, wanted = kept_chain(), iter([True, True, False])
    found = entries_up_to(kept, 10)
    assert found is not None
    assert base_after(RULES, kept.start, *found, lambda: not next(wanted)) is None
    assert next(wanted, None) is None, "it must stop before the third entry"


@pytest.mark.parametrize("height", [0, 1, 9, 12, 21])
def test_only_a_commit_that_names_a_state_can_be_a_base(height: int) -> None:
    assert base_at(RULES, kept_chain(), height) is None


@pytest.mark.parametrize(
    ("keep_entries", "step_max", "height"),
    [
        *((0, 50, 18), (2, 50, 18), (3, 50, 14), (10, 50, 10), (14, 50, 6), (15, 50, None)),
        *((0, 8, 18), (0, 7, 14), (0, 1, None), (50, 50, None)),
    ],
)
def test_newest_commit_that_is_old_enough_is_the_base(
    keep_entries: int, step_max: int, height: int | None
) -> None:
    assert prunable_to(CHAIN, keep_entries=keep_entries, step_max=step_max) == height


def test_chain_that_begins_at_its_newest_base_is_not_pruned() -> None:
    assert prunable_to(CHAIN[9:14], keep_entries=1, step_max=50) is None
    assert prunable_to([], keep_entries=0, step_max=50) is None


# ── catching up with peers that have pruned ───────────────────────────────────────────────────────

PRUNED = Pruned(20, 9, CHAIN[9].entry.digest)


def newcomer() -> Ledger:
    return Ledger(RULES, D, signer(D), verify)


def asked(ledger: Ledger, event: object, now: float) -> list[str]:
    effects = ledger.handle(event, now)  # type: ignore[arg-type]
    return [it.peer for it in effects if isinstance(it, AskEntries)]


def test_next_peer_is_asked_at_once_if_the_first_has_pruned_the_entries() -> None:
    ledger = newcomer()
    assert asked(ledger, PeerHeight(A, 20), 0.0) == [A]
    assert ledger.out_of_reach() == {}
    assert asked(ledger, PeerHeight(B, 20), 0.1) == []
    assert asked(ledger, Received(A, PRUNED), 0.2) == [B]
    assert ledger.out_of_reach() == {}
    assert asked(ledger, Tick(), 5.0) == [B]


def test_entries_that_all_peers_have_pruned_are_out_of_reach() -> None:
    ledger = newcomer()
    assert asked(ledger, PeerHeight(A, 20), 0.0) == [A]
    assert asked(ledger, PeerHeight(B, 20), 0.0) == []
    assert asked(ledger, Received(A, PRUNED), 0.2) == [B]
    assert asked(ledger, Received(B, PRUNED), 0.4) == []
    assert ledger.out_of_reach() == {A: PRUNED, B: PRUNED}
    assert asked(ledger, PeerHeight(A, 21), 9.0) == []
    assert asked(ledger, PeerHeight(C, 20), 10.0) == [C]
    assert ledger.out_of_reach() == {}


def test_unsolicited_pruned_answer_is_ignored() -> None:
    """If a node believed a Pruned message that it had not requested, one message could convince it
    that it is far behind.
    """
    ledger = newcomer()
    assert asked(ledger, Received(A, PRUNED), 0.0) == []
    assert asked(ledger, PeerHeight(A, 20), 1.0) == [A]
    assert asked(ledger, PeerHeight(B, 20), 1.0) == []
    assert asked(ledger, Received(B, PRUNED), 1.1) == []
    assert asked(ledger, Tick(), 3.0) == [B]
    assert ledger.out_of_reach() == {}


def test_height_in_a_pruned_answer_does_not_count() -> None:
    ledger = newcomer()
    assert asked(ledger, PeerHeight(A, 20), 0.0) == [A]
    assert asked(ledger, Received(A, Pruned(10**9, 10**9, Digest("e" * 64))), 0.1) == []
    assert ledger.out_of_reach().keys() == {A}
    assert asked(ledger, Received(B, Entries(20, tuple(CHAIN))), 0.2) == []
    assert (ledger.state.height, ledger.out_of_reach()) == (20, {})


def test_peer_that_pruned_entries_which_we_have_is_asked_again() -> None:
    """The answer does not concern the entries that we lack. So the peer is asked again, but not
    sooner than without that answer.
    """
    ledger = ledger_from_base([])
    assert asked(ledger, PeerHeight(B, 20), 0.0) == [B]
    assert asked(ledger, Received(B, PRUNED), 0.1) == []
    assert ledger.out_of_reach() == {}
    assert asked(ledger, Tick(), 2.0) == [B]


def test_late_pruned_answer_counts_but_does_not_trigger_a_request() -> None:
    ledger = newcomer()
    assert asked(ledger, PeerHeight(A, 20), 0.0) == [A]
    assert asked(ledger, PeerHeight(B, 20), 0.1) == []
    assert asked(ledger, Tick(), 2.0) == [B]
    assert asked(ledger, Received(A, PRUNED), 2.1) == []
    assert asked(ledger, Received(B, PRUNED), 2.2) == []
    assert ledger.out_of_reach() == {A: PRUNED, B: PRUNED}


def on_a_branch() -> Ledger:
    """Return a ledger on a branch whose only voter is peer `a`."""
    rules = small_rules("a b c", participants_min=1, branch_after_s=60.0)
    start = genesis(rules)
    entry = Entry(1, start.head, Branch(0, (A,)))
    vote = signature_of(A, branch_message(start.line, entry))
    branch = Certified(entry, Certificate(1, 0, entry.digest, ((A, vote),)))
    return Ledger(rules, A, signer(A), verify, [branch])


def test_pruned_answer_of_a_peer_on_another_line_does_not_count() -> None:
    """We ask a peer on another line (here: the run that we branched off from) only because its
    chain may outrank ours. Its answer says nothing about the entries that our own line lacks.
    """
    ledger = on_a_branch()
    run, line = ledger.rules.run, ledger.state.line
    assert asked(ledger, PeerHeight(B, 20, run), 0.0) == [B]
    assert asked(ledger, Received(B, PRUNED), 0.1) == []
    assert ledger.out_of_reach() == {}
    assert asked(ledger, PeerHeight(B, 20, line), 1.0) == [B]
    assert asked(ledger, PeerHeight(B, 20, run), 2.0) == [B]
    assert asked(ledger, Received(B, PRUNED), 2.1) == []
    assert asked(ledger, PeerHeight(B, 21, line), 4.0) == [B]
    assert ledger.out_of_reach() == {}


def test_peer_that_has_pruned_can_restart_and_vote() -> None:
    """The disk of `a` has only the base and later entries. After a restart, `a` votes together with
    peers that keep the whole chain.
    """
    some = LedgerGroup(RULES)
    for name in "abc":
        some.disks[peers(name)[0]].chain.extend(CHAIN)
        some.start(name)
    some.prune("a", 10)
    assert (some.disks[A].base, some.disks[A].chain) == (BASE, CHAIN[10:])
    some.crash("a")
    some.start("a")
    some.ready("a b c")
    some.deliver()
    assert set(some.heights().values()) == {21}
    assert some.disks[A].chain == some["a"].chain[1:]

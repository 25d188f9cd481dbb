"""Only the organiser's signature makes an allowlist valid, and the highest number wins."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from p2ptrain.encoding import pack
from p2ptrain.errors import RemoteProtocolError
from p2ptrain.identity import Identity
from p2ptrain.ids import PeerId
from p2ptrain.run import Allowlist, Run, Signed, SignedAllowlist
from p2ptrain.run.allowlist import ALLOWLIST_BYTES_MAX, REVISION_MAX, REVISIONS_MAX
from p2ptrain.run.envelope import COSIGNATURES_BYTES_MAX, ENVELOPE_BYTES_MAX
from tests.run.conftest import tiny_run

ORGANISER = Identity.from_seed(b"o" * 32)
RUN = tiny_run(ORGANISER)
PEERS = [Identity.from_seed(bytes([number]) * 32).peer for number in range(1, 6)]


def test_list_survives_encoding(run: Run, organiser: Identity) -> None:
    signed = SignedAllowlist.publish(organiser, Allowlist.of(run.id, 3, PEERS))
    again = SignedAllowlist.from_bytes(signed.to_bytes(), run)
    assert again == signed
    assert again.allowlist == Allowlist(run.id, 3, tuple(sorted(PEERS)))


def test_adding_and_removing_a_peer_makes_the_next_list(run: Run) -> None:
    first = Allowlist.of(run.id, 1, PEERS[:2])
    second = first.with_peer(PEERS[2])
    third = second.without_peer(PEERS[0])
    assert second == Allowlist.of(run.id, 2, PEERS[:3])
    assert third == Allowlist.of(run.id, 3, PEERS[1:3])
    assert first.with_peer(PEERS[0]).peers == first.peers


@given(order=st.permutations(range(1, 6)))
def test_highest_number_wins_in_any_order_of_arrival(order: list[int]) -> None:
    current: SignedAllowlist | None = None
    for sequence in order:
        incoming = SignedAllowlist.publish(
            ORGANISER, Allowlist.of(RUN.id, sequence, PEERS[:sequence])
        )
        if incoming.replaces(current):
            current = incoming
    assert current is not None
    assert current.allowlist == Allowlist.of(RUN.id, 5, PEERS)


def test_older_or_equal_list_does_not_replace_a_newer_one(run: Run, organiser: Identity) -> None:
    old, same, new = (
        SignedAllowlist.publish(organiser, Allowlist.of(run.id, sequence, PEERS[:1]))
        for sequence in (1, 2, 2)
    )
    assert not old.replaces(new)
    assert not same.replaces(new)
    assert new.replaces(old)


def test_list_without_readers_and_revisions_has_the_bytes_of_earlier_versions(
    run: Run, organiser: Identity
) -> None:
    signed = SignedAllowlist.publish(organiser, Allowlist.of(run.id, 3, PEERS).with_peer(PEERS[0]))
    plain = {"run": run.id, "sequence": 4, "peers": sorted(PEERS)}
    assert signed.signed.payload == pack(plain)


def test_equal_numbers_are_decided_by_the_digest_in_every_order() -> None:
    lists = [SignedAllowlist.publish(ORGANISER, Allowlist.of(RUN.id, 2, [peer])) for peer in PEERS]
    best = min(lists, key=lambda each: each.signed.digest)
    for order in itertools.permutations(lists, 3):
        current: SignedAllowlist | None = None
        for incoming in (*order, best):
            current = incoming if incoming.replaces(current) else current
        assert current == best


def test_merged_list_keeps_all_approvals_and_the_revocations_win() -> None:
    """Ann and Bob change the same list at the same time."""
    base = Allowlist.of(RUN.id, 1, PEERS[:2])
    ann = base.without_peer(PEERS[0], tracks=True).with_peer(PEERS[2])
    bob = base.with_peer(PEERS[0]).with_peer(PEERS[3]).with_peer(PEERS[2])
    merged = ann.merged(bob)
    assert merged == bob.merged(ann)
    assert set(merged.peers) == {PEERS[1], PEERS[2], PEERS[3]}
    assert merged.revoked == {PEERS[0]}
    assert merged.sequence == bob.sequence + 1
    assert merged.covers(ann)
    assert merged.covers(bob)
    assert not bob.covers(ann)
    again = merged.with_peer(PEERS[0])
    assert again.merged(ann).roles[PEERS[0]] == "trainer", "this approval saw the revocation"
    assert again.revisions == ((PEERS[0], 2),)


@given(
    steps=st.lists(
        st.tuples(st.sampled_from("abm"), st.sampled_from(PEERS), st.booleans()), max_size=12
    )
)
def test_two_organisers_end_with_equal_lists_once_each_has_merged(
    steps: list[tuple[str, PeerId, bool]],
) -> None:
    lists = dict.fromkeys("ab", Allowlist.of(RUN.id, 1, PEERS[:1]))
    for who, peer, adds in steps:
        if who == "m":
            lists["a"] = lists["a"].merged(lists["b"])
        elif adds:
            lists[who] = lists[who].with_peer(peer, tracks=True)
        else:
            lists[who] = lists[who].without_peer(peer, tracks=True)
    first, second = lists["a"].merged(lists["b"]), lists["b"].merged(lists["a"])
    assert first == second
    assert all(first.covers(each) for each in lists.values())


def test_role_is_kept_and_the_lesser_one_wins_if_two_were_given_at_once() -> None:
    base = Allowlist.of(RUN.id, 1, PEERS[:1])
    reader = base.with_peer(PEERS[1], "reader", tracks=True)
    assert (reader.peers, reader.readers) == ((PEERS[0],), (PEERS[1],))
    trainer = base.with_peer(PEERS[1], tracks=True)
    assert reader.merged(trainer).roles[PEERS[1]] == "reader"
    later = reader.with_peer(PEERS[1], tracks=True)
    assert later.revisions == ((PEERS[1], 2),)
    assert reader.merged(later).roles[PEERS[1]] == "trainer"
    signed = SignedAllowlist.publish(ORGANISER, later.with_peer(PEERS[2], "reader"))
    assert SignedAllowlist.from_bytes(signed.to_bytes(), RUN) == signed


def test_revocation_of_a_peer_that_is_not_listed_is_remembered_if_the_list_counts() -> None:
    base = Allowlist.of(RUN.id, 1, PEERS[:1])
    assert base.without_peer(PEERS[1]).revoked == set()
    revoked = base.without_peer(PEERS[1], tracks=True)
    assert revoked.revoked == {PEERS[1]}
    assert revoked.without_peer(PEERS[1]).revisions == revoked.revisions


def test_unsigned_list_is_refused(run: Run, organiser: Identity) -> None:
    allowlist = Allowlist.of(run.id, 1, PEERS)
    payload = pack({"run": run.id, "sequence": 1, "peers": list(allowlist.peers)})
    bare = {"kind": "allowlist", "payload": payload, "signer": organiser.peer, "signature": b""}
    with pytest.raises(RemoteProtocolError) as caught:
        SignedAllowlist.from_bytes(pack(bare), run)
    assert caught.value.code == "SIGNATURE"
    with pytest.raises(RemoteProtocolError):
        SignedAllowlist.from_bytes(payload, run)


def test_manifest_is_not_an_allowlist(run: Run) -> None:
    with pytest.raises(RemoteProtocolError, match="expected a document of kind allowlist"):
        SignedAllowlist.from_bytes(run.to_bytes(), run)


@pytest.mark.parametrize(
    "changes",
    [
        {"sequence": 0},
        {"sequence": -1},
        {"sequence": 2**60},
        {"sequence": "1"},
        {"peers": ["nobody"]},
        {"peers": [3]},
        {"peers": {}},
        {"peers": [PEERS[0], PEERS[0]]},
        {"peers": sorted(PEERS, reverse=True)},
        {"more": 1},
        {"readers": []},
        {"readers": [PEERS[0]]},
        {"readers": ["nobody"]},
        {"revisions": []},
        {"revisions": [PEERS[0]]},
        {"revisions": [["nobody", 2]]},
        {"revisions": [[PEERS[0], True]]},
        {"revisions": [[PEERS[0], 0]]},
        {"revisions": [[PEERS[0], 1]]},
        {"revisions": [[PEERS[0], 2**40]]},
        {"revisions": [[PEERS[0], 2], [PEERS[0], 4]]},
    ],
)
def test_malformed_list_is_refused_although_it_is_signed(
    run: Run, organiser: Identity, changes: dict[str, object]
) -> None:
    value = {"run": run.id, "sequence": 1, "peers": sorted(PEERS)} | changes
    signed = Signed.by(organiser, "allowlist", pack(value))
    with pytest.raises(RemoteProtocolError):
        SignedAllowlist.from_bytes(signed.to_bytes(), run)


def test_length_of_a_list_is_bounded_and_the_longest_one_can_be_sent(
    run: Run, organiser: Identity
) -> None:
    letters = "123456789ABCDEFGHJKLMNPQRSTUVWXYZ"
    too_many = [
        PeerId("".join(chars))
        for chars in itertools.islice(itertools.product(letters, repeat=4), 4097)
    ]
    with pytest.raises(ValueError, match="exceed the limit of 4096"):
        Allowlist.of(run.id, 1, too_many)
    peers = [Identity.from_seed(number.to_bytes(32, "big")).peer for number in range(4096)]
    revisions = tuple((peer, REVISION_MAX) for peer in sorted(peers)[:REVISIONS_MAX])
    listed = Allowlist(run.id, 1, tuple(sorted(peers)), (), revisions)
    longest = SignedAllowlist.publish(organiser, listed)
    assert SignedAllowlist.from_bytes(longest.to_bytes(), run) == longest
    room = 2 * ENVELOPE_BYTES_MAX + COSIGNATURES_BYTES_MAX
    assert len(longest.to_bytes()) > ALLOWLIST_BYTES_MAX - room

"""What a participant weighs in a reduce: the tokens whose work its fragment carries.

Where a model is averaged in P fragments, an outer step commits the tokens of H ÷ P inner steps, and
the fragment that it averages carries those since this fragment was averaged last: of up to H inner
steps, and fewer of whoever has just joined. Both are in the chain, which says in which outer steps
a member took part and with how many tokens; so nobody claims anything, and all participants come to
the same weights, or their requests would not fit each other. With one fragment a participant weighs
the tokens that it commits.

Nothing is counted from before the newest certified snapshot: there a chain may begin that has been
pruned, and whoever begins there must come to the same weights. Just after one, all weigh what they
commit, as far as that is known alike. What the chain cannot tell, does not count: a trainer that is
restarted loses its work on fragments that were not averaged yet, and its peer weighs as before.

An eager trainer needs to know sooner what its work will weigh; it makes do with a guess.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from p2ptrain.archive.step_index import History
from p2ptrain.ids import PeerId
from p2ptrain.ledger.chain.values import Participant, Roster
from p2ptrain.run import RunManifest


def weights(
    history: History, since: Mapping[PeerId, int], roster: Roster, fragments: int
) -> tuple[int, ...]:
    """By participant of `roster`, which is open. `since`: the outer step of its admission."""
    tokens = {each.peer: each.tokens for each in roster.participants}
    counting = set(tokens)
    for step in range(roster.step - 1, history.certified_step() - 1, -1):
        counting = {peer for peer in counting if since[peer] <= step}
        if not counting:
            break
        for each in history.participants(step):
            if each.peer not in counting:
                continue
            if (roster.step - step) % fragments == 0:
                counting.remove(each.peer)  # What it had trained until then is merged.
            else:
                tokens[each.peer] += each.tokens
    return tuple(tokens[each.peer] for each in roster.participants)


def eagerness(
    manifest: RunManifest, last: Sequence[Participant], me: PeerId
) -> tuple[float, float, float]:
    """How far an eager trainer goes on its own newest work before the mean of it comes: its share
    of that mean, and the outer optimizer's rate and momentum. Nowhere in a run that is not eager.
    """
    if not manifest.sync.eager:
        return 0.0, 0.0, 0.0
    return expected_share(last, me), manifest.outer.lr, manifest.outer.momentum


def expected_share(last: Sequence[Participant], me: PeerId) -> float:
    """Which part of the next mean will be this peer's, judged by who took part `last`; a guess.

    Before anybody did, 0: who knows of nobody adds nothing.
    """
    if not last:
        return 0.0
    mine = sum(each.tokens for each in last if each.peer == me)
    if mine == 0:
        return 1 / (len(last) + 1)
    return mine / sum(each.tokens for each in last)

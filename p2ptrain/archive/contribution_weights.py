"""The weight of a participant in a reduce: the number of tokens that its fragment was trained on.

If a model is averaged in P fragments, an outer step commits the tokens of H ÷ P inner steps. But
the averaged fragment was trained on all tokens since its own last average. These are the tokens of
up to H inner steps, and fewer for a peer that has just joined. The chain records the outer steps
that a member took part in, and its tokens. So peers do not report weights: all participants compute
the same weights from the chain. If their weights differed, the reduce would fail. With one
fragment, the weight is the number of tokens that a participant commits.

Tokens before the newest certified snapshot are not counted: a pruned chain may begin there, and a
node that starts there must compute the same weights. So right after a snapshot, the weights are
only the newly committed tokens. Events that are not in the chain are ignored. For example, a
trainer that restarts loses its work on fragments that were not averaged yet, but its peer's weight
does not change.

An eager trainer applies its own work before the mean arrives. It uses an estimate of the weight.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from p2ptrain.archive.step_index import StepIndex
from p2ptrain.ids import PeerId
from p2ptrain.ledger.chain.values import Participant, Roster
from p2ptrain.run import RunManifest


def weights(
    history: StepIndex, since: Mapping[PeerId, int], roster: Roster, fragments: int
) -> tuple[int, ...]:
    """Return the weight of each participant of `roster`, in tokens. `since` is the outer step in
    which each member was admitted.
    """
    return weights_at(history, since, roster.step, roster.participants, fragments)


def weights_at(
    history: StepIndex,
    since: Mapping[PeerId, int],
    step: int,
    participants: Sequence[Participant],
    fragments: int,
) -> tuple[int, ...]:
    """Return the same for the participants of outer step `step`, which may have ended since."""
    tokens = {each.peer: each.tokens for each in participants}
    counting, certified = set(tokens), history.certified_before(step)
    for earlier in range(step - 1, certified - 1, -1):
        counting = {peer for peer in counting if since[peer] <= earlier}
        if not counting:
            break
        for each in history.participants(earlier):
            if each.peer not in counting:
                continue
            if (step - earlier) % fragments == 0:
                counting.remove(each.peer)  # The average of this step contains the earlier work.
            else:
                tokens[each.peer] += each.tokens
    return tuple(tokens[each.peer] for each in participants)


def eagerness(
    manifest: RunManifest, last: Sequence[Participant], me: PeerId
) -> tuple[float, float, float]:
    """Return what an eager trainer needs to apply its own newest work before the mean arrives: its
    expected share of that mean, and the outer optimizer's rate and momentum. All are 0 in a run
    that is not eager.
    """
    if not manifest.sync.eager:
        return 0.0, 0.0, 0.0
    return expected_share(last, me), manifest.outer.lr, manifest.outer.momentum


def expected_share(last: Sequence[Participant], me: PeerId) -> float:
    """Estimate the share of this peer in the next mean from the participants of the `last` mean.

    Return 0 if `last` is empty: a peer that does not know any participants does not apply its work
    early.
    """
    if not last:
        return 0.0
    mine = sum(each.tokens for each in last if each.peer == me)
    if mine == 0:
        return 1 / (len(last) + 1)
    return mine / sum(each.tokens for each in last)

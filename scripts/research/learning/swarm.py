"""Peers that train, average and take outer steps together in one process, as the settings say.

θ and m exist once, since real peers have identical copies. The lease book is that of the ledger. A
block is the data of one inner step of one peer. Blocks are assigned in the order of the members,
and a stopping peer gives its blocks back.

An outer step has the same phases as in a node. Read: take each peer's difference from θ. Average:
apply the ring's arithmetic. Commit: keep the update's bytes. Merge, τ inner steps later: apply the
outer step's kernel to θ and m, then change the local weights.

The fields of `Swarm` contain its whole state, and `checkpoint` saves all of them.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from p2ptrain.ids import PeerId
from p2ptrain.ipc.learning_rate import learning_rate
from p2ptrain.ledger.chain import leases
from p2ptrain.ledger.chain.leases import Leases
from p2ptrain.sync.eager import Eager
from p2ptrain.sync.fragments import Fragment, fragments
from p2ptrain.sync.mixing import mix
from p2ptrain.trainer.formats.genesis import genesis
from p2ptrain.trainer.formats.shapes import layout_of
from p2ptrain.trainer.tools.replica import Replica
from scripts.research.learning.averaging import Contribution, average
from scripts.research.learning.corpus import Corpus
from scripts.research.learning.settings import SLOWNESS, Settings

Floats = NDArray[np.float32]


@dataclass(slots=True, eq=False)
class Peer:
    """A member, with its replica and its own residuals (`owes`) and eager state."""

    name: PeerId
    replica: Replica
    joined_step: int = 0
    """The inner step at which the peer joined, or 0 if it was present from the start."""
    owes: Floats | None = None
    eager: Eager | None = None


@dataclass(slots=True)
class Commit:
    """The result of an outer step: an update of a fragment, to be merged later."""

    outer_step: int
    payload: bytes


@dataclass(slots=True)
class Swarm:
    """The state of all peers.

    `inner_step` is the number of completed inner steps. `pending` are committed updates that have
    not been merged yet.
    """

    settings: Settings
    corpus: Corpus
    theta: Floats
    momentum: Floats
    peers: list[Peer]
    book: Leases
    fragments: tuple[Fragment, ...]
    inner_step: int = 0
    joined: int = 0
    pending: list[Commit] = field(default_factory=list)
    losses: list[float] = field(default_factory=list)
    """Training losses of the inner steps since the last point of the curve."""
    joiners: list[float] = field(default_factory=list)
    """With churn, one sum for each inner step of an outer step: the losses of all new members, each
    minus the mean loss of the other peers."""

    @classmethod
    def begin(cls, settings: Settings, corpus: Corpus, theta: Floats | None = None) -> Swarm:
        """Make a swarm whose peers begin with `theta`, by default the seed's initial weights."""
        theta = genesis(settings.model, settings.seed) if theta is None else theta
        layout = layout_of(settings.model)
        swarm = cls(
            settings,
            corpus,
            theta,
            np.zeros_like(theta),
            [],
            Leases({}),
            fragments(layout, settings.sync.fragments),
        )
        for _ in range(settings.peers):
            swarm.join()
        return swarm

    def join(self, moments: Mapping[str, Floats] | None = None) -> None:
        """Add a member with the current θ, and with these optimizer moments if given."""
        settings = self.settings
        replica = Replica(
            settings.model, settings.inner, settings.precision, compiled=settings.compiled
        )
        np.copyto(replica.weights, self.theta)
        if moments is not None:
            replica.set_moments(dict(moments))
        name = PeerId(f"peer-{self.joined}")
        owes = np.zeros_like(self.theta) if settings.feedback else None
        eager = Eager(self.theta.size) if settings.sync.eager else None
        self.peers.append(Peer(name, replica, self.inner_step, owes, eager))
        self.joined += 1

    # -- inner steps ----------------------------------------------------------------------------

    def advance(self) -> None:
        """Let each peer that is due do one inner step. Then do what is due after it: read, average,
        commit or merge."""
        settings = self.settings
        within = self.inner_step % settings.schedule.stride
        if within == 0:
            names = [peer.name for peer in self.peers]
            self.book = leases.top_up(self.book, names, settings.schedule.stride)
        losses = [
            self._train(peer, within // (SLOWNESS if self._slow(number) else 1))
            for number, peer in enumerate(self.peers)
            if self._trains(number, within)
        ]
        self.losses += losses
        if self._joined_with(within):
            self.joiners += [0.0] * (within + 1 - len(self.joiners))
            self.joiners[within] += losses[-1] - statistics.fmean(losses[:-1])
        self.inner_step += 1
        if settings.averages:
            self._synchronise()
        else:
            self._finish_alone()

    def _slow(self, number: int) -> bool:
        return number >= len(self.peers) - self.settings.slow

    def _trains(self, number: int, within: int) -> bool:
        return not self._slow(number) or within % SLOWNESS == SLOWNESS - 1

    def _joined_with(self, within: int) -> bool:
        """Return whether the last peer joined at the beginning of this outer step."""
        return 0 < self.peers[-1].joined_step == self.inner_step - within

    def _train(self, peer: Peer, nth: int) -> float:
        """Train the peer on the nth block of its lease, and return the loss."""
        settings = self.settings
        count = settings.peer_sequences
        block = self.book.held[peer.name][nth]
        before = settings.start.sequences if settings.start else 0
        rows = self.corpus.rows(settings.seed, before + block * count, count)
        rate = learning_rate(settings.inner, self.inner_step)
        if settings.churn is not None and peer.joined_step > 0:
            since = self.inner_step - peer.joined_step + 1
            rate *= min(1.0, since / max(1, settings.churn.warmup_steps))
        return peer.replica.train(rows, rate)

    def _finish_alone(self) -> None:
        """End an inner step of ordinary training: θ is a copy of the only peer's weights."""
        np.copyto(self.theta, self.peers[0].replica.weights)
        if self.inner_step % self.settings.schedule.stride == 0:
            self._settle(self.peers)

    # -- outer steps ----------------------------------------------------------------------------

    def _synchronise(self) -> None:
        due = self.settings.schedule.due(self.inner_step)
        if due.read is not None:
            self._read(due.read)
        if due.merge is not None:
            self._merge(due.merge)
        elif due.read is not None and self.settings.schedule.delayed:
            self._meet(self.fragments[0])
        if due.read is not None and self.settings.churn is not None:
            self._replace(due.read)

    def _read(self, outer_step: int) -> None:
        """Average this outer step's fragment among the peers that contribute to it."""
        settings = self.settings
        fragment = self.fragments[settings.schedule.fragment_of(outer_step)]
        taking_part = [peer for peer in self.peers if peer is not self._victim(outer_step)]
        read = [self._contribution(peer, fragment) for peer in taking_part]
        payload = self._averaged(read, fragment)
        self.pending.append(Commit(outer_step, payload))
        for peer, each in zip(taking_part, read, strict=True):
            if peer.owes is not None and each.loses is not None:
                fragment.scatter(each.loses, peer.owes)
            if peer.eager is not None:
                own = each.anchor - each.local
                peer.eager.step(own, 1 / len(read), settings.outer_lr, settings.momentum)
        self._settle(taking_part)

    def _settle(self, taking_part: Sequence[Peer]) -> None:
        """Commit the blocks that these peers have trained."""
        self.book = leases.commit(
            self.book, [(peer.name, self._blocks(peer)) for peer in taking_part]
        )

    def _blocks(self, peer: Peer) -> int:
        stride = self.settings.schedule.stride
        return stride // SLOWNESS if self._slow(self.peers.index(peer)) else stride

    def _contribution(self, peer: Peer, fragment: Fragment) -> Contribution:
        settings = self.settings
        anchor, local = (np.empty(fragment.numel, np.float32) for _ in range(2))
        began = self.theta if peer.eager is None else self.theta + peer.eager.deviation
        fragment.gather(began, anchor)
        fragment.gather(peer.replica.weights, local)
        owes = None
        if peer.owes is not None:
            owes = np.empty_like(anchor)
            fragment.gather(peer.owes, owes)
        tokens = self._blocks(peer) * settings.peer_sequences * settings.model.sequence
        weight = tokens if settings.weights == "tokens" else 1
        loses = None if owes is None else np.empty_like(anchor)
        return Contribution(weight, anchor, local, owes, loses)

    def _averaged(self, read: Sequence[Contribution], fragment: Fragment) -> bytes:
        return average(read, self.settings.kernels)

    def _merge(self, outer_step: int) -> None:
        """Apply the update to θ and m, then mix θ into the peers' weights."""
        commit = self.pending.pop(0)
        assert commit.outer_step == outer_step
        fragment = self.fragments[self.settings.schedule.fragment_of(outer_step)]
        self._apply(commit.payload, fragment)
        self._meet(fragment)

    def _meet(self, fragment: Fragment) -> None:
        """Mix θ into the weights of each peer. In eager mode a peer uses its own estimate of θ."""
        settings = self.settings
        outer, local = (np.empty(fragment.numel, np.float32) for _ in range(2))
        for peer in self.peers:
            began = self.theta if peer.eager is None else self.theta + peer.eager.deviation
            fragment.gather(began, outer)
            fragment.gather(peer.replica.weights, local)
            mix(local, outer, settings.sync.mixing)
            fragment.scatter(local, peer.replica.weights)

    def _apply(self, payload: bytes, fragment: Fragment) -> None:
        settings = self.settings
        theta, momentum = (np.empty(fragment.numel, np.float32) for _ in range(2))
        fragment.gather(self.theta, theta)
        fragment.gather(self.momentum, momentum)
        rates = settings.outer_lr, settings.momentum
        settings.kernels.outer_step(theta, momentum, payload, *rates)
        fragment.scatter(theta, self.theta)
        fragment.scatter(momentum, self.momentum)

    def drain(self) -> None:
        """Apply the pending updates at the end of the run."""
        for commit in self.pending:
            number = self.settings.schedule.fragment_of(commit.outer_step)
            self._apply(commit.payload, self.fragments[number])
        self.pending.clear()

    # -- churn ----------------------------------------------------------------------------------

    def _victim(self, outer_step: int) -> Peer | None:
        """Draw the peer that stops before it contributes to this outer step, or return None."""
        if self.settings.churn is None:
            return None
        key = self.settings.seed + (outer_step << 64)
        drawn = np.random.Generator(np.random.Philox(key=key)).integers(len(self.peers))
        return self.peers[int(drawn)]

    def _replace(self, outer_step: int) -> None:
        """Remove the stopped peer, give its blocks back, and start a new peer."""
        churn, victim = self.settings.churn, self._victim(outer_step)
        assert churn is not None
        assert victim is not None
        self.peers.remove(victim)
        self.book = leases.give_back(self.book, [victim.name])
        donors = {"fresh": 0, "donor": 1, "donors": len(self.peers)}[churn.optimizer]
        self.join(_mean([peer.replica.moments() for peer in self.peers[:donors]]))


def _mean(moments: Sequence[Mapping[str, Floats]]) -> dict[str, Floats] | None:
    """Return the mean of each vector, or None if there are no moments."""
    if not moments:
        return None
    return {
        name: np.mean([each[name] for each in moments], axis=0, dtype=np.float32)
        for name in moments[0]
    }

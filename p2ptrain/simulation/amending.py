"""A simulated organiser who amends the run in progress, and checkers of the rules for amendments.

Amendments spread slowly and in any order between peers that can reach each other. So some arrive
after their outer step has begun, and some voters are asked to vote for rosters that name amendments
which they have not seen. The names of rules, such as S10, are those of ledger/SPEC.md.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from random import Random
from typing import TYPE_CHECKING

from p2ptrain.ids import PeerId
from p2ptrain.ledger.chain.canonical import digest_of
from p2ptrain.ledger.chain.rules import Rules
from p2ptrain.ledger.chain.state import LedgerState
from p2ptrain.ledger.chain.values import Commit, Roster, Terms
from p2ptrain.simulation.checkers.watching import Decision, Watch
from p2ptrain.simulation.node import SimNode

if TYPE_CHECKING:
    from p2ptrain.simulation.world import SimWorld

LEAD_STEPS = (1, 3)
SPREAD_S = (0.05, 4.0)
LEASES = (None, None, 2, 3, 6)
"""Possible new numbers of blocks per lease. None means that the amendment keeps the old number; a
simulated run begins with 4."""

COUNT_MAX = 12
"""Number of amendments of a run, at most. In one of three runs, the last one ends the run."""


class Amending:
    """Publishes amendments at random times. It draws from its own random generator, so it does not
    change the random numbers that the rest of the world gets."""

    def __init__(self, world: SimWorld) -> None:
        self._world = world
        self._random = Random(f"{world.profile.name}/{world.rules.run}/amendments")
        self._stops = Random(f"{world.profile.name}/{world.rules.run}/stop").random() < 1 / 3
        self._known: list[Terms] = []
        self._plan()

    def _plan(self) -> None:
        every_s = self._world.profile.amend_every_s
        if every_s > 0 and len(self._known) < COUNT_MAX:
            self._world.clock.after(self._random.expovariate(1 / every_s), self._publish)

    def _publish(self) -> None:
        running = [node for node in self._world.nodes.values() if node.is_running]
        if running:
            number = len(self._known) + 1
            step = self._world.latest.step + self._random.randint(*LEAD_STEPS)
            blocks = self._random.choice(LEASES)
            what = digest_of(b"amendment", [number, step, blocks])
            ends = self._stops and number == COUNT_MAX
            self._spread(running, Terms(number, step, what, blocks, stops=ends))
        self._plan()

    def delegate(self, voters: tuple[PeerId, ...]) -> Terms | None:
        """Publish a list of delegates for the next outer step; None if no node is running."""
        running = [node for node in self._world.nodes.values() if node.is_running]
        if not running:
            return None
        number, step = len(self._known) + 1, self._world.latest.step + 1
        what = digest_of(b"amendment", [number, step, *voters])
        return self._spread(running, Terms(number, step, what, voters=voters))

    def _spread(self, running: list[SimNode], terms: Terms) -> Terms:
        self._known.append(terms)
        self._deliver(self._random.choice(running), terms)
        for peer in self._world.nodes:
            self._later(peer, terms)
        return terms

    def _later(self, peer: PeerId, terms: Terms) -> None:
        delay_s = self._random.uniform(*SPREAD_S)
        self._world.clock.after(delay_s, partial(self._arrive, peer, terms))

    def _arrive(self, peer: PeerId, terms: Terms) -> None:
        nodes, joins = self._world.nodes, self._world.network.joins
        holders = [each for each in nodes.values() if each.is_running and terms in each.disk.terms]
        if nodes[peer].is_running and any(joins(peer, each.me) for each in holders):
            self._deliver(nodes[peer], terms)
        else:
            self._later(peer, terms)

    def _deliver(self, node: SimNode, terms: Terms) -> None:
        self._world.run_action(node, partial(node.amended, terms))

    def meet(self, node: SimNode) -> None:
        """Send the amendments published so far to a new node."""
        for terms in self._known:
            self._later(node.me, terms)


@dataclass(slots=True)
class AmendmentsAreHeld(Watch):
    """S10: every voter in the certificate of a roster holds the amendment that the roster names."""

    liars: frozenset[PeerId] = frozenset()

    def on_decision(self, decision: Decision) -> None:
        value = decision.value
        if isinstance(value, Roster) and value.terms is not None:
            for voter in decision.certified.certificate.voters - self.liars:
                if value.terms not in decision.disks[voter].terms:
                    self.object(
                        f"{voter} voted for amendment {value.terms.number} without holding it"
                    )


@dataclass(slots=True)
class TermsAreForeseen(Watch):
    """S10: the terms of an outer step are agreed before it begins and set the size of leases."""

    rules: Rules

    def on_decision(self, decision: Decision) -> None:
        before, after = decision.before, decision.after
        numbers = [each.number for each in after.terms]
        if numbers != sorted(set(numbers)):
            self.object(f"amendments {numbers} are out of order at height {after.height}")
        if before.step == after.step and _holding(before) != _holding(after):
            self.object(f"the terms of outer step {after.step} changed while it was under way")
        if isinstance(decision.value, Commit):
            self._check_leases(after)

    def _check_leases(self, state: LedgerState) -> None:
        blocks = self.rules.blocks_per_lease
        for terms in _holding(state):
            blocks = blocks if terms.blocks is None else terms.blocks
        short = [peer for peer, lease in state.leases.items() if len(lease) < blocks]
        if short:
            self.object(f"{min(short)} has fewer than {blocks} blocks in outer step {state.step}")


def _holding(state: LedgerState) -> list[Terms]:
    return [each for each in state.terms if each.step <= state.step]

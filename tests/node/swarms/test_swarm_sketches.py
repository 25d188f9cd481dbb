"""Contributions with an impossible length or direction are found before an average is committed,
and honest peers are never blamed. Nodes are real, trainers are simulated."""

from __future__ import annotations

from dataclasses import fields, replace
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from p2ptrain.node.state.trainer import ClaimedWork, TrainerState
from p2ptrain.ring import Contribution
from p2ptrain.run.trust_rules import TrustRules
from tests.node.swarm import Swarm, swarm

CLAIMS = TrustRules(claims=True)
HONEST = ("ann", "bob")
TRIO = (*HONEST, "cai")

Floats = np.ndarray


class Liar(TrainerState):
    """The state of a peer that contributes something else than the work that it has done."""

    def __setattr__(self, name: str, value: object) -> None:
        if isinstance(value, ClaimedWork):
            value = replace(value, contribution=self.lie(value.contribution))
        super().__setattr__(name, value)

    @staticmethod
    def lie(honest: Contribution) -> Contribution:
        raise NotImplementedError


def values_of(contribution: Contribution) -> Floats:
    values = np.empty(contribution.numel, np.float32)
    contribution.codec.dequantise(contribution.payload, values)
    return values


def quantised(values: Floats, like: Contribution) -> Contribution:
    payload = bytearray(len(like.payload))
    like.codec.quantise(values, payload)
    return Contribution(payload, like.numel, like.codec)


class Opposed(Liar):
    @staticmethod
    def lie(honest: Contribution) -> Contribution:
        return quantised(-values_of(honest), honest)


class Mislabelled(Liar):
    """It averages its work, and states the sketch of something else."""

    @staticmethod
    def lie(honest: Contribution) -> Contribution:
        values = values_of(honest)
        stated = quantised(values[::-1].copy(), honest)
        stated.windows = honest.windows  # type: ignore[method-assign]
        return stated


class Replacing(Liar):
    """It claims its work, states the right sketch of it, and sends sums of something else."""

    @staticmethod
    def lie(honest: Contribution) -> Contribution:
        sent = quantised(-values_of(honest), honest)
        stated = Contribution(honest.payload, honest.numel, honest.codec)
        stated.windows = sent.windows  # type: ignore[method-assign]
        return stated


def disguised(kind: type[Liar], state: TrainerState) -> TrainerState:
    return kind(**{each.name: getattr(state, each.name) for each in fields(state)})


def blamed(s: Swarm, name: str) -> set[object]:
    """Return the peers that this node has accused so far."""
    return {
        peer
        for record in s[name].events("exchange-failed")
        if not record["heard"]
        for peer in record["suspects"]  # type: ignore[attr-defined]
    }


@pytest.mark.parametrize(
    ("kind", "rule"), [(Opposed, "direction"), (Mislabelled, "sum"), (Replacing, "sum")]
)
async def test_liar_is_left_out_of_the_commit(tmp_path: Path, kind: type[Liar], rule: str) -> None:
    """Nobody is judged among fewer than three participants, so wait until all of them average. The
    liar runs our code, so it may find its own lie first, and say that its work is lost."""
    everybody = (*HONEST, "liar")
    async with swarm(tmp_path, nodes=(), later=everybody, steps=12, stops_at=0, trust=CLAIMS) as s:
        liar = s["liar"]
        liar.disguise = partial(disguised, kind)
        await s.start(*everybody)
        await s.until(lambda: len(s.seed.context.ledger.snapshot.members) == 4)
        s.stop_at(None)
        await s.until(lambda: all(s[name].events("sketch-finding", rule=rule) for name in HONEST))
        await s.go_on(1, *HONEST)
        s.stop_at(0)
        s.check_equal()
        assert not [
            step
            for step, _, blocks in s.committed(s["ann"])
            if liar.peer in blocks and len(blocks) > 2
        ]
        for name in HONEST:
            assert blamed(s, name) <= {liar.peer}
            for record in s[name].events("sum-explained"):
                assert record["suspects"] == (liar.peer,)


async def test_honest_peers_are_never_blamed(tmp_path: Path) -> None:
    async with swarm(tmp_path, nodes=TRIO, steps=6, trust=CLAIMS) as s:
        await s.until(lambda: s.at_step(6))
        s.check_chain()
        s.check_equal()
        for name in TRIO:
            assert s[name].events("sketch-finding") == []
            assert s[name].events("unjudged") == []
            assert s[name].events("judged")
            assert s[name].events("exchange-failed") == []

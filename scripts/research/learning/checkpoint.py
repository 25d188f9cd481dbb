"""Save and load a whole swarm. A continued swarm computes the same bits as an uninterrupted one.

A checkpoint is one file with plain arrays and a JSON text. It is written to a temporary file and
renamed. Its content is trusted like the program itself, and it is not meant for other programs.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from p2ptrain.ids import PeerId
from p2ptrain.ledger.chain.leases import Leases
from scripts.research.learning.corpus import Corpus
from scripts.research.learning.settings import Settings
from scripts.research.learning.swarm import Commit, Peer, Swarm

Arrays = dict[str, np.ndarray[Any, Any]]


def save(swarm: Swarm, notes: Mapping[str, Any], path: Path) -> None:
    """Write the swarm and the notes of its trial."""
    facts = {
        "of": [swarm.settings.digest, swarm.corpus.digest],
        "inner_step": swarm.inner_step,
        "joined": swarm.joined,
        "losses": swarm.losses,
        "joiners": swarm.joiners,
        "held": [[name, list(blocks)] for name, blocks in swarm.book.held.items()],
        "returned": list(swarm.book.returned),
        "next_block": swarm.book.next_block,
        "peers": [[peer.name, peer.joined_step] for peer in swarm.peers],
        "pending": [commit.outer_step for commit in swarm.pending],
        "notes": dict(notes),
    }
    arrays: Arrays = {"theta": swarm.theta, "momentum": swarm.momentum}
    for number, commit in enumerate(swarm.pending):
        arrays[f"pending-{number}"] = np.frombuffer(commit.payload, np.uint8)
    for number, peer in enumerate(swarm.peers):
        arrays |= {f"{number}-{name}": array for name, array in _arrays_of(peer).items()}
    path.parent.mkdir(parents=True, exist_ok=True)
    making = path.with_suffix(".making.npz")
    np.savez(making, facts=np.array(json.dumps(facts)), **arrays)  # type: ignore[arg-type]
    os.replace(making, path)


def load(settings: Settings, corpus: Corpus, path: Path) -> tuple[Swarm, dict[str, Any]] | None:
    """Return the saved swarm and notes, or None if none were saved for these settings and text."""
    if not path.exists():
        return None
    with np.load(path) as kept:
        facts = json.loads(str(kept["facts"]))
        if facts["of"] != [settings.digest, corpus.digest]:
            return None
        return _restored(settings, corpus, facts, {name: kept[name] for name in kept.files})


def _restored(
    settings: Settings, corpus: Corpus, facts: dict[str, Any], arrays: Arrays
) -> tuple[Swarm, dict[str, Any]]:
    swarm = Swarm.begin(settings, corpus)
    swarm.theta[:], swarm.momentum[:] = arrays["theta"], arrays["momentum"]
    swarm.inner_step, swarm.joined = facts["inner_step"], facts["joined"]
    swarm.losses, swarm.joiners = facts["losses"], facts.get("joiners", [])
    held = {PeerId(name): tuple(blocks) for name, blocks in facts["held"]}
    swarm.book = Leases(held, tuple(facts["returned"]), facts["next_block"])
    swarm.pending = [
        Commit(outer_step, arrays[f"pending-{number}"].tobytes())
        for number, outer_step in enumerate(facts["pending"])
    ]
    for number, (peer, (name, joined_step)) in enumerate(
        zip(swarm.peers, facts["peers"], strict=True)
    ):
        peer.name, peer.joined_step = PeerId(name), joined_step
        for key, target in _arrays_of(peer, targets=True).items():
            target[...] = arrays[f"{number}-{key}"]
        moments = {key: arrays[f"{number}-{key}"] for key in peer.replica.moments()}
        if moments["step"][0] > 0:
            peer.replica.set_moments(moments)
    return swarm, facts["notes"]


def _arrays_of(peer: Peer, *, targets: bool = False) -> Arrays:
    """Return a peer's vectors. With `targets` the optimizer's vectors are left out."""
    arrays: Arrays = {"weights": peer.replica.weights}
    if not targets:
        arrays |= peer.replica.moments()
    if peer.owes is not None:
        arrays["owes"] = peer.owes
    if peer.eager is not None:
        arrays["deviation"] = peer.eager.deviation
        arrays["outer"] = peer.eager.momentum
        arrays["added"] = peer.eager.added
    return arrays

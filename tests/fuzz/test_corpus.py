"""No decoder crashes on its examples or on slightly changed examples."""

from __future__ import annotations

import ast
import random
import sys
from collections.abc import Iterator

import pytest

from tests.architecture.sources import modules
from tests.fuzz.good import GOOD
from tests.fuzz.recording import CORPUS
from tests.fuzz.targets import TARGETS

MUTANTS = 40
"""Number of mutants of each example. `scripts/fuzz` tries millions."""

PARTS = ("dataplane", "ipc", "ledger", "net", "node", "portmap", "proofs", "ring", "run", "swarm")
NAMES = ("decode", "from_bytes", "from_wire")

OURS = {
    "p2ptrain.ledger.history.decode_state.state_from_plain": "`decode_state` calls it",
    "p2ptrain.proofs.moments.decode": "nodes do not exchange moments yet",
}
"""Functions that look like decoders by their names, but do not read bytes, with the reason."""


def examples(name: str) -> list[bytes]:
    """Return the recorded examples, and a fresh one in case the recorded ones are outdated."""
    recorded = sorted((CORPUS / name).glob("*"))
    made = [GOOD[name]] if name in GOOD else []
    return [*made, *(path.read_bytes() for path in recorded)]


def mutants(data: bytes, draw: random.Random) -> Iterator[bytes]:
    """Yield byte strings close to `data`, with bytes changed, inserted, doubled or left out."""
    for _ in range(MUTANTS):
        changed = bytearray(data)
        for _ in range(draw.randint(1, 4)):
            start = draw.randrange(len(changed) + 1)
            end = min(len(changed), start + draw.choice((0, 1, 1, 4, 32)))
            fresh = draw.choice(
                (b"", draw.randbytes(1), b"\xff" * 4, bytes(changed[start:end]) * 2)
            )
            changed[start:end] = fresh
        yield bytes(changed)


def test_every_target_has_examples() -> None:
    assert {path.name for path in CORPUS.iterdir()} <= set(TARGETS)
    assert all(examples(name) for name in TARGETS)


@pytest.mark.parametrize("name", TARGETS)
def test_no_example_or_mutant_crashes_its_decoder(name: str) -> None:
    draw = random.Random(name)
    accepted = 0
    for example in examples(name):
        accepted += TARGETS[name].run(example)
        for mutant in mutants(example, draw):
            TARGETS[name].run(mutant)
    assert accepted > 0 or name in NOTHING_ACCEPTED


NOTHING_ACCEPTED = {"rank-greeting", "rank-proof"}
"""Decoders that accept no example, since a valid proof depends on fresh random nonces."""


def decoders() -> Iterator[str]:
    """Yield the functions that read bytes, according to their names, in the parts that talk to
    peers and ranks.
    """
    for module in modules():
        for node in ast.walk(module.tree):
            if module.part not in PARTS or not isinstance(node, ast.FunctionDef):
                continue
            if node.name.startswith(NAMES):
                yield f"{module.name}.{node.name}"


def test_every_decoder_is_a_target() -> None:
    """The profiler records every function that the targets call. Every decoder must be among
    them.
    """
    called: set[str] = set()

    def note(frame: object, event: str, argument: object) -> None:
        if event == "call":
            code = frame.f_code  # type: ignore[attr-defined]
            called.add(f"{frame.f_globals.get('__name__')}.{code.co_name}")  # type: ignore[attr-defined]

    sys.setprofile(note)
    try:
        for name, target in TARGETS.items():
            for example in examples(name):
                target.run(example)
    finally:
        sys.setprofile(None)
    assert sorted(set(decoders()) - called - set(OURS)) == []

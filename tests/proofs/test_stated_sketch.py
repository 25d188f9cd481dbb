"""A signed sketch survives the wire, and nothing else passes as one."""

from __future__ import annotations

import numpy as np
import pytest

from p2ptrain.encoding import pack, unpack
from p2ptrain.errors import RemoteProtocolError
from p2ptrain.identity import Identity, verify
from p2ptrain.ids import Digest
from p2ptrain.proofs.sketches import seed_of, sketch
from p2ptrain.proofs.stated_sketch import (
    PARTS_MAX,
    SKETCH_BYTES,
    STATEMENT_BYTES_MAX,
    StatedSketch,
    read_statement,
)

IDENTITY = Identity.from_seed(bytes(32))
ROSTER = Digest("cd" * 32)
SEED = seed_of(ROSTER, [Digest("01" * 32)])


def statement(parts: int = 3) -> StatedSketch:
    vector = np.linspace(-1, 1, 3000, dtype=np.float32)
    found = [
        sketch(piece, SEED, -30, 1000 * part) for part, piece in enumerate(np.split(vector, 3))
    ]
    return StatedSketch.of(ROSTER, IDENTITY.peer, (found * PARTS_MAX)[:parts])


def test_statement_is_read_as_it_was_signed() -> None:
    sent = statement()
    assert read_statement(sent.signed(IDENTITY.sign), verify) == sent
    whole = sketch(np.linspace(-1, 1, 3000, dtype=np.float32), SEED, -30)
    assert np.array_equal(sent.sums, whole)


def test_longest_statement_fits_its_limit() -> None:
    data = statement(PARTS_MAX).signed(IDENTITY.sign)
    assert len(data) <= STATEMENT_BYTES_MAX
    assert read_statement(data, verify) == statement(PARTS_MAX)


def changed(**changes: object) -> bytes:
    value = unpack(statement().signed(IDENTITY.sign), bytes_max=STATEMENT_BYTES_MAX)
    assert isinstance(value, dict)
    return pack({**value, **changes})


@pytest.mark.parametrize(
    "data",
    [
        b"",
        pack([]),
        changed(roster="ee" * 32),
        changed(roster="no digest"),
        changed(peer="nobody"),
        changed(parts=[]),
        changed(parts=[bytes(SKETCH_BYTES)]),
        changed(parts=[bytes(SKETCH_BYTES - 1)]),
        changed(parts=["text"]),
        changed(parts=[bytes(SKETCH_BYTES)] * (PARTS_MAX + 1)),
        changed(signature=b"x"),
        changed(more=1),
        bytes(STATEMENT_BYTES_MAX + 1),
    ],
    ids=range(13),
)
def test_other_data_is_refused(data: bytes) -> None:
    with pytest.raises(RemoteProtocolError):
        read_statement(data, verify)


def test_hostile_sums_do_not_overflow_into_an_error() -> None:
    extreme = np.full(256, -(2**63), np.int64)
    sent = StatedSketch.of(ROSTER, IDENTITY.peer, [extreme, extreme])
    assert read_statement(sent.signed(IDENTITY.sign), verify).sums.tolist() == [0] * 256

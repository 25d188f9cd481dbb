"""All peers compute the same layout for any order of parameters, and reject a layout in any other
form.
"""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from p2ptrain.encoding import pack
from p2ptrain.errors import RemoteProtocolError
from p2ptrain.state import Layout, LayoutEntry
from p2ptrain.state.layout import ENTRIES_MAX, NUMEL_MAX

PARAMETERS = [("norm.weight", (10,)), ("embed.weight", (7, 5)), ("scale", ())]
PARAMETERS_ST = st.dictionaries(
    st.text(st.characters(categories=["L", "N"]), min_size=1, max_size=8),
    st.lists(st.integers(1, 40), max_size=3),
    min_size=1,
    max_size=12,
)


def test_parameters_are_sorted_by_name_and_aligned_to_cache_lines() -> None:
    layout = Layout.of(PARAMETERS)
    assert [(e.name, e.shape, e.offset, e.numel) for e in layout.entries] == [
        ("embed.weight", (7, 5), 0, 35),
        ("norm.weight", (10,), 48, 10),
        ("scale", (), 64, 1),
    ]
    assert layout.numel == 80


@given(PARAMETERS_ST, st.randoms())
def test_layout_does_not_depend_on_the_order_of_parameters(
    parameters: dict[str, tuple[int, ...]], rng: random.Random
) -> None:
    pairs = list(parameters.items())
    shuffled = rng.sample(pairs, len(pairs))
    assert Layout.of(pairs) == Layout.of(shuffled)
    assert Layout.of(pairs).digest == Layout.of(shuffled).digest


@given(PARAMETERS_ST)
def test_parameters_do_not_overlap_and_survive_encoding(
    parameters: dict[str, tuple[int, ...]],
) -> None:
    layout = Layout.of(parameters.items())
    for entry, following in zip(layout.entries, layout.entries[1:], strict=False):
        assert entry.end <= following.offset < entry.end + 16
    assert layout.numel % 16 == 0
    assert Layout.from_wire(layout.to_wire()) == layout


def test_digest_depends_on_names_shapes_and_order_of_dimensions() -> None:
    digests = {
        Layout.of([("a", (2, 3))]).digest,
        Layout.of([("a", (3, 2))]).digest,
        Layout.of([("a", (6,))]).digest,
        Layout.of([("b", (2, 3))]).digest,
    }
    assert len(digests) == 4


@pytest.mark.parametrize(
    "parameters",
    [
        [],
        [("a", (1,)), ("a", (2,))],
        [("", (1,))],
        [("a\n", (1,))],
        [("x" * 257, (1,))],
        [("a", (0,))],
        [("a", (-4, -4))],
        [("a", (2**41,))],
        [("a", (2**21, 2**21))],
        [("a", (NUMEL_MAX,)), ("b", (1,))],
        [("a", (1,) * 9)],
    ],
)
def test_invalid_list_of_parameters_is_refused(
    parameters: list[tuple[str, tuple[int, ...]]],
) -> None:
    with pytest.raises(ValueError):
        Layout.of(parameters)


def test_layout_with_a_gap_or_an_overlap_is_refused() -> None:
    first = LayoutEntry("a", (16,), 0)
    assert Layout((first, LayoutEntry("b", (1,), 16))).numel == 32
    for offset in (0, 15, 17, 32, -16):
        with pytest.raises(ValueError):
            Layout((first, LayoutEntry("b", (1,), offset)))


@pytest.mark.parametrize(
    "rows",
    [
        [],
        {},
        "layout",
        [[]],
        [["a", [1]]],
        [["a", [1], 0, 0]],
        [["a", [1], False]],
        [["a", [True], 0]],
        [["a", ["1"], 0]],
        [["a", [1.0], 0]],
        [["a", 1, 0]],
        [[7, [1], 0]],
        [["a", [1], 16]],
        [["a", [1], -16]],
        [["a", [16], 0], ["b", [16], 0]],
        [["a", [16], 0], ["b", [16], 8]],
        [["b", [16], 0], ["a", [16], 16]],
        [["a", [16], 0], ["a", [16], 16]],
        [["a", [2**63], 0]],
        [["a", [2**62] * 8, 0]],
        [["a", [0], 0]],
        [["a", [-1], 0]],
        [["a", [1] * 9, 0]],
        [["a" * 300, [1], 0]],
        [["a", [1], 0]] * (ENTRIES_MAX + 1),
    ],
)
def test_hostile_layout_is_refused(rows: object) -> None:
    with pytest.raises(RemoteProtocolError):
        Layout.from_wire(pack(rows))


@given(st.binary(max_size=200))
def test_arbitrary_bytes_are_not_a_layout(data: bytes) -> None:
    with pytest.raises(RemoteProtocolError):
        Layout.from_wire(data)

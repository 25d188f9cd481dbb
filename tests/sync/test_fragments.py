"""Fragments consist of whole layers that are far apart. Together they contain every element
once."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from p2ptrain.ipc.trainer_config import ModelSpec
from p2ptrain.state import Layout
from p2ptrain.sync.fragments import Fragment, fragments
from p2ptrain.trainer.formats.shapes import layout_of


def layout(layers: int, *, tied: bool = True) -> Layout:
    return layout_of(
        ModelSpec(
            vocab=33, layers=layers, width=8, heads=2, kv_heads=1, ffn=20, sequence=4, tied=tied
        )
    )


def names_in(layout: Layout, fragment: Fragment) -> set[str]:
    """Return the names of the parameters in this fragment. Check that no parameter lies in it only
    partly."""
    inside = set()
    for entry in layout.entries:
        held = sum(
            max(0, min(stop, entry.end) - max(start, entry.offset))
            for start, stop in fragment.ranges
        )
        assert held in (0, entry.numel), entry.name
        inside |= {entry.name} if held else set()
    return inside


@given(layers=st.integers(1, 40), tied=st.booleans(), data=st.data())
def test_fragments_contain_every_element_once(layers: int, tied: bool, data: st.DataObject) -> None:
    own = 1 if tied else 2
    count = data.draw(st.one_of(st.just(1), st.integers(own + 1, own + layers)))
    whole = layout(layers, tied=tied)
    seen = np.zeros(whole.numel, int)
    for fragment in fragments(whole, count):
        for start, stop in fragment.ranges:
            seen[start:stop] += 1
    assert seen.tolist() == [1] * whole.numel


def test_layers_are_strided_and_embedding_and_head_are_separate() -> None:
    whole = layout(12, tied=False)
    cut = [names_in(whole, fragment) for fragment in fragments(whole, 6)]
    layers = [{int(name.split(".")[1]) for name in names if "blocks" in name} for names in cut]
    assert layers == [{0, 4, 8}, {1, 5, 9}, {2, 6, 10}, {3, 7, 11}, set(), set()]
    assert cut[4] == {"embedding.weight"}
    assert cut[5] == {"head.weight", "norm.weight"}
    assert all(len(names) == 27 for names in cut[:4]), "every part of a layer is included"


def test_last_norm_is_in_the_embeddings_fragment_if_the_head_is_tied() -> None:
    whole = layout(6)
    cut = [names_in(whole, fragment) for fragment in fragments(whole, 4)]
    assert cut[3] == {"embedding.weight", "norm.weight"}


def test_plain_diloco_has_one_fragment_with_everything() -> None:
    assert fragments(layout(3), 1) == (Fragment(((0, layout(3).numel),)),)


@pytest.mark.parametrize(("count", "tied"), [(5, True), (2, False), (6, False), (0, True)])
def test_fragment_without_a_layer_is_refused(count: int, tied: bool) -> None:
    with pytest.raises(ValueError, match="cannot split"):
        fragments(layout(3, tied=tied), count)


@pytest.mark.parametrize("ranges", [(), ((3, 3),), ((0, 4), (4, 8)), ((4, 8), (0, 2)), ((-1, 2),)])
def test_ranges_that_are_not_a_fragment_are_refused(ranges: tuple[tuple[int, int], ...]) -> None:
    with pytest.raises(ValueError, match="ascending"):
        Fragment(ranges)


def test_gathered_elements_are_scattered_to_their_original_positions() -> None:
    whole = layout(6)
    vector = np.arange(whole.numel, dtype=np.float32)
    copied = np.zeros_like(vector)
    for fragment in fragments(whole, 4):
        piece = np.empty(fragment.numel, np.float32)
        fragment.gather(vector, piece)
        fragment.scatter(piece, copied)
    assert np.array_equal(copied, vector)


def test_any_range_of_a_fragment_is_found_in_the_vector() -> None:
    fragment = Fragment(((2, 5), (7, 8), (10, 14)))
    vector = np.arange(20)
    whole = np.empty(fragment.numel, vector.dtype)
    fragment.gather(vector, whole)
    for start in range(fragment.numel):
        for stop in range(start + 1, fragment.numel + 1):
            found = [vector[low:high] for low, high in fragment.pieces(start, stop)]
            assert np.concatenate(found).tolist() == whole[start:stop].tolist()

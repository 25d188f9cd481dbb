"""A chain of checkpoints binds a contribution to its inner steps; a beacon opens one link."""

from __future__ import annotations

from collections import Counter
from fractions import Fraction

import numpy as np
import pytest

from p2ptrain.errors import RemoteProtocolError
from p2ptrain.ids import Digest
from p2ptrain.proofs.checkpoints import (
    LINKS,
    Chain,
    check_end,
    check_start,
    displacement_digest,
    drawn,
    judge_link,
    link_blocks,
    link_distance,
    opened_link,
    opened_share,
)

EMPTY = Digest("00" * 32)


def digest(number: int) -> Digest:
    return Digest(f"{number:064x}")


def chain(start: int, links: int = LINKS) -> Chain:
    """A chain whose moments are `start`, `start` + 1 and so on."""
    moments = tuple(digest(start + each) for each in range(links + 1))
    return Chain(tuple(displacement_digest(bytes([each])) for each in range(links)), moments)


@pytest.mark.parametrize("blocks", [1, 2, 3, 4, 5, 7, 16, 20, 503])
def test_links_cover_all_blocks_once(blocks: int) -> None:
    links = link_blocks(blocks)
    assert [each for link in links for each in link] == list(range(blocks))
    assert len(links) == min(LINKS, blocks)
    assert max(map(len, links)) - min(map(len, links)) <= 1


def test_chain_continues_with_the_moments_of_the_last_one() -> None:
    assert check_start(chain(14), chain(10), EMPTY).passed
    assert check_start(chain(14, links=1), chain(10), EMPTY).passed
    assert check_start(chain(0), chain(10), EMPTY).passed, "an empty state cannot be forged"
    assert check_start(chain(0), None, EMPTY).passed
    forged = check_start(chain(13), chain(10), EMPTY)
    assert (forged.passed, forged.exact) == (False, True)
    assert not check_start(chain(13), None, EMPTY).passed


def test_chain_ends_with_the_contribution() -> None:
    assert check_end(chain(1), displacement_digest(bytes([LINKS - 1]))).passed
    replaced = check_end(chain(1), displacement_digest(b"something else"))
    assert (replaced.passed, replaced.exact) == (False, True)


@pytest.mark.parametrize(
    ("displacements", "moments"),
    [((), (EMPTY,)), ((EMPTY,), (EMPTY,)), ((EMPTY,) * 5, (EMPTY,) * 6), (("x",), (EMPTY,) * 2)],
)
def test_malformed_chains_are_refused(
    displacements: tuple[Digest, ...], moments: tuple[Digest, ...]
) -> None:
    with pytest.raises(RemoteProtocolError):
        Chain(displacements, moments)


def test_draws_are_fixed_and_depend_on_every_word() -> None:
    assert drawn("link", EMPTY, "peer") == drawn("link", EMPTY, "peer")
    others = {drawn("link", EMPTY, "peer"), drawn("audit", EMPTY, "peer"), drawn("link", EMPTY)}
    others |= {drawn("link", digest(1), "peer"), drawn("link", EMPTY, "peeR")}
    assert len(others) == 5


def test_beacon_opens_the_stated_share_of_chains_evenly() -> None:
    opened = Counter(
        opened_link(digest(step), f"peer {peer}", LINKS, Fraction(1, 4))
        for step in range(200)
        for peer in range(20)
    )
    assert 850 < 4000 - opened[None] < 1150
    assert all(200 < opened[link] < 300 for link in range(LINKS))
    assert opened_link(EMPTY, "peer", LINKS, Fraction(0)) is None
    assert opened_link(EMPTY, "peer", LINKS, Fraction(1)) in range(LINKS)


def test_chance_to_catch_a_liar_is_share_times_faked_links() -> None:
    assert opened_share([True, False, False, True], Fraction(1, 16)) == Fraction(1, 32)


def test_distance_is_relative_to_the_auditors_link() -> None:
    start, ours = np.zeros(200_000, np.float32), np.ones(200_000, np.float32)
    assert link_distance(start, ours, ours) == 0
    assert link_distance(start, start, ours) == 1
    assert link_distance(start, -ours, ours) == 2
    assert link_distance(start, 1.05 * ours, ours) == pytest.approx(0.05, 1e-4)


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_numbers_that_are_not_finite_never_pass(bad: float) -> None:
    start, ours = np.zeros(100, np.float32), np.ones(100, np.float32)
    end = ours.copy()
    end[50] = bad
    assert not judge_link(link_distance(start, end, ours), cold=True).passed
    assert not judge_link(link_distance(start, ours, start), cold=True).passed


def test_first_link_of_an_empty_optimizer_has_a_wider_limit() -> None:
    assert judge_link(0.15, cold=True).passed
    refused = judge_link(0.15, cold=False)
    assert not refused.passed
    assert (
        refused.words == "the repeated inner steps end 0.15 of their length away; the limit is 0.1"
    )

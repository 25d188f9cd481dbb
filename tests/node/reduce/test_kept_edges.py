"""A node decides which edges it keeps after a reduce, reuses in the next one, and closes."""

from __future__ import annotations

import math

import pytest

from p2ptrain.dataplane import RingKey
from p2ptrain.errors import LocalProtocolError
from p2ptrain.ids import PeerId, RunId
from p2ptrain.node.reduce.kept_edges import KEPT_S, KeptEdge, KeptEdges, StepOnLine

LINE, BRANCH = RunId("ab" * 32), RunId("cd" * 32)
A, B, C = PeerId("a"), PeerId("b"), PeerId("c")
STEP, NOW = 7, 100.0
EDGE = KeptEdge(A, StepOnLine(LINE, STEP), 2, NOW)


def kept(*peers: PeerId) -> KeptEdges:
    edges = KeptEdges()
    assert edges.reduce_complete(StepOnLine(LINE, STEP), dict.fromkeys(peers, 2), NOW) == {}
    return edges


def left(edges: KeptEdges) -> set[PeerId]:
    return {peer for peer in (A, B, C) if edges.find(peer)}


def test_edge_serves_a_later_step_in_which_the_peer_is_a_neighbour() -> None:
    edges = kept(A, B)
    assert edges.find(A) == EDGE
    closing = edges.attempt_begun(StepOnLine(LINE, STEP + 1), 2, [A, C])
    assert closing == {B: "it is not a neighbour in this exchange"}
    assert left(edges) == {A}
    edges.taken(A)
    assert (left(edges), edges.deadline) == (set(), math.inf)


@pytest.mark.parametrize(
    ("run", "step", "streams", "why"),
    [
        (LINE, STEP, 2, "failed once"),
        (LINE, STEP - 1, 2, "failed once"),
        (BRANCH, STEP + 1, 2, "another line"),
        (LINE, STEP + 1, 3, "3 connections are needed"),
    ],
)
def test_edge_does_not_serve_another_attempt_or_another_edge(
    run: RunId, step: int, streams: int, why: str
) -> None:
    edges = kept(A)
    assert why in edges.attempt_begun(StepOnLine(run, step), streams, [A])[A]
    assert left(edges) == set()


def test_nothing_is_kept_after_a_failed_attempt() -> None:
    edges = kept(A, B)
    assert set(edges.attempt_failed()) == {A, B}
    assert left(edges) == set()
    assert edges.attempt_failed() == {}


def test_one_broken_connection_closes_its_edge_only() -> None:
    edges = kept(A, B)
    assert edges.broken(A, "it left") == {A: "it left"}
    assert edges.broken(A, "it left") == {}
    assert left(edges) == {B}


def test_edge_ends_with_the_membership_of_its_peer_or_after_a_while() -> None:
    edges = kept(A, B)
    gone = {A: "it is not a member any more"}
    assert edges.reviewed(lambda peer: gone.get(peer, ""), NOW) == gone
    assert edges.deadline == NOW + KEPT_S
    assert edges.reviewed(lambda _: "", NOW + KEPT_S - 1) == {}
    assert set(edges.reviewed(lambda _: "", NOW + KEPT_S)) == {B}


def test_unused_edges_give_way_to_those_of_the_next_reduce() -> None:
    edges = kept(A, B)
    assert set(edges.reduce_complete(StepOnLine(LINE, STEP + 1), {A: 2}, NOW + 5)) == {A, B}
    assert edges.find(A) == KeptEdge(A, StepOnLine(LINE, STEP + 1), 2, NOW + 5)
    assert left(edges) == {A}


@pytest.mark.parametrize(
    ("key", "why"),
    [
        (RingKey(LINE, STEP + 1, 0, 1, A), ""),
        (RingKey(LINE, STEP + 1, 0, 0, A), "another stream"),
        (RingKey(LINE, STEP, 1, 1, A), "failed once"),
        (RingKey(BRANCH, STEP + 1, 0, 1, A), "another line"),
    ],
)
def test_hello_on_a_kept_connection_must_name_a_later_step(key: RingKey, why: str) -> None:
    found = EDGE.refusal(key, stream=1)
    assert why in found if why else found == ""


def test_edge_without_connections_cannot_be_made() -> None:
    with pytest.raises(LocalProtocolError):
        KeptEdge(A, StepOnLine(LINE, STEP), 0, NOW)

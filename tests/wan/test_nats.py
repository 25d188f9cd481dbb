"""Each kind of emulated NAT lets in exactly the packets that its kind says."""

from __future__ import annotations

import pytest

from .nat_library import ACK, RST, SYN, Nat, Tcp, Verdict

ANN = ("192.168.1.2", 5000)
OUTSIDE = "10.77.1.1"
BOB, CAT = ("10.77.0.1", 4202), ("10.77.0.2", 4202)


def outside_port(nat: Nat, target: tuple[str, int], *, at_s: float = 0.0) -> int:
    """Return the port from which a call of Ann to `target` seems to come."""
    seen = nat.leave(Tcp(ANN, target), at_s=at_s)
    assert seen is not None
    assert (seen.source[0], seen.target) == (OUTSIDE, target)
    return seen.source[1]


def lets_in(nat: Nat, source: tuple[str, int], port: int, *, at_s: float = 0.0) -> Verdict:
    return nat.arrive(Tcp(source, (OUTSIDE, port)), at_s=at_s)[0]


def test_cone_keeps_one_port_and_lets_only_called_addresses_answer() -> None:
    with Nat("cone") as nat:
        assert outside_port(nat, BOB) == outside_port(nat, CAT) == ANN[1]
        answer = nat.arrive(Tcp(BOB, (OUTSIDE, ANN[1]), SYN | ACK))
        assert answer == (Verdict.PASS, Tcp(BOB, ANN, SYN | ACK))
        assert lets_in(nat, (BOB[0], 4203), ANN[1]) is Verdict.DROP
        assert lets_in(nat, ("10.77.0.3", 4202), ANN[1]) is Verdict.DROP


def test_full_cone_lets_everybody_in() -> None:
    with Nat("full/rand") as nat:
        port = outside_port(nat, BOB)
        assert port != ANN[1]
        assert lets_in(nat, CAT, port) is Verdict.PASS


def test_symmetric_nat_uses_a_port_for_each_called_address() -> None:
    with Nat("sym") as nat:
        ports = outside_port(nat, BOB), outside_port(nat, CAT)
        assert len({*ports, ANN[1]}) == 3
        assert lets_in(nat, BOB, ports[0]) is Verdict.PASS
        assert lets_in(nat, BOB, ports[1]) is Verdict.DROP


def test_firewall_keeps_addresses_and_lets_only_called_ones_answer() -> None:
    inside = ("10.77.0.3", 5000)
    with Nat("fw") as nat:
        assert nat.leave(Tcp(inside, BOB)) == Tcp(inside, BOB)
        assert nat.arrive(Tcp(BOB, inside, SYN | ACK))[0] is Verdict.PASS
        assert nat.arrive(Tcp(CAT, inside))[0] is Verdict.DROP


def test_resetting_nat_answers_an_uninvited_call() -> None:
    with Nat("cone/rst") as nat:
        refused = nat.arrive(Tcp(BOB, (OUTSIDE, 5000)))
        assert refused == (Verdict.BACK, Tcp((OUTSIDE, 5000), BOB, RST | ACK))


def test_reset_closes_a_flow_until_the_node_calls_again() -> None:
    with Nat("cone") as nat:
        port = outside_port(nat, BOB)
        assert nat.arrive(Tcp(BOB, (OUTSIDE, port), RST))[0] is Verdict.PASS
        assert lets_in(nat, BOB, port) is Verdict.DROP
        assert outside_port(nat, BOB) == port
        assert lets_in(nat, BOB, port) is Verdict.PASS


def test_idle_mapping_is_forgotten() -> None:
    with Nat("cone/ttl=10") as nat:
        port = outside_port(nat, BOB)
        assert lets_in(nat, BOB, port, at_s=9.0) is Verdict.PASS
        assert lets_in(nat, BOB, port, at_s=20.0) is Verdict.DROP


@pytest.mark.parametrize("kind", ["", "cone-ish", "ful", "/rst", "cone" + "/rst" * 8])
def test_unknown_kind_is_refused(kind: str) -> None:
    with pytest.raises(ValueError):
        Nat(kind)

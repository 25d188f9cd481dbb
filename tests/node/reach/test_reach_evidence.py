"""Answers and arrivals prove things about a node's ports, in virtual time."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from p2ptrain.address_group import is_elsewhere
from p2ptrain.peers.reach_evidence import (
    EVIDENCE_S,
    NEWEST_S,
    SITES_MAX,
    PortsReached,
    ReachEvidence,
)
from p2ptrain.peers.reach_messages import DialOutcome, ReachAnswer

HOME, ELSEWHERE = "198.51.100.7", "198.51.100.8"
SIX = "2606:1::5"
YES, NO = DialOutcome.REACHED, DialOutcome.SILENT


class Witness(ReachEvidence):
    """Evidence with a short way to write answers and verdicts about the data port."""

    def says(self, site: str, outcome: DialOutcome, at: float, host: str = HOME) -> None:
        self.note_answer(site, ReachAnswer(host, outcome, outcome), at)

    def data(self, now: float, *, arrived: float | None = None, sites: int = 5) -> bool | None:
        came = {} if arrived is None else {"a": arrived}
        return self.judge({}, came, now, sites=sites).data


def test_nothing_is_known_without_evidence() -> None:
    assert ReachEvidence().judge({}, {}, 0.0, sites=0) == PortsReached(None, None)


def test_two_sites_must_agree_that_a_port_is_reached() -> None:
    witness = Witness()
    witness.says("a", YES, 0.0)
    assert witness.data(1.0) is None
    witness.says("a", YES, 2.0)
    assert witness.data(2.0) is None, "one site counts once"
    witness.says("b", YES, 3.0)
    assert witness.data(3.0) is True


def test_one_connection_from_another_site_is_enough() -> None:
    assert Witness().data(10.0, arrived=9.0) is True


def test_ports_are_judged_separately() -> None:
    witness = Witness()
    for site in ("a", "b"):
        witness.note_answer(site, ReachAnswer(HOME, YES, NO), 0.0)
    assert witness.judge({}, {}, 1.0, sites=2) == PortsReached(control=True, data=False)
    assert witness.judge({}, {"a": 1.0}, 1.0, sites=2) == PortsReached(control=True, data=True)


def test_outcome_of_a_member_that_did_not_try_does_not_count() -> None:
    witness = Witness()
    for site in ("a", "b", "c"):
        witness.says(site, DialOutcome.UNTRIED, 0.0)
    assert witness.data(0.0) is None


def test_single_other_site_is_believed_if_it_fails_but_not_if_it_succeeds() -> None:
    witness = Witness()
    witness.says("a", NO, 0.0)
    assert (witness.data(0.0, sites=1), witness.data(0.0, sites=2)) == (False, None)
    witness.says("a", YES, 1.0)
    assert witness.data(1.0, sites=1) is None


@pytest.mark.parametrize("outcome", [YES, NO])
def test_evidence_expires(outcome: DialOutcome) -> None:
    witness = Witness()
    for site in ("a", "b"):
        witness.says(site, outcome, 0.0)
    assert witness.data(EVIDENCE_S) is (outcome is YES)
    assert witness.data(EVIDENCE_S + 1) is None
    assert witness.data(EVIDENCE_S + 1, arrived=0.0) is None


def test_port_that_closes_is_noticed_in_the_next_round_of_other_members() -> None:
    witness = Witness()
    for site in ("a", "b", "c"):
        witness.says(site, YES, 0.0)
    assert witness.data(600.0, arrived=1.0) is True
    for site in ("d", "e", "f"):
        witness.says(site, NO, 600.0)
    assert witness.data(601.0, arrived=1.0) is False
    assert witness.data(602.0, arrived=602.0) is True, "a newer arrival proves the opposite"


def test_evidence_about_an_earlier_address_is_forgotten() -> None:
    witness = Witness()
    for site in ("a", "b"):
        witness.says(site, YES, 0.0)
    witness.forget(10.0)
    assert witness.data(10.0, arrived=9.0) is None
    assert witness.data(11.0, arrived=11.0) is True


def test_external_address_is_what_two_sites_report() -> None:
    witness = Witness()
    assert witness.external_host(0.0, sites=3) == ""
    witness.says("a", NO, 0.0)
    assert (witness.external_host(0.0, sites=1), witness.external_host(0.0, sites=3)) == (HOME, "")
    witness.says("b", NO, 1.0)
    witness.says("c", NO, 1.0, host=ELSEWHERE)
    assert witness.external_host(1.0, sites=3) == HOME
    for site in ("c", "d"):
        witness.says(site, NO, 2 * NEWEST_S, host=ELSEWHERE)
    assert witness.external_host(2 * NEWEST_S, sites=4) == ELSEWHERE, "the newest answers count"


def test_versions_of_ip_are_judged_separately() -> None:
    """A router that blocks IPv4 connections may let IPv6 connections through, and conversely."""
    witness = Witness()
    for site, outcome, host in (("a", NO, HOME), ("b", NO, HOME), ("c", YES, SIX), ("d", YES, SIX)):
        witness.says(site, outcome, 0.0, host=host)
    assert witness.external_host(0.0, sites=4) == HOME
    assert witness.judge({}, {}, 0.0, sites=4, version=4).data is False
    assert witness.judge({}, {}, 0.0, sites=4, version=6).data is True
    came = {"2606:2::/64": 1.0}
    assert witness.judge(came, came, 1.0, sites=4, version=4).data is False
    only6 = Witness()
    assert only6.judge(came, came, 1.0, sites=4, version=6).data is True
    for site in ("c", "d"):
        only6.says(site, YES, 1.0, host=SIX)
    assert only6.external_host(1.0, sites=2) == SIX


def test_memory_for_answers_is_bounded() -> None:
    witness = Witness()
    for number in range(2 * SITES_MAX):
        witness.says(str(number), YES, float(number))
    assert len(witness._answers) == SITES_MAX


@given(
    honest=st.integers(1, 20),
    liars=st.integers(0, 19),
    at=st.data(),
)
def test_minority_of_liars_cannot_open_a_closed_port_or_close_an_open_one(
    honest: int, liars: int, at: st.DataObject
) -> None:
    """Liars and honest members answer in any order, each at its own site, any number of times.
    After each answer, honest members are the majority of all sites that have answered, if a round
    has answered in full."""
    liars = min(liars, honest - 1)
    for truth, lie in ((NO, YES), (YES, NO)):
        witness = Witness()
        told = [(f"h{n}", truth) for n in range(honest)] + [(f"l{n}", lie) for n in range(liars)]
        order = at.draw(st.permutations(told))
        for number, (site, outcome) in enumerate(order):
            witness.says(site, outcome, number * NEWEST_S / 100)
        judged = witness.data(number * NEWEST_S / 100, sites=max(2, len(told)))
        assert judged is not (lie is YES)
        assert judged is (truth is YES) or honest < 2


@given(st.permutations([NO, NO, YES]), st.integers(1, 4))
def test_liar_in_each_round_never_makes_a_closed_port_open(
    outcomes: list[DialOutcome], rounds: int
) -> None:
    """Each round asks three other members, and one of them lies. The answers arrive one by one."""
    witness = Witness()
    for count in range(rounds):
        for number, outcome in enumerate(outcomes):
            now = 600.0 * count + number
            witness.says(f"{count} {number}", outcome, now)
            assert witness.data(now) is not True


@pytest.mark.parametrize(
    ("site", "elsewhere"),
    [
        ("203.0.113.9", True),
        ("198.51.100.7", False),  # our external address: a member behind the same router
        ("192.168.1.9", False),  # the same LAN
        ("192.168.2.9", True),  # another private network, behind a router
        ("8.8.8.8", True),
        ("127.0.0.2", False),
        ("2001:db8:1:2::/64", False),
        ("2001:db8:1:3::/64", True),
        ("", False),
    ],
)
def test_connections_from_the_same_lan_are_not_from_elsewhere(site: str, elsewhere: bool) -> None:
    own = (HOME, "192.168.1.5", "2001:db8:1:2::5")
    assert is_elsewhere(site, own, ("192.168.1.0/24", "8.8.8.0/24")) is elsewhere

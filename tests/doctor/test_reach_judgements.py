"""The lines about the router, dial-backs and the NAT follow from what others say."""

from __future__ import annotations

from dataclasses import replace
from ipaddress import ip_address
from pathlib import Path
from typing import Any

import pytest

from p2ptrain.cli.error_codes import CODES
from p2ptrain.config.node import NodeConfig
from p2ptrain.doctor.dial_back import DialBackFacts, judge_dial_back
from p2ptrain.doctor.finding import Finding, Level
from p2ptrain.doctor.nat_kind import NatFacts, Seen, judge_nat
from p2ptrain.doctor.port_mapping import MappingFacts, is_outside, judge_mapping
from p2ptrain.doctor.subject import Subject
from p2ptrain.peers.reach_messages import DialOutcome, ReachAnswer
from p2ptrain.portmap import OpenPort, Protocol, Standing

OUTSIDE, LAN = "9.9.9.7", "192.168.1.5"
YES, NO, REFUSED = DialOutcome.REACHED, DialOutcome.SILENT, DialOutcome.REFUSED
UNTRIED, OTHER = DialOutcome.UNTRIED, DialOutcome.ELSE
OUTBOUND = "NET-OUTBOUND-ONLY"
WANTED = (4201, 4202)


def opened(*ports: int, at: str = OUTSIDE, reason: str = "") -> MappingFacts:
    """Return a trial in which the router at this external address opened these ports."""
    router = ip_address(at)
    found = tuple(OpenPort(each, router, each, Protocol.UPNP, 1800.0) for each in ports)
    return MappingFacts("", Standing(WANTED, found, reason), ip_address(LAN))


def answered(*outcomes: tuple[DialOutcome, DialOutcome], host: str = OUTSIDE) -> DialBackFacts:
    """Return the facts if members tell these outcomes of the control port and the data port."""
    names = ("ann", "bob", "cleo")[: len(outcomes)]
    answers = {name: ReachAnswer(host, *each) for name, each in zip(names, outcomes, strict=True)}
    return DialBackFacts(answers, {}, *WANTED, lan_host=LAN)


def seen(*places: tuple[str, int], **facts: Any) -> NatFacts:
    """Return the facts if members see this machine at these places."""
    found = [
        Seen(name, *place) for name, place in zip(("ann", "bob", "cleo"), places, strict=False)
    ]
    return NatFacts(found, **({"own_hosts": (LAN,), "lan_host": LAN} | facts))


CLOSED = answered((NO, NO), (NO, REFUSED))
CONE = seen((OUTSIDE, 40001), (OUTSIDE, 40001))
SYMMETRIC = seen((OUTSIDE, 40001), (OUTSIDE, 51717))


@pytest.mark.parametrize(
    ("found", "code", "said", "fix"),
    [
        (
            judge_mapping(opened(reason="PCP: it does not answer; UPnP: no router was found")),
            *("", "does not open ports by itself (PCP: it does", "switch on UPnP or NAT-PMP"),
        ),
        (
            judge_mapping(opened(4201, reason="UPnP: conflict")),
            *(OUTBOUND, "not TCP 4202 (UPnP: conflict)", "forward TCP 4202 to 192.168.1.5"),
        ),
        (
            judge_mapping(opened(*WANTED, at="100.64.3.1")),
            *(OUTBOUND, "100.64.3.1 is not public", "ask your provider for a public IPv4"),
        ),
        (
            judge_mapping(
                MappingFacts("", Standing(WANTED, reason="UPnP: no address", no_address=True))
            ),
            *(OUTBOUND, "probably your provider has another NAT", "or use IPv6"),
        ),
        (
            judge_dial_back(CLOSED),
            *(OUTBOUND, "bob: control port silent, data port refused", "forward TCP 4201 and"),
        ),
        (
            judge_dial_back(answered((NO, NO), (NO, NO))),
            *(OUTBOUND, "(2 members tried: control port silent, data port silent)", "forward TCP"),
        ),
        (
            judge_dial_back(replace(CLOSED, are_ports_chosen=False)),
            *(
                OUTBOUND,
                "closed: members cannot connect",
                "--data-listen 0.0.0.0:4202, and forward them",
            ),
        ),
        (
            judge_dial_back(replace(answered((NO, NO), host=LAN))),
            *(OUTBOUND, "members cannot connect", "in this machine's firewall"),
        ),
        (
            judge_dial_back(replace(CLOSED, mapped_by="UPnP")),
            *(OUTBOUND, "mapped but blocked by the carrier: members", "your provider blocks"),
        ),
        (
            judge_dial_back(answered((YES, NO), (YES, NO), (NO, NO))),
            *(
                OUTBOUND,
                "half: members reach your control port, but not your data",
                "forward TCP 4202 to 192.",
            ),
        ),
        (
            judge_dial_back(answered((OTHER, YES))),
            *(OUTBOUND, "control port another program answers", "forward TCP 4201 to 192."),
        ),
        (
            judge_dial_back(answered((UNTRIED, UNTRIED))),
            *("", "because all were busy", "again in a minute"),
        ),
        (
            judge_dial_back(replace(answered(), refused={"ann": "ask once a minute at most"})),
            *("", "ann: ask once a minute at most", "again in a minute"),
        ),
        (
            judge_dial_back(
                replace(answered(), refused={"ann": "only members may ask"}, is_open_run=True)
            ),
            *("", "in an open run", "p2ptrain status shows"),
        ),
        (
            judge_nat(SYMMETRIC),
            *(OUTBOUND, "symmetric: this machine is behind a NAT, which shows each", "have ports"),
        ),
        (
            judge_nat(replace(SYMMETRIC, router=ip_address("100.64.3.1"))),
            *(OUTBOUND, "behind two NATs, your router's and one of your provider", "use IPv6"),
        ),
        (
            judge_nat(seen(failed=("ann: it has no time",))),
            *("", "ann: it has no time", "again in a minute"),
        ),
    ],
)
def test_fault_gets_its_line_and_its_fix(found: Finding, code: str, said: str, fix: str) -> None:
    assert (found.level, found.code) == (Level.WARNING, code)
    assert said in found.said
    assert fix in found.fix
    assert not code or code in CODES


@pytest.mark.parametrize(
    ("found", "said"),
    [
        (judge_mapping(MappingFacts("you switched it off")), "not tried: you switched it off"),
        (judge_mapping(opened(*WANTED)), "opened TCP 4201 and 4202 by UPnP, and closed them"),
        (judge_dial_back(answered((YES, YES), (YES, YES), (NO, NO))), "3 members connected"),
        (judge_dial_back(answered((YES, YES))), "ann connected to both ports (TCP 4201 and 4202"),
        (judge_dial_back(replace(answered((YES, YES)), mapped_by="PCP")), "opened by PCP"),
        (judge_dial_back(answered()), "not tried: the members that answered are on this machine"),
        (judge_nat(seen((LAN, 40001))), "none: members see this machine at its own address"),
        (judge_nat(CONE), "cone: this machine is behind a NAT, which shows all members the same"),
        (
            judge_nat(replace(CONE, router=ip_address(OUTSIDE))),
            "cone: this machine is behind a NAT",
        ),
        (
            judge_nat(replace(CONE, router=ip_address("10.0.0.2"))),
            "cone: this machine is behind two",
        ),
        (
            judge_nat(replace(CONE, lan_host="100.64.9.9", router=ip_address("10.0.0.2"))),
            "cone: this machine is behind a NAT",
        ),
        (judge_nat(seen((OUTSIDE, 40001))), "its kind is not known"),
        (judge_nat(seen()), "not known: the members that answered are on this machine"),
    ],
)
def test_harmless_result_gets_a_good_line(found: Finding, said: str) -> None:
    assert found.level is Level.GOOD
    assert said in found.said


def test_node_whose_data_address_has_no_host_listens_outside(tmp_path: Path) -> None:
    outside, inside = ("/ip4/203.0.113.7/tcp/4201",), ("/ip4/127.0.0.1/tcp/4201",)
    for config, expected in (
        (NodeConfig(tmp_path, listen=outside), True),
        (NodeConfig(tmp_path, listen=outside, data_host="0.0.0.0"), True),
        (NodeConfig(tmp_path, listen=outside, data_host="127.0.0.1"), False),
        (NodeConfig(tmp_path, listen=inside), False),
    ):
        assert is_outside(Subject(config)) is expected

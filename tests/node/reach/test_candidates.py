"""A peer has up to four addresses for bulk data. It lists them in its heartbeats, and others choose
which ones to dial, and in which order."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from p2ptrain.dataplane import Credentials, Endpoint
from p2ptrain.encoding import pack
from p2ptrain.errors import RemoteProtocolError
from p2ptrain.ids import RunId
from p2ptrain.net.addresses import parse_told
from p2ptrain.peers.candidates import Candidate, Kind, candidates_in, to_dial
from p2ptrain.peers.heartbeat import ADDRESS_CHARACTERS_MAX, decode, encode
from p2ptrain.peers.peer_table import PeerTable
from tests.node.rig import ANN, heartbeat

RUN = RunId("ab" * 32)
CERTIFICATE = Credentials.create(ANN).certificate_der
OUTSIDE = "198.51.100.7"
LAN = Candidate(Kind.LAN, "192.168.1.5", 4202)
ANNOUNCED = Candidate(Kind.ANNOUNCED, "203.0.113.7", 5202)
IPV6 = Candidate(Kind.IPV6, "2001:db8::7", 4202)
OBSERVED = Candidate(Kind.OBSERVED, OUTSIDE, 4202)
ALL = (ANNOUNCED, IPV6, OBSERVED, LAN)


def endpoint(host: str = "192.168.1.5", port: int = 4202) -> Endpoint:
    return Endpoint(ANN.peer, host, port, CERTIFICATE)


def dialled(given: Endpoint, *candidates: Candidate, external: str = "") -> list[tuple[str, int]]:
    chosen = to_dial(given, candidates, external)
    return [(each.host, each.port) for each in chosen.each_place()]


def place(candidate: Candidate) -> tuple[str, int]:
    return candidate.host, candidate.port


def test_candidates_survive_a_heartbeat() -> None:
    texts = tuple(map(str, ALL))
    assert texts[2] == "/ip4/198.51.100.7/tcp/4202/observed-data"
    beat = decode(encode(heartbeat(RUN, addresses=("/ip4/192.0.2.1/tcp/4201", *texts))))
    assert candidates_in(beat.addresses) == ALL
    assert all(len(text) <= ADDRESS_CHARACTERS_MAX for text in texts)


def test_older_versions_skip_the_candidates() -> None:
    """An older version keeps those addresses of a heartbeat that `parse_told` accepts."""
    control = "/ip4/192.0.2.1/tcp/4201"
    known = parse_told([control, *map(str, ALL)], ANN.peer)
    assert [each.transport for each in known] == [control]


def test_endpoint_of_an_older_version_is_dialled_as_before() -> None:
    assert to_dial(endpoint(), (), OUTSIDE) == endpoint()


def test_addresses_are_dialled_in_order_without_the_lan() -> None:
    order = [place(each) for each in (ANNOUNCED, IPV6, OBSERVED)]
    assert dialled(endpoint(), *ALL) == order
    assert dialled(endpoint(), *reversed(ALL), external="192.0.2.9") == order


def test_lan_address_comes_first_if_both_have_the_same_external_address() -> None:
    order = [place(each) for each in (LAN, ANNOUNCED, IPV6, OBSERVED)]
    assert dialled(endpoint(), *ALL, external=OUTSIDE) == order


def test_lan_address_is_dialled_if_the_peer_has_no_other() -> None:
    assert dialled(endpoint(), LAN) == [place(LAN)]


def test_unlisted_address_of_the_endpoint_is_the_first_of_the_others() -> None:
    given, own = endpoint("203.0.113.9", 1), ("203.0.113.9", 1)
    assert dialled(given, LAN, OBSERVED) == [own, place(OBSERVED)]
    assert dialled(given, LAN, OBSERVED, external=OUTSIDE) == [place(LAN), own, place(OBSERVED)]


def test_loopback_address_is_never_dialled_beside_others() -> None:
    given = endpoint("127.0.0.1")
    assert dialled(given, OBSERVED) == [place(OBSERVED)]
    assert dialled(given) == [("127.0.0.1", 4202)], "`may_be_at` judges it"


@pytest.mark.parametrize(
    ("kind", "host", "port"),
    [
        (Kind.LAN, "127.0.0.1", 1),
        (Kind.LAN, "8.8.8.8", 1),
        (Kind.OBSERVED, "224.0.0.1", 1),
        (Kind.OBSERVED, "0.0.0.0", 1),
        (Kind.IPV6, "fe80::1", 1),
        (Kind.IPV6, "::ffff:127.0.0.1", 1),
        (Kind.IPV6, "fd00::1", 1),
        (Kind.IPV6, "8.8.8.8", 1),
        (Kind.LAN, "2606:1::1", 1),
        (Kind.LAN, "::1", 1),
        (Kind.OBSERVED, "::", 1),
        (Kind.ANNOUNCED, "a.name", 1),
        (Kind.ANNOUNCED, "8.8.8.8", 0),
        (Kind.ANNOUNCED, "8.8.8.8", 1 << 16),
    ],
)
def test_address_that_nobody_else_can_dial_is_skipped(kind: Kind, host: str, port: int) -> None:
    with pytest.raises(RemoteProtocolError):
        Candidate(kind, host, port)
    family = "ip6" if ":" in host else "ip4"
    assert candidates_in([f"/{family}/{host}/tcp/{port}/{kind}-data", str(OBSERVED)]) == (OBSERVED,)


def test_address_in_an_ipv6_lan_is_dialled_only_there() -> None:
    lan, public = Candidate(Kind.LAN, "fd00::5", 4202), Candidate(Kind.IPV6, "2606:1::5", 4202)
    there = endpoint(public.host)
    assert to_dial(there, (lan, public), "2606:2::1") == there
    near = to_dial(there, (lan, public), "2606:1::9")
    assert [each.host for each in near.each_place()] == ["fd00::5", "2606:1::5"]


def test_first_candidate_of_each_kind_counts() -> None:
    other = Candidate(Kind.OBSERVED, "203.0.113.1", 1)
    assert candidates_in([str(OBSERVED), str(other)] * 4) == (OBSERVED,)


@given(
    st.lists(
        st.one_of(
            st.text(max_size=200),
            st.builds("/{}/{}/tcp/{}/{}".format, *[st.sampled_from(
                ["ip4", "ip6", "1.2.3.4", "::1", "4202", "99999", "-1", "lan-data", "x-data", ""]
            )] * 4),
        ),
        max_size=8,
    )
)  # fmt: skip
def test_no_text_of_a_peer_raises_an_error(texts: list[str]) -> None:
    found = candidates_in(texts)
    assert len(found) <= len(Kind)
    assert dialled(endpoint(), *found)


def test_table_of_peers_keeps_the_addresses_to_dial() -> None:
    external = "192.0.2.9"
    table = PeerTable(external_host=lambda: external)
    wire = pack(endpoint().to_wire())

    def heard(serial: int) -> list[str]:
        beat = heartbeat(RUN, endpoint=wire, addresses=tuple(map(str, ALL)), serial=serial)
        record = table.note_heartbeat(ANN.peer, beat, 1.0)
        assert record is not None
        assert record.endpoint is not None
        return [each.host for each in record.endpoint.each_place()]

    assert heard(1)[0] == ANNOUNCED.host
    external = OUTSIDE
    assert heard(2)[0] == LAN.host
    assert [each.host for each in table.with_candidates(endpoint()).each_place()] == heard(3)
    restarted = Endpoint(ANN.peer, "203.0.113.9", 1, Credentials.create(ANN).certificate_der)
    assert table.with_candidates(restarted) == restarted

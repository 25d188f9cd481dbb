"""A trial opens the ports, tells the result, and leaves nothing open."""

from __future__ import annotations

from p2ptrain.portmap import Interruption, Kind, Router, judge, try_ports
from tests.portmap.fake_gateway import GATEWAY, HOST, fake_gateway, natpmp_response

NONCES = {4201: bytes(12), 4202: bytes(12)}


def test_trial_closes_the_ports_that_it_opened() -> None:
    def only_natpmp(data: bytes) -> list[bytes]:
        return [] if data[0] else [natpmp_response(data, address="8.8.8.8")]

    with fake_gateway(only_natpmp) as fake, Interruption() as interruption:
        standing = try_ports(Router(GATEWAY, port=fake.port), NONCES, interruption)
        verdict = judge(standing, (), GATEWAY.local)
    assert verdict.kind is Kind.MAPPED
    assert verdict.words.startswith("your router opened TCP 4201 and 4202 by NAT-PMP")
    lifetimes = [data[8:12] for data in fake.received if len(data) == 12]
    assert lifetimes[2:] == [bytes(4), bytes(4)]


def test_interrupted_trial_tells_no_result() -> None:
    with fake_gateway(lambda data: []) as fake, Interruption() as interruption:
        interruption.stop()
        router = Router(GATEWAY, port=fake.port, search_at=(HOST, fake.port))
        standing = try_ports(router, NONCES, interruption)
    assert judge(standing, (), GATEWAY.local).kind is Kind.ASKING

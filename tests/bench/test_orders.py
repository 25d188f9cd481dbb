"""The benchmark of ring orders: the orders that it compares, and the relay that slows down one
link."""

from __future__ import annotations

import json
import socket
import threading
import time

import pytest

from p2ptrain.bench.all_reduce import orders
from p2ptrain.bench.all_reduce.averaging import AverageMeasured, AverageSetting, name_of_peer
from p2ptrain.bench.all_reduce.comparison import run_at
from p2ptrain.bench.all_reduce.orders import measure, rates_of, worst_order
from p2ptrain.bench.all_reduce.slow_link import SlowLink
from p2ptrain.bench.processes import Host
from p2ptrain.cli.main import main
from p2ptrain.ids import PeerId
from p2ptrain.ring.order import best_order


def stand_together(order: tuple[PeerId, ...], a: PeerId, b: PeerId) -> bool:
    apart = abs(order.index(a) - order.index(b))
    return apart in (1, len(order) - 1)


def test_best_order_avoids_the_bad_link_and_the_worst_does_not() -> None:
    setting = AverageSetting(peers=5, elements=1, limit_bytes_per_s=4.0, slow_link=(0, 1, 1.0))
    names = [name_of_peer(number) for number in range(5)]
    rates = rates_of(names, setting)
    assert sorted(rates.values()) == [1.0, *[4.0] * 9]
    best, worst = best_order(names, rates, assumed=0.0).peers, worst_order(names, rates)
    assert sorted(best) == sorted(worst) == sorted(names)
    assert not stand_together(best, names[0], names[1])
    assert stand_together(worst, names[0], names[1])


def test_command_compares_the_best_and_the_worst_order(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def as_expected(setting: AverageSetting) -> list[AverageMeasured]:
        """Pretend that a reduce takes four times as long if the bad link is in the ring."""
        at = [setting.order.index(number) for number in (0, 1)]
        seconds = 8.0 if abs(at[0] - at[1]) in (1, 3) else 2.0
        return [AverageMeasured((seconds,), (0.1,), 10, "a")] * setting.peers

    monkeypatch.setattr(orders, "measured_here", as_expected)
    words = ["--bad-link", "8", "--elements", "1000000", "--rounds", "2", "--json"]
    assert main(["bench", "allreduce", *words]) == 0
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [(line["measure"], line["value"], line["unit"]) for line in lines[:3]] == [
        ("ring in the best order", 2.0, "s"),
        ("ring in the worst order", 8.0, "s"),
        ("ring in the best order", 4.0, "× as fast as"),
    ]


def test_slow_link_in_the_setting_slows_down_the_reduce() -> None:
    setting = AverageSetting(peers=2, elements=1_000_000, repeats=1, slow_link=(0, 1, 1e6))
    assert run_at(setting, [Host()] * 2).seconds > 0.9  # 1 MB was sent in each direction.


@pytest.mark.parametrize("peers", [3, 9])
def test_comparison_of_orders_refuses_too_few_and_too_many_peers(peers: int) -> None:
    with pytest.raises(ValueError, match="number of peers must be 4 to 8"):
        measure(peers, 100, 1e6, 1)


def test_slow_link_forwards_everything_at_its_rate() -> None:
    sent = bytes(range(256)) * 1024
    with socket.create_server(("127.0.0.1", 0)) as server:

        def echo() -> None:
            other, _ = server.accept()
            with other:
                while piece := other.recv(1 << 16):
                    other.sendall(piece)

        thread = threading.Thread(target=echo)
        thread.start()
        began = time.monotonic()
        with (
            SlowLink(server.getsockname(), 1e6) as link,
            socket.create_connection(link.address) as near,
        ):
            sender = threading.Thread(target=near.sendall, args=(sent,))
            sender.start()
            came = b""
            while len(came) < len(sent):
                came += near.recv(1 << 16)
            sender.join()
        thread.join()
    assert came == sent
    assert time.monotonic() - began >= len(sent) / 1e6

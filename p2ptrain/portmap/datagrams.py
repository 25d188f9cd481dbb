"""Send a datagram to the router and wait for its answer, with retries and a deadline.

Answers count only if they come from the router's address and port: the socket is connected, so the
kernel drops all others. Datagrams that `accept` refuses are ignored, and the wait continues. These
functions block; `Interruption` ends them from another thread.
"""

from __future__ import annotations

import selectors
import socket
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

from p2ptrain.errors import RemoteProtocolError
from p2ptrain.portmap.gateway import Gateway

ROUTER_PORT = 5351
"""The UDP port of PCP and NAT-PMP."""

WAITS_S = (0.25, 0.5, 1.0)
"""Seconds to wait after each of the three tries. A router in the same house answers within
milliseconds. RFC 6886 tries for a minute, but until then the other protocols would have to wait."""

DATAGRAMS_MAX = 1000
"""Maximum number of refused datagrams per wait, to bound the work that a flood causes."""

RECEIVED_BYTES_MAX = 2048
"""More than the longest message of any protocol. The rest of a longer datagram is lost."""

Answer = TypeVar("Answer")


class Interruption:
    """Ends blocking waits: `stop` may be called once or several times, from any thread."""

    def __init__(self) -> None:
        self.stopped = False
        self._near, self._far = socket.socketpair()

    def __enter__(self) -> Interruption:
        return self

    def __exit__(self, *details: object) -> None:
        self._near.close()
        self._far.close()

    def stop(self) -> None:
        if not self.stopped:
            self.stopped = True
            self._far.send(b"x")

    def fileno(self) -> int:
        """Return a descriptor that becomes readable after `stop`."""
        return self._near.fileno()


@dataclass(frozen=True, slots=True)
class NoAnswer:
    """Nothing acceptable arrived. `reason` says what was tried."""

    reason: str


def exchange(
    gateway: Gateway,
    message: bytes,
    accept: Callable[[bytes], Answer],
    interruption: Interruption,
    *,
    port: int = ROUTER_PORT,
    waits_s: tuple[float, ...] = WAITS_S,
) -> Answer | NoAnswer:
    """Send `message` to the gateway until `accept` returns an answer. `accept` raises
    RemoteProtocolError for a datagram that is not the answer."""
    family = socket.AF_INET if gateway.address.version == 4 else socket.AF_INET6
    try:
        with socket.socket(family, socket.SOCK_DGRAM) as to_router:
            to_router.setblocking(False)
            to_router.bind((str(gateway.local), 0))
            to_router.connect(gateway.sockaddr(port))
            for wait_s in waits_s:
                to_router.send(message)
                answer = wait_for(to_router, accept, interruption, wait_s)
                if answer is not None:
                    return answer
                if interruption.stopped:
                    return NoAnswer("the request was interrupted")
    except ConnectionRefusedError:
        return NoAnswer("it does not listen for such requests")
    except OSError as exc:
        return NoAnswer(f"it cannot be asked ({exc.strerror or exc})")
    return NoAnswer("it does not answer")


def wait_for(
    receiving: socket.socket,
    accept: Callable[[bytes], Answer],
    interruption: Interruption,
    wait_s: float,
    *,
    source: str | None = None,
) -> Answer | None:
    """Return the first answer that arrives within `wait_s` seconds; None if there is none, or after
    an interruption. With `source`, refuse datagrams from other hosts. Raises OSError."""
    deadline, refused = time.monotonic() + wait_s, 0
    with selectors.DefaultSelector() as selector:
        selector.register(receiving, selectors.EVENT_READ)
        selector.register(interruption, selectors.EVENT_READ)
        while not interruption.stopped and refused < DATAGRAMS_MAX:
            left_s = deadline - time.monotonic()
            if left_s <= 0 or not selector.select(left_s):
                return None
            try:
                data, sender = receiving.recvfrom(RECEIVED_BYTES_MAX)
                if source is None or sender[0] == source:
                    return accept(data)
            except BlockingIOError:
                continue
            except RemoteProtocolError:
                pass
            refused += 1
    return None

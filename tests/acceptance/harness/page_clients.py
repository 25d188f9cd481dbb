"""Clients that all want the stream of one page: `python -m tests.acceptance.harness.page_clients`.

    ... page_clients PORT --clients 500

The program does what the lines of its standard input say. "come": all clients connect, and each
that is refused tries again after `RETRY_S`. "go": all leave. After each line, once all clients have
had an answer, it prints a line of JSON: how many are served, how many were refused, and how many
refusals there were since the last line.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from dataclasses import dataclass, field
from functools import partial

import trio

RETRY_S = 3.0
"""Seconds until a refused client tries again: the pause that the stream tells browsers."""

ANSWER_S = 60.0
"""Seconds without the first answer of another client after which the others are not waited for."""

LOOK_S = 0.05
NICE = 19
"""The clients' own processor time is not what the page costs, so they get what is left over."""


@dataclass
class Crowd:
    port: int
    clients: int
    served: set[int] = field(default_factory=set)
    answered: set[int] = field(default_factory=set)
    refusals: int = 0

    @property
    def request(self) -> bytes:
        host = f"127.0.0.1:{self.port}"
        return (
            f"GET /api/v1/stream HTTP/1.1\r\nhost: {host}\r\naccept-encoding: gzip\r\n\r\n".encode()
        )

    async def client(self, number: int) -> None:
        """Follow the stream, or try for ever."""
        while True:
            try:
                async with await trio.open_tcp_stream("127.0.0.1", self.port) as stream:
                    await stream.send_all(self.request)
                    first = await stream.receive_some(4096)
                    self.answered.add(number)
                    if b" 200 " in first:
                        self.served.add(number)
                        while await stream.receive_some(65_536):
                            pass
            except (OSError, trio.BrokenResourceError):
                self.answered.add(number)
            finally:
                self.served.discard(number)
            self.refusals += 1
            await trio.sleep(RETRY_S)

    async def all_answered(self) -> None:
        """Return when every client has had an answer, or no further one gets any."""
        answered, ends = 0, trio.current_time() + ANSWER_S
        while len(self.answered) < self.clients and trio.current_time() < ends:
            if len(self.answered) > answered:
                answered, ends = len(self.answered), trio.current_time() + ANSWER_S
            await trio.sleep(LOOK_S)

    def account(self) -> str:
        refused, self.refusals = self.refusals, 0
        told = {"served": len(self.served), "refused": self.clients - len(self.served)}
        return json.dumps({**told, "refusals": refused})


async def obey(crowd: Crowd) -> None:
    async with (
        trio.lowlevel.FdStream(os.dup(sys.stdin.fileno())) as orders,
        trio.open_nursery() as all_,
    ):
        here = trio.CancelScope()
        while order := (await orders.receive_some(100)).strip():
            if order == b"come":
                here = trio.CancelScope()
                crowd.answered.clear()
                all_.start_soon(crowd_comes, crowd, here)
                await crowd.all_answered()
            told = crowd.account()
            if order == b"go":
                here.cancel()
            sys.stdout.write(told + "\n")
            sys.stdout.flush()
        all_.cancel_scope.cancel()


async def crowd_comes(crowd: Crowd, scope: trio.CancelScope) -> None:
    with scope:
        async with trio.open_nursery() as nursery:
            for number in range(crowd.clients):
                nursery.start_soon(crowd.client, number)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("port", type=int)
    parser.add_argument("--clients", type=int, default=500)
    given = parser.parse_args()
    os.nice(NICE)
    trio.run(partial(obey, Crowd(given.port, given.clients)))


if __name__ == "__main__":
    main()

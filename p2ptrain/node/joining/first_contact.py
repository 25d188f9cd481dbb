"""Find the run of a node that has none yet, and wait for a peer that serves it.

At the first start, the organiser's seed may be down for a while. A node that ended then would have
to be started again by hand, so it waits and says for whom. It does not wait if waiting cannot help:
if an address is wrong, or another run is served there.
"""

from __future__ import annotations

from collections.abc import Callable
from time import time

import trio

from p2ptrain.config.node import NodeConfig
from p2ptrain.errors import (
    ConfigError,
    NetworkUnreachable,
    P2PTrainError,
    RunMismatch,
    VersionMismatch,
)
from p2ptrain.net import Network
from p2ptrain.net.addresses import parse_with_peer
from p2ptrain.node.joining import find_run
from p2ptrain.node.joining.find_run import LAN_LOOK_S, PrintLine
from p2ptrain.node.joining.nearby_run import FIRST_LOOK_S, NearbyRun, Start
from p2ptrain.observe.states import duration
from p2ptrain.observe.waits import clock_time
from p2ptrain.run import Run
from p2ptrain.suggested_command import to_paste

TEMPORARY = {"NET-REFUSED", "NET-TIMEOUT", "NET-NO-ROUTE"}
"""Codes of failures that can end by themselves: the peer, or this machine's network, is down."""

RETRY_S, RETRY_S_MAX = 15.0, 120.0
"""Seconds before the first and before a late try. The time doubles with each failure."""

LISTED_MAX = 8
"""Maximum number of runs that the refusal of an unnamed run lists."""

Waiting = Callable[[str], object]


def check_bootstrap(config: NodeConfig) -> None:
    """Raise ConfigError (ADDR-SYNTAX, ADDR-NO-PEER-ID) if an address that the user gave is
    malformed, even if this node knows other peers."""
    for text in config.bootstrap:
        parse_with_peer(text)


async def find_first_run(
    network: Network,
    config: NodeConfig,
    addresses: list[str],
    print_line: PrintLine,
    waiting: Waiting,
    *,
    retry_s: float = RETRY_S,
    look_s: float = LAN_LOOK_S,
    first_look_s: float = FIRST_LOOK_S,
    start_search: Start | None = None,
    wall: Callable[[], float] = time,
) -> Run:
    """Return the run of the first peer that serves one. `waiting` is called with words for the
    status while the node waits.

    Raises P2PTrainError: the run cannot be found, or the user has not named one of those that
        strangers in the local network offer."""
    names_none = config.run is None and not config.observes
    if config.mdns and config.assume_yes and names_none and not config.bootstrap:
        raise await _refusal(network, config, print_line, look_s)
    if config.mdns and not (config.assume_yes and names_none):
        waiting("a peer of the run in the local network (--mdns)")
        return await find_run.wait_for_run(network, config, addresses, print_line, look_s=look_s)
    nearby = NearbyRun(network, config, addresses, print_line, look_s, start_search)
    began, retry_s_now = wall(), retry_s
    while True:
        try:
            return await find_run.fetch_run(network, config, addresses)
        except (NetworkUnreachable, RunMismatch, VersionMismatch) as exc:
            if config.searches_lan and retry_s_now == retry_s:
                await nearby.begin()
                if found := await nearby.find(first_look_s):
                    return found
            # With --no-wait, and for an observer, a person or a script waits for the answer.
            if exc.code not in TEMPORARY or config.observes or not config.wait_for_approval:
                raise
            if retry_s_now == retry_s:
                _print_once(exc, print_line)
            where = f"{_named(addresses)}{' or in the local network' if nearby.runs else ''}"
            since, next_try = f"since {clock_time(began)}", f"next try in {duration(retry_s_now)}"
            print_line(f"waiting {since} for a peer at {where}; {next_try}")
            waiting(f"for a peer at {where} {since}, tried every few minutes")
        if found := await nearby.find(retry_s_now):
            return found
        retry_s_now = min(RETRY_S_MAX, 2 * retry_s_now)


def _print_once(exc: P2PTrainError, print_line: PrintLine) -> None:
    """Print the evidence of the first failure; later ones are usually the same."""
    for line in (exc.what, *exc.evidence):
        print_line(line)
    print_line(f"likely: {exc.likely} (p2ptrain explain {exc.code})")


def _named(addresses: list[str]) -> str:
    others = f" or {len(addresses) - 1} more" if addresses[1:] else ""
    return f"{addresses[0]}{others}"


async def _refusal(
    network: Network, config: NodeConfig, print_line: PrintLine, look_s: float
) -> ConfigError:
    """Wait until a peer in the local network offers a run, and return the error that lists the
    runs. Anybody in that network can offer one, and --yes would agree to it unseen."""
    print_line("looking for runs in the local network (--mdns)")
    while True:
        found = dict[str, str]()
        for address in find_run.near_addresses(network):
            try:
                run = await find_run.fetch_run(network, config, [address])
            except P2PTrainError:
                continue
            found[run.id] = find_run.in_words(run)
            if len(found) == LISTED_MAX:
                break
        if found:
            return ConfigError(
                "--yes agrees only to a run that you name, and you did not name one",
                code="CONSENT",
                evidence=[f"found   {words}" for words in found.values()],
                likely="anybody in the local network can offer a run",
                do=f"{to_paste(config.home, 'node --mdns --yes --run RUNID')}, with the id of the "
                "run that you want; or leave out --yes, to read about the run and be asked",
            )
        await trio.sleep(look_s)

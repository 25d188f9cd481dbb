"""Find the run that this node serves.

A home (the folder with a node's files) that was used before contains the run. Otherwise a peer at a
bootstrap address sends the run's manifest. It is checked before it is stored: its digest must be
the run's id, and its signature must be the organiser's.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import trio

from p2ptrain.archive.home import Home
from p2ptrain.config.node import NodeConfig
from p2ptrain.errors import (
    ConfigError,
    NetworkUnreachable,
    P2PTrainError,
    PeerError,
    RemoteProtocolError,
    RunMismatch,
    VersionMismatch,
)
from p2ptrain.ids import PeerId
from p2ptrain.names import label
from p2ptrain.net import Accept, Network, anybody, attempt
from p2ptrain.node.gossip.hello_client import send_hello
from p2ptrain.peers.hello_messages import HelloRequest
from p2ptrain.run import Run, load_run
from p2ptrain.suggested_command import to_paste

CONNECT_S = 10.0

LAN_LOOK_S = 2.0
"""Seconds between two rounds of questions to the peers in the local network. mDNS needs about one
second to find a peer."""

PrintLine = Callable[[str], None]


def known_run(home: Home, config: NodeConfig) -> Run | None:
    """Return the run that `home` contains, if any.

    Raises RunMismatch: it is not the run that the user asked for."""
    run = load_run(home.manifest)
    if run is not None:
        _check_expected(run, config)
    return run


async def fetch_run(network: Network, config: NodeConfig, addresses: list[str]) -> Run:
    """Ask peers at `addresses` for the run, and return the first valid one. Several peers are asked
    at once, so that a silent one does not delay the others.

    A peer that does not send a run, or sends a wrong or forged one, is not asked again.

    Raises:
        NetworkUnreachable, ConfigError: no peer can be reached, no peer sends a valid run, or the
            addresses are wrong. The error's evidence says for each address what happened.
        RunMismatch, VersionMismatch: all peers serve a different run than the one asked for, or
            runs of a different version. A service manager does not restart a node after these
            errors. So if one address does not answer, NetworkUnreachable is raised instead: the
            right run may be served there."""
    if not addresses:
        raise ConfigError(
            "this node does not have a run, and has no address where it could ask for one",
            code="ADDR-NONE",
            likely="the node is new, and you did not give --bootstrap",
            do=(
                f"run {to_paste(config.home, 'node --bootstrap ADDR')}, with an address from the "
                "run's organiser"
            ),
        )
    return await _survey(network, config, addresses)


async def wait_for_run(
    network: Network,
    config: NodeConfig,
    addresses: list[str],
    print_line: PrintLine,
    *,
    look_s: float = LAN_LOOK_S,
) -> Run:
    """Ask peers at `addresses`, and peers in the local network that mDNS finds, for the run. Return
    the first valid one. Wait for as long as there is none: such a peer may start later.

    Anybody in the local network may answer, if the user named neither a run nor an invitation. Call
    this only if the user is asked for consent to the run that was found, or has named it.

    Raises ConfigError: the addresses are wrong."""
    told = ""
    while True:
        what = "no peer in the local network has been found yet"
        if ways := list(dict.fromkeys([*addresses, *near_addresses(network)])):
            try:
                return await _survey(network, config, ways)
            except ConfigError:
                raise
            except P2PTrainError as exc:
                what = exc.what
        if what != told:
            told = what
            print_line(f"{what}; waiting for a peer of the run in the local network (--mdns)")
        await trio.sleep(look_s)


def looks_nearby(network: Network, config: NodeConfig) -> bool:
    """Return whether this node looks for peers in the local network now."""
    return config.mdns or network.lan.is_running


def near_addresses(network: Network) -> list[str]:
    """Return the addresses of all known peers. For a node without a run, mDNS found them."""
    return [way for peer in network.dialable_peers() for way in network.addresses_of(peer)]


async def _survey(network: Network, config: NodeConfig, addresses: list[str]) -> Run:
    """Return the first valid run that a peer at `addresses` sends. Raises what `fetch_run` does."""
    survey = _Survey(network, config)
    try:
        await _connect(network, config, addresses, survey.ask)
    except P2PTrainError as exc:
        raise _no_run(survey.useless, addresses, exc) from exc
    return survey.found[0]


class _Survey:
    """Asks the peers at several addresses for the run, and keeps their answers. Each peer is asked
    only once, even if several of the addresses lead to it."""

    def __init__(self, network: Network, config: NodeConfig) -> None:
        self._network = network
        self._config = config
        self._locks: dict[PeerId, trio.Lock] = {}
        self.found: list[Run] = []
        self.useless: dict[PeerId, P2PTrainError] = {}
        """Why the answer of each peer was of no use."""

    async def ask(self, peer: PeerId, address: str) -> None:
        """Ask `peer` for the run, and return once it has sent a valid one.

        Raises NetworkUnreachable, RunMismatch, VersionMismatch: `peer` did not send a valid run,
        for the reason in the error."""
        async with self._locks.setdefault(peer, trio.Lock()):
            if peer in self.useless:
                raise self.useless[peer]
            try:
                run = await _run_of(self._network, peer, self._config, address)
                _check_expected(run, self._config, f"{label(peer)} serves another run")
            except (NetworkUnreachable, RunMismatch, VersionMismatch) as exc:
                self.useless[peer] = exc
                raise
            self.found.append(run)


async def _run_of(network: Network, peer: PeerId, config: NodeConfig, address: str) -> Run:
    """Ask `peer`, which is connected at `address`, for its run, and return it.

    Raises:
        NetworkUnreachable: `peer` does not send a run, or the organiser's signature of the run is
            invalid.
        VersionMismatch: `peer` sends a run of a different version."""
    try:
        reply = await send_hello(network, peer, HelloRequest(config.run or "", b""))
        return Run.from_bytes(reply.manifest)
    except (PeerError, RemoteProtocolError) as exc:
        raise NetworkUnreachable(
            f"{label(peer)} answered, but did not send a valid run: {exc.what}",
            code=exc.code,
            evidence=[attempt(address, exc.what)],
            likely="that node is faulty, runs a different version, or is malicious",
            do="ask the run's organiser for the address of another node",
        ) from exc


def _no_run(
    useless: Mapping[PeerId, P2PTrainError], addresses: list[str], exc: P2PTrainError
) -> P2PTrainError:
    """Return the error to show after a search that ended with `exc`, whose evidence names all
    addresses. `useless` has the errors of peers that were reached, but did not send the right run.
    The first of these errors, if any, determines the code and the advice, because that attempt got
    furthest."""
    at = [next((useless[peer] for peer in useless if peer in each), None) for each in addresses]
    first = next(filter(None, at), None)
    if len(addresses) == 1 and addresses[0] not in "\n".join([exc.what, *exc.evidence]):
        exc.evidence = (attempt(addresses[0], exc.what), *exc.evidence)
    if first is None or len(addresses) == 1:
        return exc
    kind: type[P2PTrainError] = NetworkUnreachable
    what = "none of the peers at these addresses sent a valid run"
    if all(isinstance(each, RunMismatch) for each in at):
        kind, what = RunMismatch, "these addresses serve a different run than you asked for"
    elif all(isinstance(each, VersionMismatch) for each in at):
        kind, what = VersionMismatch, "these addresses serve runs of a different p2ptrain version"
    return kind(what, code=first.code, evidence=exc.evidence, likely=first.likely, do=first.do)


async def return_to(
    network: Network,
    config: NodeConfig,
    run: Run,
    addresses: list[str],
    print_line: PrintLine,
    *,
    is_of_run: Callable[[PeerId], bool],
) -> None:
    """Connect to a peer of `run`, which this home contains. If no peer answers, say so and return.

    A peer at an address that the user gave is asked which run it serves. Otherwise, if the user
    gave the address of a different run, the node would train for the run in its home without saying
    so. But a peer that is known to belong to the home's run (`is_of_run`) is not asked: its answer
    could only stop this node, and a malicious bootstrap node could stop every restarting node in
    this way.

    Raises:
        ConfigError: the addresses are wrong.
        RunMismatch: all given addresses belong to other runs. If one of them may belong to this
            run, the node continues, since a service manager does not restart a node after this
            error."""
    left, others = list(addresses), dict[str, str]()
    while left:
        try:
            peer = await _connect(network, config, left)
        except NetworkUnreachable as exc:
            print_line(_continuing_offline(exc))
            break
        given = [address for address in config.bootstrap if peer in address]
        if not given or is_of_run(peer):
            break
        other = await _other_run(network, peer, config, run, given[0])
        if other is None:
            break
        others |= dict.fromkeys(given, other)
        left = [address for address in left if peer not in address]
    if others and others.keys() >= set(config.bootstrap):
        raise _of_another_run(run, others)
    for address, other in others.items():
        print_line(f"ignoring {address}: it belongs to a different run, {other}")


async def _other_run(
    network: Network, peer: PeerId, config: NodeConfig, run: Run, address: str
) -> str | None:
    """Describe the run that `peer` serves if that is certainly not `run`; otherwise return None."""
    try:
        served = await _run_of(network, peer, config, address)
    except NetworkUnreachable:
        # The peer may just have started and not have a run yet. That does no harm: everything that
        # it sends later is verified.
        return None
    except VersionMismatch as exc:
        return exc.what
    return None if served.id == run.id else in_words(served)


def _of_another_run(run: Run, others: Mapping[str, str]) -> RunMismatch:
    return RunMismatch(
        "the peer at the given address serves a different run from the one in this home",
        evidence=[
            f"this home {in_words(run)}",
            *(f"{address}   {other}" for address, other in others.items()),
        ],
        likely="you used this home for an earlier run, or the address belongs to another run",
        do=(
            "to join the run at that address, add --home with a new directory; to continue with "
            "this home's run, leave out --bootstrap"
        ),
    )


async def reconnect(
    network: Network, config: NodeConfig, addresses: list[str], print_line: PrintLine
) -> None:
    """Connect to a peer at one of `addresses`. If none answers, say so and return."""
    try:
        await _connect(network, config, addresses)
    except NetworkUnreachable as exc:
        print_line(_continuing_offline(exc))


async def _connect(
    network: Network, config: NodeConfig, addresses: list[str], accept: Accept = anybody
) -> PeerId:
    """Connect to the first peer that answers and that `accept` does not reject. Addresses given by
    the user are preferred.

    Raises ConfigError, NetworkUnreachable: there is no such peer; see `Network.connect_any`."""
    given = [address for address in addresses if address in config.bootstrap]
    met = [address for address in addresses if address not in config.bootstrap]
    return await network.connect_any(given, or_else=met, deadline_s=CONNECT_S, accept=accept)


def _continuing_offline(exc: NetworkUnreachable) -> str:
    return f"{exc.what}; continuing with the data on this disk, and trying again later"


def _check_expected(
    run: Run, config: NodeConfig, what: str = "this is another run than the one you asked for"
) -> None:
    if config.run is not None and run.id != config.run:
        raise RunMismatch(
            f"{what}: {in_words(run)}",
            evidence=[f"you asked for {config.run}", f"found     {in_words(run)}"],
            likely="the address belongs to a different run, or you used this home for one",
            do="ask the organiser for the right address, or use another --home",
        )
    if config.organiser is not None and run.manifest.organiser != config.organiser:
        raise RunMismatch(
            f"the run has a different organiser than your invitation says: {in_words(run)}",
            evidence=[
                f"invitation  {config.organiser} {label(config.organiser)}",
                f"run         {run.manifest.organiser} {label(run.manifest.organiser)}",
            ],
            likely="somebody altered the invitation",
            do="get the invitation from a source that you trust",
        )


def in_words(run: Run) -> str:
    """Return the id, the name and the organiser of `run`."""
    return f"{run.id} ({run.manifest.name!r} by {label(run.manifest.organiser)})"

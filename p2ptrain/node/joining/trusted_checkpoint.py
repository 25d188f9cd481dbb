"""Begin the ledger at a checkpoint that the user trusts. `base_server` is the code that answers.

If no peer keeps the ledger's old entries, a newcomer cannot check the beginning of the run. It can
then begin at a base (the ledger's state after some entry), but only at the checkpoint that its user
has entered.

A checkpoint contains the digest of a Commit, and the Commit contains the digest of the state. So
the checkpoint alone decides which base is right, and any connected peer may send the base. Admitted
peers are asked first. A peer that sends a wrong base only wastes one answer.
"""

from __future__ import annotations

import random
from collections.abc import Sequence

import trio

from p2ptrain.archive.chain_log import Origin, origin_bytes
from p2ptrain.archive.home import Home
from p2ptrain.archive.ledger_on_disk import rules_of, verified
from p2ptrain.config.node import NodeConfig
from p2ptrain.errors import ConfigError, NetworkUnreachable, PeerError, RemoteProtocolError
from p2ptrain.identity import verify
from p2ptrain.ids import PeerId
from p2ptrain.ledger.chain.rules import Rules
from p2ptrain.ledger.history.base import BASE_BYTES_MAX, Base, Checkpoint, decode_base
from p2ptrain.ledger.history.check_base import check_base
from p2ptrain.names import label
from p2ptrain.net import Network
from p2ptrain.node.gossip.ask_peers import AskingRate, PeerRank, first_good, in_order
from p2ptrain.node.joining.base_server import encode_named
from p2ptrain.node.joining.find_run import PrintLine
from p2ptrain.node.state.threads import durably
from p2ptrain.observe.journal import Journal
from p2ptrain.peers.protocol_names import BASE_PROTOCOL
from p2ptrain.run import Run
from p2ptrain.store import Disk, RecordLog

BASE_PACE = AskingRate(at_once=2, next_s=5.0, deadline_s=60.0)
"""How many peers are asked for a base, and how fast. The base of a run with a thousand members has
0.6 MB; the largest accepted one has 9 MB. The deadline is long enough for a large base over a slow
connection. Only two peers are asked at once, since many copies would fill such a connection. With
two, one silent peer does not cause a delay."""


async def begin_at_checkpoint(
    network: Network,
    config: NodeConfig,
    home: Home,
    run: Run,
    journal: Journal,
    print_line: PrintLine,
    disk: Disk | None = None,
    *,
    rank: PeerRank,
    draw: random.Random,
) -> None:
    """If the user entered a checkpoint that the ledger in `home` does not reach, fetch the base at
    this checkpoint, and store the base in `home`.

    Peers for which `rank` returns the lowest number are asked first.

    Raises:
        ConfigError: the ledger in `home` has a different entry at the checkpoint's height.
        NetworkUnreachable: no connected peer sent the right base."""
    if config.trust_checkpoint is None:
        return
    named = Checkpoint.parse(config.trust_checkpoint)
    rules, log = rules_of(run), RecordLog(home.ledger, disk=disk)
    chain = await trio.to_thread.run_sync(verified, home, rules, log)
    own = {each.entry.height: each.entry.digest for each in chain.whole}
    if own.get(named.height, named.digest) != named.digest:
        raise ConfigError(
            f"the entry at height {named.height} of the ledger in this home differs from the "
            "checkpoint that you gave",
            code="LEDGER-CHECKPOINT",
            evidence=[f"here    {named.height}:{own[named.height]}", f"named   {named}"],
            likely="the checkpoint is misspelt, or belongs to a different run",
            do="leave out --trust-checkpoint, or give the node a different --home",
        )
    if max(own, default=0) >= named.height:
        print_line(
            "--trust-checkpoint is no longer needed: the ledger in this home already reaches it"
        )
        return
    order = in_order(network.connected(), rank, draw)
    origin = Origin(await _fetched(network, order, rules, named, journal), named)
    await durably(log.rewrite, [origin_bytes(origin)])
    print_line(f"ledger {origin.words}")


async def _fetched(
    network: Network, order: Sequence[PeerId], rules: Rules, named: Checkpoint, journal: Journal
) -> Base:
    """Return the base at checkpoint `named`, from the first peer that sends a valid one."""
    tried: dict[PeerId, str] = {}

    async def ask(peer: PeerId) -> Base | None:
        tried[peer] = "it did not answer in time"
        try:
            base = await _shown(network, peer, rules, named)
        except (PeerError, RemoteProtocolError) as exc:
            journal.write("bad-base", peer=peer, code=exc.code, reason=exc.what)
            tried[peer] = exc.what
            return None
        if base is None:
            tried[peer] = "it does not have that part of the ledger"
        return base

    if (base := await first_good(order, ask, BASE_PACE)) is not None:
        return base
    lines = [f"tried   {label(peer)}   {why}" for peer, why in tried.items()]
    raise NetworkUnreachable(
        f"no connected peer has the base of the ledger at checkpoint {named.height}",
        code="LEDGER-CHECKPOINT",
        evidence=[f"named   {named}", *(lines or ["no peer is connected"])],
        likely=(
            "the checkpoint is misspelt or belongs to a different run, or all peers have since "
            "pruned it"
        ),
        do="ask somebody you trust for a newer one: p2ptrain ledger show prints it",
    )


async def _shown(network: Network, peer: PeerId, rules: Rules, named: Checkpoint) -> Base | None:
    """Return the base that `peer` sends, after checking it; None if `peer` does not have it.

    Raises PeerError, RemoteProtocolError: `peer` does not answer, or sends a wrong base."""
    answer = await network.request(
        peer,
        BASE_PROTOCOL,
        encode_named(named),
        deadline_s=BASE_PACE.deadline_s,
        bytes_max=BASE_BYTES_MAX,
    )
    if not answer:
        return None

    def read() -> Base:
        base = decode_base(answer)
        check_base(rules, base, named, verify)
        return base

    return await trio.to_thread.run_sync(read)

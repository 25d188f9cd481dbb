"""Begin at a checkpoint that the user trusts, and help others to do the same.

Where nobody keeps the ledger's old entries, a newcomer cannot check what happened before. It may
begin at a base then, but only at the one whose checkpoint its user has named: the base travels over
the network, and is compared with the name; who sent it does not matter.
"""

from __future__ import annotations

import trio

from p2ptrain.config.node import NodeConfig
from p2ptrain.encoding import fields, pack, unpack
from p2ptrain.errors import ConfigError, NetworkUnreachable, PeerError, RemoteProtocolError
from p2ptrain.identity import verify
from p2ptrain.ids import PeerId
from p2ptrain.ledger.base import (
    BASE_BYTES_MAX,
    Base,
    Checkpoint,
    check_base,
    decode_base,
    encode_base,
)
from p2ptrain.ledger.pruning import base_at
from p2ptrain.ledger.rules import Rules
from p2ptrain.names import label
from p2ptrain.net import Network
from p2ptrain.node.chain import rules_of, verified
from p2ptrain.node.chain_file import Origin, origin_bytes
from p2ptrain.node.home import Home
from p2ptrain.node.learning import Say
from p2ptrain.node.parts import Parts
from p2ptrain.node.topics import BASE_PROTOCOL, Handler
from p2ptrain.observe.journal import Journal
from p2ptrain.run import Run
from p2ptrain.store import Disk, RecordLog

BASE_S = 60.0
"""A base of a thousand members has 0.6 MB; a large one must come over a slow line."""

REQUEST_BYTES_MAX = 256


def serve_bases(parts: Parts) -> None:
    """From now on give whoever is admitted the base that a checkpoint of our chain names."""
    parts.network.handle(BASE_PROTOCOL, _bases(parts), bytes_max=REQUEST_BYTES_MAX)


def _bases(parts: Parts) -> Handler:
    one_at_a_time = trio.Lock()
    made: list[Base] = []

    async def answer(peer: PeerId, payload: bytes) -> bytes:
        named = _decode_request(payload)
        kept = parts.ledger.kept
        async with one_at_a_time:
            if not made or made[0].checkpoint != named:
                held = kept.at(named.height)
                if held is None or held.entry.digest != named.digest:
                    return b""
                base = base_at(parts.ledger.rules, kept, named.height)
                made[:] = [] if base is None else [base]
            return await trio.to_thread.run_sync(encode_base, made[0]) if made else b""

    return answer


def _decode_request(payload: bytes) -> Checkpoint:
    wire = fields(unpack(payload, bytes_max=REQUEST_BYTES_MAX), height=int, digest=str)
    try:
        return Checkpoint.parse(f"{wire['height']}:{wire['digest']}")
    except ValueError as exc:
        raise RemoteProtocolError(str(exc)) from exc


async def begin_at_checkpoint(
    network: Network,
    config: NodeConfig,
    home: Home,
    run: Run,
    journal: Journal,
    say: Say,
    disk: Disk | None = None,
) -> None:
    """Have a base in the home if the user named one and the ledger there does not reach it.

    Raises:
        ConfigError: the ledger here has another entry at that height.
        NetworkUnreachable: nobody who is connected gave the base that was named.
    """
    if config.trust_checkpoint is None:
        return
    named = Checkpoint.parse(config.trust_checkpoint)
    rules, log = rules_of(run), RecordLog(home.ledger, disk=disk)
    chain = await trio.to_thread.run_sync(verified, home, rules, log)
    own = {each.entry.height: each.entry.digest for each in chain.whole}
    if own.get(named.height, named.digest) != named.digest:
        raise _contradicted(named, own[named.height])
    if max(own, default=0) >= named.height:
        say("--trust-checkpoint is not needed any more: the ledger here goes further than that")
        return
    origin = Origin(await _fetched(network, rules, named, journal), named)
    await trio.to_thread.run_sync(log.rewrite, [origin_bytes(origin)])
    say(f"ledger {origin.words}")


async def _fetched(network: Network, rules: Rules, named: Checkpoint, journal: Journal) -> Base:
    request = pack({"height": named.height, "digest": named.digest})
    tried: list[str] = []
    for peer in sorted(network.connected()):
        try:
            answer = await network.request(
                peer, BASE_PROTOCOL, request, deadline_s=BASE_S, bytes_max=BASE_BYTES_MAX
            )
            if answer:
                base = decode_base(answer)
                check_base(rules, base, named, verify)
                return base
            tried.append(f"tried   {label(peer)}   it does not have it")
        except (PeerError, RemoteProtocolError) as exc:
            journal.write("bad-base", peer=peer, code=exc.code, reason=exc.what)
            tried.append(f"tried   {label(peer)}   {exc.what}")
    raise NetworkUnreachable(
        f"nobody who is connected gave the beginning of the ledger at checkpoint {named.height}",
        code="LEDGER-CHECKPOINT",
        evidence=[f"named   {named}", *(tried or ["nobody is connected"])],
        likely="the checkpoint is misspelt, of another run, or all have forgotten it meanwhile",
        do="ask the person whom you trust for a newer one: p2ptrain ledger show prints it",
    )


def _contradicted(named: Checkpoint, own: str) -> ConfigError:
    return ConfigError(
        f"the ledger in this home has another entry at height {named.height} than you name",
        code="LEDGER-CHECKPOINT",
        evidence=[f"here    {named.height}:{own}", f"named   {named}"],
        likely="the checkpoint is misspelt, or of another run",
        do="leave --trust-checkpoint out, or give the node another --home",
    )

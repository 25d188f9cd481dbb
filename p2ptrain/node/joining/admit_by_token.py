"""Let an organiser's node admit peers whose requests to join contain a valid token.

Only the holder of the organiser's key can sign an allowlist, so this task does nothing elsewhere. A
request counts if the organiser signed its token and the peer proves that it has the invitation. The
count of uses is durable before the new list is signed. As with `p2ptrain peers approve`, other
peers are first asked whether they have a newer list, so that no number is used twice.

A liar gains nothing: it cannot make tokens, and a proof names the peer that it admits. A leaked
invitation admits as many strangers as it has uses left.
"""

from __future__ import annotations

import time

import trio

from p2ptrain.archive.home import signing_allowlist
from p2ptrain.archive.token_uses import Uses, load_uses, refusal, save_uses, with_use
from p2ptrain.errors import RemoteProtocolError, RunMismatch
from p2ptrain.ids import PeerId
from p2ptrain.node.gossip.allowlist_gossip import admission_changed
from p2ptrain.node.gossip.allowlist_survey import newest_allowlist
from p2ptrain.node.joining.decisions import denial_of
from p2ptrain.node.joining.hello_server import open_requests
from p2ptrain.node.joining.merge_lists import keeps_revisions
from p2ptrain.node.state.context import Context
from p2ptrain.run import (
    READER,
    TRAINER,
    Allowlist,
    JoinRequest,
    Run,
    SignedAllowlist,
    SignedToken,
    Token,
)
from p2ptrain.run.allowlist import ALLOWLIST_PEERS_MAX

AGAIN_S = 10.0
"""Seconds until the next try if no other peer could be asked for the newest list."""

Judged = dict[PeerId, tuple[bytes, Token | None]]
"""For each waiting peer, the request that was checked last, and its token if it is valid."""


async def admit_by_token(context: Context) -> None:
    """Admit peers with valid tokens until cancelled.

    Raises ConfigError, StoreError: the uses of tokens cannot be read or stored."""
    least = context.manifest.organisers.signatures_min
    if context.me not in context.admission.organisers or context.admission.is_open or least > 1:
        return
    judged: Judged = {}
    uses = load_uses(context.home.token_uses)
    while True:
        judged = _judged(context, judged)
        if not _entitled(context, judged, uses):
            await context.changes.wait_calmly()
            continue
        told = await newest_allowlist(context)
        if told["others"] and not told["heard"]:
            await trio.sleep(AGAIN_S)
        else:
            uses = await _admit(context, judged, uses)


def _judged(context: Context, before: Judged) -> Judged:
    """Check the requests that arrived since `before`. A request is checked once, since checking
    takes three signatures."""
    pending, run = context.join_requests.pending, context.admission.run
    after: Judged = {}
    for peer in open_requests(context):
        signed = pending[peer].signed
        known = before.get(peer)
        same = known is not None and known[0] == signed
        if known is not None and same:
            after[peer] = known
        else:
            after[peer] = signed, token_in(signed, run, context.me)
    return after


def token_in(signed: bytes, run: Run, me: PeerId) -> Token | None:
    """Return the token of a request to join `run` if `me` has signed it and the peer may use it.
    Each organiser counts the uses of its own tokens."""
    try:
        request = JoinRequest.from_bytes(signed)
        if not request.token:
            return None
        token = SignedToken.from_bytes(request.token, run)
    except (RemoteProtocolError, RunMismatch):
        return None
    mine = token.signed.signer == me
    return token.token if mine and token.is_proven(request.peer, request.proof) else None


def _entitled(context: Context, judged: Judged, uses: Uses) -> dict[PeerId, Token]:
    """Return the waiting peers that their tokens admit now, within the number of uses."""
    held, now = context.admission.allowlist, time.time()
    sequence = held.allowlist.sequence if held else 1
    found: dict[PeerId, Token] = {}
    for peer, (_, token) in judged.items():
        waits = not context.admission.admits(peer) and denial_of(context, peer) is None
        if token is not None and waits and not refusal(token, uses, peer, sequence, now):
            found[peer] = token
            uses = with_use(uses, token, [peer], sequence + 1)
    return found


async def _admit(context: Context, judged: Judged, uses: Uses) -> Uses:
    """Sign and publish a list with all peers that are entitled. Return the new uses of tokens."""
    with signing_allowlist(context.home):
        context.admission.reload()
        held = context.admission.allowlist
        before = held.allowlist if held else Allowlist.of(context.run, 1, [context.me])
        room = max(0, ALLOWLIST_PEERS_MAX - len(before.roles))
        new = dict(list(_entitled(context, judged, uses).items())[:room])
        if not new:
            return uses
        after = before
        for peer, token in new.items():
            role = READER if token.role == READER else TRAINER
            after = after.with_peer(peer, role, tracks=keeps_revisions(context))
        after = after.numbered(before.sequence + 1)
        for peer, token in new.items():
            uses = with_use(uses, token, [peer], after.sequence)
        save_uses(context.home.token_uses, uses)
        signed = SignedAllowlist.publish(context.identity, after)
        context.admission.adopt_if_newer(signed.to_bytes())
    for peer, token in new.items():
        context.journal.write("admitted-by-token", peer=peer, token=token.key)
    await admission_changed(context)
    return uses

"""Checks of the bootstrap addresses: whether a peer answers, which run it serves, and whether this
node may take part.

The checks send one hello, without a request to join, and store nothing. They believe what the run's
organiser signed: the manifest and the allowlist. A peer that lies can still claim that it is busy,
or serve a run of its own with a valid signature. So the user sees the run's id and who signed it,
and nothing here changes what a node does later.
"""

from __future__ import annotations

import os
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import trio

from p2ptrain.archive.home import is_in_use
from p2ptrain.dataplane import Credentials
from p2ptrain.doctor import dial_back, nat_kind, transfer
from p2ptrain.doctor.finding import Finding, Level, Tell, fault, fault_of, good, softened, warning
from p2ptrain.doctor.subject import Learned, Subject
from p2ptrain.doctor.visit import Visit
from p2ptrain.doctor.witnesses import NAME, find_witnesses, not_asked, vouched_for
from p2ptrain.errors import (
    NetworkUnreachable,
    P2PTrainError,
    PeerError,
    RemoteProtocolError,
    RunMismatch,
    VersionMismatch,
    first_error,
)
from p2ptrain.identity import SEED_BYTES, Identity, load_or_create
from p2ptrain.ids import PeerId
from p2ptrain.names import label
from p2ptrain.net import Network, open_network
from p2ptrain.node.gossip.hello_client import send_hello
from p2ptrain.peers.hello_messages import HelloRequest
from p2ptrain.run import TRAINER, Role, Run, SignedAllowlist, load_run
from p2ptrain.run.files import hand_overs_in
from p2ptrain.suggested_command import to_paste

CONNECT_S = 10.0
CHECK_S = 16.0
"""Seconds for each of PEER_CHECKS."""
ENDS_S = 43.0
"""Seconds after the beginning of the examination at which PEER_CHECKS end, even if not all are
done. Three seconds remain for the end of this phase."""

CLOCK_BEHIND_S = 86_400.0
"""Seconds by which this machine's wall clock may be behind the signature of a run."""

ANOTHER = "a node starts nevertheless, because a peer at another address answers"

PeerCheck = Callable[[Visit, Learned, Tell], Awaitable[None]]

PEER_CHECKS: Mapping[str, PeerCheck] = {
    dial_back.NAME: dial_back.dial_back,
    nat_kind.NAME: nat_kind.nat_kind,
    transfer.NAME: transfer.transfer,
}
"""Checks with the help of members. To check something else with their help, add a function here.
Each has CHECK_S, all of them end after ENDS_S, and the network is open."""


@dataclass(frozen=True, slots=True)
class DialFacts:
    """The outcome of a dial to `address`: an error, or the peer that answered after `seconds`."""

    address: str
    error: P2PTrainError | None = None
    seconds: float = 0.0
    peer: PeerId | None = None


# ── judgements ───────────────────────────────────────────────────────────────────────────────────


def judge_dial(facts: DialFacts, *, another_answered: bool) -> Finding:
    """Judge one address. If a peer answers at another address, the node can start anyway."""
    name = "bootstrap"
    if facts.error is None:
        assert facts.peer is not None
        milliseconds = facts.seconds * 1000
        said = f"{label(facts.peer)} answers at {facts.address} after {milliseconds:.0f} ms"
        return good(name, said)
    found = fault_of(name, facts.error)
    return softened(found, ANOTHER) if another_answered else found


def judge_run(run: Run, here: Run | None, asked: str | None) -> Finding:
    """Judge the run that the peer serves. `here` is the run in the home, `asked` the run id that
    the user gave."""
    manifest = run.manifest
    said = f"{manifest.name!r} ({run.id[:12]}…), signed by {label(manifest.organiser)}"
    if here is not None and here.id != run.id:
        return fault_of(
            "run",
            RunMismatch(f"the peer serves {said}, but the home contains {here.manifest.name!r}"),
            fix="to join the peer's run, add --home with a new folder; to go on with the run in "
            "this home, leave out --bootstrap or ask for an address of that run",
        )
    if asked is not None and run.id != asked:
        return fault_of(
            "run",
            RunMismatch(f"the peer serves {said}, and not the run that you asked for"),
            fix="compare the run id of --run with the one that the organiser published, and ask "
            "for an address of that run",
        )
    return good("run", said)


def judge_admission(
    run: Run, allowed: SignedAllowlist | None, home: Path, me: PeerId | None
) -> Finding:
    """Judge whether the peer `me` may take part. `me` is None if `home` has no key yet."""
    manifest = run.manifest
    if manifest.admission == "open":
        return good("admission", "the run is open: anybody may train")
    if me is None:
        return warning(
            "admission",
            "the run has an allowlist, and you have no peer id yet",
            fix=f"run {to_paste(home, 'id')}, and send the id that it prints to the organiser",
            code="AUTH-PENDING",
        )
    listed = allowed.allowlist.roles if allowed is not None else dict[PeerId, Role]()
    if me in (*run.organisers, *manifest.founders) or listed.get(me) == TRAINER:
        return good("admission", f"you are {label(me)}, and on the run's allowlist")
    if me in listed:
        return good("admission", f"you are {label(me)}, and on the run's allowlist as a reader")
    return warning(
        "admission",
        f"you are {label(me)}, and not on the run's allowlist yet",
        fix=f"ask the organiser to run: p2ptrain peers approve {me}",
        code="AUTH-PENDING",
    )


def judge_wall_clock(run: Run, now_unix: float) -> Finding | None:
    """Return a warning if this machine's clock is earlier than the run. This is a hint only: the
    organiser's clock may have been the wrong one."""
    behind_s = run.manifest.created_unix - now_unix
    if behind_s <= CLOCK_BEHIND_S:
        return None
    return warning(
        "clock",
        f"this machine's clock is {behind_s / 86_400:.0f} days behind the time at which the run "
        "was signed; training does not depend on it, but the times in the journal do",
        fix="let the system set its clock: timedatectl set-ntp true",
        code="CLOCK",
    )


# ── facts ────────────────────────────────────────────────────────────────────────────────────────


def bootstrap(subject: Subject, learned: Learned, tell: Tell) -> None:
    """Dial the bootstrap addresses that the user gave, and check the run behind them."""
    if not subject.config.bootstrap:
        return
    try:
        trio.run(_visit, subject, learned, tell)
    except* P2PTrainError as group:
        raise first_error(group) from None


async def _visit(subject: Subject, learned: Learned, tell: Tell) -> None:
    own, is_running = own_identity(subject), is_in_use(subject.home.lock)
    # Two connections with one identity would disturb a running node. A stranger may send a hello.
    takes_own = own is not None and not is_running
    identity = own if own and takes_own else Identity.from_seed(os.urandom(SEED_BYTES))
    listen = subject.config.listen if takes_own and learned.are_ports_free else ()
    async with open_network(
        identity, listen=listen, port=subject.config.port, admitted=lambda _: True
    ) as network:
        answered = await _dialled(network, subject.config.bootstrap, tell)
        found = await _first_run(network, answered, subject, tell)
        if found is None:
            return
        here = load_run(subject.home.manifest)
        tell(judge_run(found.run, here, subject.config.run))
        if behind := judge_wall_clock(found.run, time.time()):
            tell(behind)
        learned.run_there = found.run
        home = subject.config.home
        admission = judge_admission(found.run, found.allowed, home, own.peer if own else None)
        tell(admission)
        is_admitted = admission.level is Level.GOOD
        unhelped = not_asked(home, is_admitted=is_admitted, is_own=takes_own, is_running=is_running)
        if unhelped is not None:
            tell(unhelped)
            return
        await _with_members(network, identity, found, answered, subject, learned, tell)


async def _with_members(
    network: Network,
    identity: Identity,
    found: _Found,
    answered: Sequence[PeerId],
    subject: Subject,
    learned: Learned,
    tell: Tell,
) -> None:
    """Carry out PEER_CHECKS, if any member helps."""
    credentials = Credentials.create(identity)
    first = [found.peer, *(peer for peer in answered if peer != found.peer)]
    members = vouched_for(found.run, found.allowed)
    is_open = found.run.manifest.admission == "open"
    witnesses = await find_witnesses(
        network, credentials, first, found.told, members, is_open=is_open
    )
    if not witnesses:
        tell(
            warning(
                NAME,
                f"nothing was measured: {label(found.peer)} does not exchange bulk data with you",
                fix="ask the peer's owner whether its data port (--data-listen) can be reached; "
                "other members may still work",
            )
        )
        return
    visit = Visit(network, identity, credentials, subject.config, found.run, witnesses)
    for name, check in PEER_CHECKS.items():
        left_s = max(0.0, min(CHECK_S, learned.began_s + ENDS_S - time.monotonic()))
        with trio.move_on_after(left_s) as waiting:
            await check(visit, learned, tell)
        if waiting.cancelled_caught:
            tell(_too_slow(name, left_s))


def own_identity(subject: Subject) -> Identity | None:
    """Return the identity in the home; None if there is none. Raises ConfigError: ID-MODE, and
    ID-BROKEN."""
    path = subject.home.identity
    return load_or_create(path) if os.path.isfile(path) else None


async def _dialled(network: Network, addresses: Sequence[str], tell: Tell) -> list[PeerId]:
    """Dial all addresses at once. Return the peers that answered, in the order of `addresses`."""
    facts: dict[str, DialFacts] = {}

    async def dial(address: str) -> None:
        began = trio.current_time()
        try:
            peer = await network.connect(address, deadline_s=CONNECT_S)
        except P2PTrainError as exc:
            facts[address] = DialFacts(address, exc)
        else:
            facts[address] = DialFacts(address, None, trio.current_time() - began, peer)

    async with trio.open_nursery() as nursery:
        for address in dict.fromkeys(addresses):
            nursery.start_soon(dial, address)
    tried = [facts[address] for address in dict.fromkeys(addresses)]
    answered = [each.peer for each in tried if each.peer is not None]
    for each in tried:
        tell(judge_dial(each, another_answered=bool(answered)))
    return list(dict.fromkeys(answered))


@dataclass(frozen=True, slots=True)
class _Found:
    """The peer that serves the run, the documents that the organiser signed, and the addresses of
    other peers, which nobody has signed."""

    peer: PeerId
    run: Run
    allowed: SignedAllowlist | None
    told: Mapping[PeerId, tuple[str, ...]]


async def _first_run(
    network: Network, peers: Sequence[PeerId], subject: Subject, tell: Tell
) -> _Found | None:
    """Ask the peers for their run, one after the other. Return what the first sent
    that sends a valid one."""
    failed: list[Finding] = []
    found = None
    for peer in peers:
        try:
            reply = await send_hello(network, peer, HelloRequest(subject.config.run or "", b""))
            run = Run.from_bytes(reply.manifest)
            if reply.hand_overs:
                run = run.with_hand_overs(hand_overs_in(reply.hand_overs, run))
            allowed = SignedAllowlist.from_bytes(reply.allowlist, run) if reply.allowlist else None
        except VersionMismatch as exc:
            failed.append(fault_of("run", exc))
        except (PeerError, RemoteProtocolError, RunMismatch) as exc:
            failed.append(_no_run(peer, exc))
        else:
            found = _Found(peer, run, allowed, reply.peers)
            break
    for each in failed:
        tell(softened(each, ANOTHER) if found else each)
    return found


def _no_run(peer: PeerId, exc: P2PTrainError) -> Finding:
    return fault(
        "run",
        f"{label(peer)} answered, but did not send a valid run: {exc.what}",
        fix="ask the run's organiser for the address of another node: that node is faulty, runs a "
        "different version, or is malicious",
        code=exc.code,
        status=NetworkUnreachable.exit_code,
    )


def _too_slow(name: str, seconds: float) -> Finding:
    return warning(
        name,
        f"not finished in the {seconds:.0f} s that were left for it: the members or this machine "
        "are busy",
        fix="try again later, or with the address of another peer",
        code="PEER-TOO-SLOW",
    )

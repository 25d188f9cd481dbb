"""Keep both ports of this node open on its router while the node runs, and close them at its end.

The task only offers a candidate address (`PortMappings.candidate`). Other tasks may announce it
after a member has connected through it.

Whose word is it? Only this machine's default gateway is asked, and only its answers count. If it
lies, this node offers an address that does not work, and no member connects through it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from functools import partial

import trio

from p2ptrain.identity import Identity
from p2ptrain.node.port_mapping.own_ports import own_ports
from p2ptrain.node.state.context import Context
from p2ptrain.node.state.port_mappings import OwnPorts, RouterMapping
from p2ptrain.node.state.threads import in_thread
from p2ptrain.portmap import (
    NONCE_BYTES,
    Closed,
    Gateway,
    Interruption,
    MappingLease,
    NoGateway,
    Protocol,
    Reply,
    Request,
    Router,
    Silent,
    UnmapRequest,
    find_gateway,
)
from p2ptrain.portmap.gateway import Version

GATEWAY_LOOK_S = 10.0
"""Interval at which the default gateway is looked up, in a file of the kernel. A laptop that has
changed its network asks the new router within this time."""

REMOVE_S = 2.0
"""Maximum time for closing the ports at the end. A port that remains open closes by itself within
an hour."""

PROTOCOLS: dict[Version, tuple[Protocol, ...]] = {4: tuple(Protocol), 6: (Protocol.PCP,)}

SWITCHED_OFF = "you switched it off with --no-port-mapping"
ANNOUNCED = "you gave the addresses at which peers reach this node with --announce"
NOT_OUTSIDE = "this node listens on this machine only"
PUBLIC = "this machine has a public address, so no router needs to open its ports"

FindGateway = Callable[[Version], Gateway | NoGateway]
MakeRouter = Callable[[Gateway], Router]


async def keep_ports_mapped(
    context: Context,
    *,
    find: FindGateway = find_gateway,
    make_router: MakeRouter = Router,
    look_s: float = GATEWAY_LOOK_S,
) -> None:
    """Keep this node's ports open on its routers for IPv4 and IPv6, until cancelled.

    Nothing is sent if the user has switched this off, or if the node listens on this machine only.
    `find` and `make_router` are for tests, which have routers of their own."""
    ports = own_ports(context.network.listening(), context.plane.listener.address)
    if why := _why_not(context, ports):
        context.port_mappings.not_asked = why
        return
    async with trio.open_nursery() as nursery:
        for version, own in ports.items():
            keeper = _Keeper(context, version, own, find, make_router, look_s)
            nursery.start_soon(keeper.run)


def _why_not(context: Context, ports: dict[Version, OwnPorts]) -> str:
    """Return why no router is asked; "" if there is no reason."""
    if not context.config.port_mapping:
        return SWITCHED_OFF
    if context.config.announce:
        return ANNOUNCED
    return "" if ports else NOT_OUTSIDE


class _Keeper:
    """Keeps the ports open for one version of IP."""

    def __init__(
        self,
        context: Context,
        version: Version,
        ports: OwnPorts,
        find: FindGateway,
        make_router: MakeRouter,
        look_s: float,
    ) -> None:
        self._context = context
        self._version = version
        self._ports = ports
        self._find = find
        self._make_router = make_router
        self._look_s = look_s
        self._told = ""
        """The verdict in words that the journal has."""

    async def run(self) -> None:
        """Serve one gateway after the other: there is a new one whenever this machine changes its
        network."""
        while True:
            gateway = self._find(self._version)
            if (why := unneeded(gateway)) is None:
                assert isinstance(gateway, Gateway)
                await self._stay_with(gateway)
            else:
                self._show(RouterMapping(self._ports, not_asked=why))
                await trio.sleep(self._look_s)

    async def _stay_with(self, gateway: Gateway) -> None:
        """Keep the ports open on this gateway, until it is no longer ours."""
        router = self._make_router(gateway)
        nonces = {
            port: nonce_of(self._context.identity, port)
            for port in (self._ports.control, self._ports.data)
            if port
        }
        lease = MappingLease(nonces, self._context.now(), PROTOCOLS[self._version])
        self._show(RouterMapping(self._ports, lease.standing, gateway.local))
        try:
            while self._find(self._version) == gateway:
                request = lease.next_request(self._context.now())
                if request is None:
                    await trio.sleep(self._pause_s(lease))
                    continue
                reply = await _ask(router, request)
                lease.handle(request, reply, self._context.now())
                self._show(RouterMapping(self._ports, lease.standing, gateway.local))
        finally:
            # Nobody should announce a candidate while its ports are being closed.
            self._context.port_mappings.routers[self._version] = RouterMapping(self._ports)
            await self._close(router, lease.removals())

    async def _close(self, router: Router, removals: tuple[UnmapRequest, ...]) -> None:
        """Close the ports, as far as the router answers in time."""
        replies = list[Reply]()

        async def close(removal: UnmapRequest) -> None:
            replies.append(await _ask(router, removal))

        with trio.CancelScope(deadline=trio.current_time() + REMOVE_S, shield=True):
            async with trio.open_nursery() as nursery:
                for removal in removals:
                    nursery.start_soon(close, removal)
        if removals:
            closed = sum(isinstance(reply, Closed) for reply in replies)
            self._context.journal.write("ports-closed", closed=closed, opened=len(removals))

    def _pause_s(self, lease: MappingLease) -> float:
        deadline = lease.next_deadline()
        if deadline is None:
            return self._look_s
        return min(self._look_s, max(0.0, deadline - self._context.now()))

    def _show(self, mapping: RouterMapping) -> None:
        """Show the result to other tasks, and write it to the journal if it has changed."""
        mappings = self._context.port_mappings
        mappings.routers[self._version] = mapping
        verdict = mappings.verdict(self._version)
        if verdict.words != self._told:
            self._told = verdict.words
            self._context.journal.write(
                "port-mapping", ip=self._version, result=verdict.kind, what=verdict.words
            )
            self._context.changes.notify_all()


def unneeded(gateway: Gateway | NoGateway) -> str | None:
    """Return why this gateway need not be asked; None if it must be asked. An IPv6 router does not
    translate addresses, but it may refuse connections from outside until it is asked."""
    if isinstance(gateway, NoGateway):
        return gateway.reason
    if gateway.local.version == 4 and gateway.local.is_global:
        return PUBLIC
    if gateway.local.version == 6 and (gateway.local.is_link_local or gateway.local.is_private):
        return "this machine has no public IPv6 address"
    return None


async def _ask(router: Router, request: Request) -> Reply:
    """Carry out a request in a thread. A fault of this machine, such as too many open files, counts
    as silence of the router: a node works without open ports too."""
    try:
        with Interruption() as interruption:
            work = partial(router.ask, request, interruption)
            return await in_thread(work, stop=interruption.stop)
    except OSError as exc:
        return Silent(f"it cannot be asked ({exc.strerror or exc})")


def nonce_of(identity: Identity, port: int) -> bytes:
    """Return the nonce by which a router knows the owner of a mapping (PCP). It is the same after a
    restart of the node, so that the node can renew and close a mapping from before a crash. Nobody
    else can compute it: an Ed25519 signature is a function of the secret key."""
    signature = identity.sign(b"p2ptrain port mapping: %d" % port)
    return hashlib.sha256(signature).digest()[:NONCE_BYTES]

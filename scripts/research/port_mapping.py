"""Measure port mapping against a real miniupnpd: one home, its router, and a host outside.

    home 192.168.1.5 ── lan 192.168.1.1 [router: Linux NAT, miniupnpd] wan 9.77.0.11 ── out 9.77.0.1

All addresses exist in network namespaces only, and the namespaces in a mount namespace of their
own, so that nothing reaches a real network and two runs do not meet. The outside address must look
public, since miniupnpd refuses to work with a private one. scripts/port_mapping starts this
program; `ask` and `node` are for the parts that it starts itself inside the namespace `home`.
"""

from __future__ import annotations

import argparse
import json
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from p2ptrain.archive.home import Home
from p2ptrain.identity import load_or_create
from p2ptrain.portmap import (
    CheckRequest,
    Gateway,
    Interruption,
    MapRequest,
    Protocol,
    Request,
    Router,
    UnmapRequest,
    find_gateway,
    judge,
    try_ports,
)
from p2ptrain.portmap.gateway import Version
from p2ptrain.testing.published import publish

NETNS = Path("/run/netns")
PORTS = (4201, 4202)
WAIT_S = 150.0
PUBLIC, CARRIER = ("9.77.0.11", "9.77.0.1"), ("100.64.0.2", "100.64.0.1")
NONCE = b"measurement!"

LINKS = """
link add out netns out type veth peer name wan netns router
link add eth0 netns home type veth peer name lan netns router
-n out addr add {outside}/24 dev out
-n out -6 addr add 2606:2::1/64 dev out nodad
-n router addr add {wan}/24 dev wan
-n router -6 addr add 2606:2::11/64 dev wan nodad
-n router addr add 192.168.1.1/24 dev lan
-n router -6 addr add 2606:1::1/64 dev lan nodad
-n router -6 addr add fe80::1/64 dev lan nodad
-n home addr add 192.168.1.5/24 dev eth0
-n home -6 addr add 2606:1::5/64 dev eth0 nodad
-n out link set out up
-n router link set wan up
-n router link set lan up
-n home link set eth0 up
-n home route add default via 192.168.1.1
-n home -6 route add default via fe80::1 dev eth0
-n out -6 route add 2606:1::/64 via 2606:2::11
"""

FIREWALL = """
flush ruleset
table inet filter {
 chain forward { type filter hook forward priority 0; policy drop;
  ct state established,related accept; iifname "lan" accept; jump miniupnpd; }
 chain miniupnpd { }
 chain prerouting { type nat hook prerouting priority -100; jump prerouting_miniupnpd; }
 chain prerouting_miniupnpd { }
 chain postrouting { type nat hook postrouting priority 100; jump postrouting_miniupnpd;
  meta nfproto ipv4 oifname "wan" masquerade; }
 chain postrouting_miniupnpd { }
}
"""

SETTINGS = """
ext_ifname=wan
ext_ifname6=wan
listening_ip=lan
enable_natpmp={natpmp}
enable_upnp={upnp}
secure_mode=yes
http_port=0
min_lifetime=120
max_lifetime=86400
allow 1024-65535 192.168.1.0/24 1024-65535
deny 0-65535 0.0.0.0/0 0-65535
"""

CONNECT = (
    "import socket, sys; socket.create_connection((sys.argv[1], int(sys.argv[2])), 1.5).close()"
)


class Lab:
    """The three namespaces, and miniupnpd on the router."""

    def __init__(self, folder: Path, addresses: tuple[str, str]) -> None:
        self.folder = folder
        self.wan, self.outside = addresses
        self.router: subprocess.Popen[bytes] | None = None

    def build(self) -> None:
        for name in ("out", "router", "home"):
            _run("ip", "netns", "del", name, check=False)
            _run("ip", "netns", "add", name)
            _run("ip", "-n", name, "link", "set", "lo", "up")
        for line in LINKS.format(wan=self.wan, outside=self.outside).strip().splitlines():
            _run("ip", *line.split())
        for setting in ("net.ipv4.ip_forward=1", "net.ipv6.conf.all.forwarding=1"):
            _run(*inside("router"), "sysctl", "-qw", setting)

    def start(self, *, natpmp: bool = True, upnp: bool = True) -> None:
        """Start the router's firewall and miniupnpd, without mappings."""
        subprocess.run([*inside("router"), "nft", "-f", "-"], input=FIREWALL.encode(), check=True)
        words = {True: "yes", False: "no"}
        settings = self.folder / "miniupnpd.conf"
        settings.write_text(SETTINGS.format(natpmp=words[natpmp], upnp=words[upnp]))
        files = "-f", str(settings), "-P", str(self.folder / "miniupnpd.pid")
        with (self.folder / "miniupnpd.log").open("ab") as log:
            self.router = subprocess.Popen(
                [*inside("router"), "miniupnpd", "-d", *files], stdout=log, stderr=log
            )
        _until(lambda: (self.folder / "miniupnpd.pid").exists())
        time.sleep(1)  # miniupnpd does not tell when its sockets are open.

    def stop(self) -> None:
        """End miniupnpd and forget its mappings, as when a router is switched off."""
        if self.router is not None:
            self.router.kill()
            self.router.wait()
            self.router = None
            (self.folder / "miniupnpd.pid").unlink(missing_ok=True)
            subprocess.run([*inside("router"), "nft", "flush", "ruleset"], check=True)

    def reaches(self, port: int, address: str = "") -> bool:
        """Return whether the host outside can connect to the port."""
        words = [*inside("out"), sys.executable, "-c", CONNECT, address or self.wan, str(port)]
        return subprocess.run(words, stderr=subprocess.DEVNULL, check=False).returncode == 0


def inside(namespace: str) -> list[str]:
    return ["ip", "netns", "exec", namespace]


def _run(*words: str, check: bool = True) -> None:
    subprocess.run(words, check=check, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


def _until(holds: object, wait_s: float = WAIT_S) -> float:
    """Wait until `holds` returns something true, and return the seconds that it took."""
    assert callable(holds)
    began = time.monotonic()
    while not holds():
        if time.monotonic() > began + wait_s:
            raise TimeoutError(f"nothing happened in {wait_s:.0f} s")
        time.sleep(0.05)
    return time.monotonic() - began


@contextmanager
def lab(addresses: tuple[str, str] = PUBLIC, **settings: bool) -> Iterator[Lab]:
    with tempfile.TemporaryDirectory() as folder:
        found = Lab(Path(folder), addresses)
        found.build()
        found.start(**settings)
        try:
            yield found
        finally:
            found.stop()


@contextmanager
def listeners() -> Iterator[None]:
    """Listen on both ports in the namespace `home`, for IPv4 and IPv6."""
    program = (
        "import socket, time\n"
        f"held = [socket.create_server(('', port), family=socket.AF_INET6, dualstack_ipv6=True)"
        f" for port in {PORTS}]\n"
        "print('ready', flush=True)\n"
        "time.sleep(3600)"
    )
    words = [*inside("home"), sys.executable, "-c", program]
    with subprocess.Popen(words, stdout=subprocess.PIPE) as held:
        assert held.stdout is not None
        held.stdout.readline()
        try:
            yield
        finally:
            held.kill()


class Asker:
    """This program in the namespace `home`. `ask` carries out one request and returns the reply and
    the seconds that it took."""

    def __init__(self, version: Version = 4) -> None:
        words = [*inside("home"), sys.executable, "-m", "scripts.research.port_mapping", "ask"]
        self.process = subprocess.Popen(
            [*words, str(version)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def __enter__(self) -> Asker:
        return self

    def __exit__(self, *details: object) -> None:
        self.process.kill()
        self.process.wait()

    def ask(self, what: str, protocol: Protocol, port: int) -> dict[str, object]:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(f"{what} {protocol} {port}\n")
        self.process.stdin.flush()
        found = json.loads(self.process.stdout.readline())
        assert isinstance(found, dict)
        return found


def answer_requests(version: Version) -> None:
    """Carry out the requests on standard input, in the namespace `home`."""
    gateway = find_gateway(version)
    assert isinstance(gateway, Gateway)
    router = Router(gateway)
    for line in sys.stdin:
        what, protocol, port = line.split()
        request = _request(what, Protocol(protocol), int(port))
        began = time.monotonic()
        with Interruption() as interruption:
            reply = router.ask(request, interruption)
        took_s = time.monotonic() - began
        said = {"reply": type(reply).__name__, "what": str(reply), "ms": round(1000 * took_s, 1)}
        sys.stdout.write(json.dumps(said) + "\n")
        sys.stdout.flush()


def _request(what: str, protocol: Protocol, port: int) -> Request:
    if what == "open":
        return MapRequest(protocol, port, port, 3600, NONCE)
    if what == "check":
        return CheckRequest(protocol, (port,))
    return UnmapRequest(protocol, port, port, NONCE)


def verdict_in_words(version: Version) -> None:
    """Open both ports and close them again, in the namespace `home`, and print the verdict."""
    gateway = find_gateway(version)
    assert isinstance(gateway, Gateway)
    began = time.monotonic()
    with Interruption() as interruption:
        nonces = dict.fromkeys(PORTS, NONCE)
        standing = try_ports(Router(gateway), nonces, interruption)
    verdict = judge(standing, (), gateway.local)
    seconds = round(time.monotonic() - began, 2)
    say("search", result=verdict.kind, what=verdict.words, seconds=seconds)


def say(measured: str, **values: object) -> None:
    sys.stdout.write(json.dumps({"measured": measured, **values}) + "\n")
    sys.stdout.flush()


def measure_protocols() -> None:
    """Each protocol opens a port, which is reached from outside until it is closed again."""
    with lab() as found, listeners():
        for version, protocols in ((4, tuple(Protocol)), (6, (Protocol.PCP,))):
            address = "" if version == 4 else "2606:1::5"
            with Asker(4 if version == 4 else 6) as asker:
                for protocol in protocols:
                    before = found.reaches(PORTS[0], address)
                    opened = asker.ask("open", protocol, PORTS[0])
                    during = found.reaches(PORTS[0], address)
                    checked = asker.ask("check", protocol, PORTS[0])
                    closed = asker.ask("close", protocol, PORTS[0])
                    after = found.reaches(PORTS[0], address)
                    say(
                        f"{protocol} over IPv{version}",
                        reached=[before, during, after],
                        open_ms=opened["ms"],
                        check_ms=checked["ms"],
                        close_ms=closed["ms"],
                    )


def measure_searches() -> None:
    """A search ends in seconds, also where nothing opens a port."""
    words = [*inside("home"), sys.executable, "-m", "scripts.research.port_mapping", "search"]
    for addresses, natpmp, upnp in (
        (PUBLIC, True, True),
        (PUBLIC, False, True),
        (PUBLIC, False, False),
        (CARRIER, True, True),
    ):
        with lab(addresses, natpmp=natpmp, upnp=upnp):
            say("router", wan=addresses[0], natpmp_and_pcp=natpmp, upnp=upnp)
            subprocess.run(words, check=True)


def measure_node(listen: str, data_host: str, *, natpmp: bool, restart: bool) -> None:
    """A real node opens both ports, opens them again after a restart of the router, and closes them
    when it ends."""
    address = "" if "ip4" in listen else "2606:1::5"
    with lab(natpmp=natpmp) as found, tempfile.TemporaryDirectory() as folder:
        home = Home(Path(folder) / "home")
        publish(home, allowed=(load_or_create(home.identity).peer,))
        words = [*inside("home"), sys.executable, "-m", "p2ptrain.cli", "node", "--seed", "--yes"]
        words += ["--home", str(home.root), "--listen", f"{listen}/tcp/{PORTS[0]}"]
        words += ["--data-listen", f"{data_host}:{PORTS[1]}"]
        with subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as node:
            try:
                _until(lambda: "port-mapping" in _events(home))
                opened_s = _until(lambda: all(found.reaches(port, address) for port in PORTS))
                if restart:
                    found.stop()
                    found.start(natpmp=natpmp)
                again_s = _until(lambda: all(found.reaches(port, address) for port in PORTS))
                node.send_signal(signal.SIGINT)
                closed_s = _until(lambda: "ports-closed" in _events(home))
                ended_s = _until(lambda: node.poll() is not None)
            finally:
                node.kill()
        closed = not any(found.reaches(port, address) for port in PORTS)
        said = {"opened_s": opened_s, "again_s": again_s, "closed_s": closed_s, "ended_s": ended_s}
        say("node", **{name: round(each, 1) for name, each in said.items()}, closed=closed)
        for line in home.journal.read_text().splitlines():
            if '"port' in line:
                say("journal", **json.loads(line))


def _events(home: Home) -> str:
    return home.journal.read_text() if home.journal.exists() else ""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("part", nargs="?", choices=["ask", "search"], help=argparse.SUPPRESS)
    parser.add_argument("version", nargs="?", type=int, default=4, help=argparse.SUPPRESS)
    given = parser.parse_args()
    version: Version = 6 if given.version == 6 else 4
    if given.part == "ask":
        answer_requests(version)
    elif given.part == "search":
        verdict_in_words(version)
    else:
        NETNS.mkdir(exist_ok=True)
        _run("mount", "-t", "tmpfs", "none", str(NETNS))
        measure_protocols()
        measure_searches()
        measure_node("/ip4/0.0.0.0", "0.0.0.0", natpmp=True, restart=True)
        measure_node("/ip4/0.0.0.0", "0.0.0.0", natpmp=False, restart=False)
        measure_node("/ip6/::", "[::]", natpmp=True, restart=False)


if __name__ == "__main__":
    main()

"""The options of one node: settings of this machine that are not part of the run.

NodeConfig is a plain dataclass, because importing pydantic would slow down every start of a node.
Addresses are checked only when they are used, because the errors of the network explain more than
those of a parser could.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from ipaddress import ip_address
from pathlib import Path
from typing import Literal, get_args

from p2ptrain.errors import ConfigError
from p2ptrain.ids import PeerId, RunId, is_digest

Device = Literal["auto", "cpu", "cuda"]
Precision = Literal["auto", "fp32", "bf16"]

LISTEN = "/ip4/0.0.0.0/tcp/4201"
"""An address to listen on, for messages to the user."""

DATA_LISTEN = ":0"
"""All addresses of this machine, at any free port."""

SEED_PORT, SEED_DATA_PORT = 4201, 4202
"""The ports of a seed, if its owner does not choose others. The address of a seed is handed out, so
it must stay the same when the seed restarts."""

PAGE_PORT = 4280
"""The port of a node's page, or the first port to try if another program uses it."""

RANKS_MAX = 64
"""Maximum number of ranks that the node starts, to catch typing errors: no machine has more
GPUs."""

EXTERNAL_RANKS_MAX = 256
"""Maximum number of ranks that torchrun starts. Each of them needs a thread in the node."""

KEEP_ENTRIES_MIN = 16
"""Minimum number of ledger entries to keep: a few outer steps, so that any peer can help a peer
that was briefly offline."""

RELAY_EDGES, RELAY_EDGES_MAX = 2, 64
"""Number of connections between two peers that a node offers to relay at a time, and the maximum
number. Each has several streams, and the node accepts at most 256 connections in all."""

RELAY_BYTES_PER_DAY = 20 * 10**9

NOTE_CHARACTERS_MAX = 80
"""Maximum characters of a note to the organiser, who reads many of them in one list."""

_CHECKPOINT = re.compile(r"[1-9]\d{0,14}:[0-9a-f]{64}")
_UNITS = {"": 1.0, "k": 1e3, "M": 1e6, "G": 1e9}
_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*([kMG]?)B")
_RATE = re.compile(r"(\d+(?:\.\d+)?)\s*([kMG]?)(bit|B)(?:/s|ps)?")


@dataclass(frozen=True, slots=True)
class NodeConfig:
    """How this node runs. A limit of None means that there is no limit. If `run` is None, the node
    joins the run that its peers take part in.
    """

    home: Path
    bootstrap: tuple[str, ...] = ()
    listen: tuple[str, ...] | None = None
    """Addresses to listen on. None stands for all addresses of this machine, of IPv4 and IPv6, at
    `port`."""
    port: int = 0
    """Port to listen on if `listen` is None; 0 stands for any free port."""
    announce: tuple[str, ...] = ()
    data_host: str = ""
    """Address to listen on for bulk data. "" stands for all addresses of this machine, of IPv4 and,
    if it has IPv6, of IPv6."""
    data_port: int = 0
    data_announce: tuple[str, int] | None = None
    """Host and port at which other peers reach the data plane, if the user knows them."""
    seed: bool = False
    """Whether this node is a seed, which serves the run and has no trainer. A seed votes if it is
    one of the run's founders."""
    observes: bool = False
    """Whether this node only follows the ledger, without loading θ. Set by `node.observer`; not a
    command-line option.
    """
    ranks: int = 1
    ranks_host: str = ""
    ranks_port: int = 0
    """Address to which torchrun's ranks connect, from this or other hosts. If `ranks_host` is
    empty, the node starts the ranks itself.
    """
    threads: int = 1
    device: Device = "auto"
    precision: Precision = "auto"
    """Precision in which the trainer computes; "auto" is bf16 on GPUs. The weights stay fp32."""
    compile: bool = False
    recompute: bool = False
    """Whether to recompute activations instead of keeping them: a third more arithmetic, less
    memory."""
    micro_batch: int = 0
    """Sequences per forward pass of a rank; 0 means as many as fit into memory."""
    keep_inner: bool = True
    """Whether to write the inner optimizer's state to disk at each outer step (8 bytes per
    parameter), so that a restart does not lose it."""
    limit_up_bytes_per_s: int | None = None
    relay_edges: int = RELAY_EDGES
    """Number of pairs of peers that this node relays for at a time; 0 means none."""
    relay_bytes_per_day: int = RELAY_BYTES_PER_DAY
    keep_snapshots: int | None = 2
    """Number of certified snapshots to keep, with the updates after them; None keeps all."""
    data_cache_bytes: int = 8 * 10**9
    """Maximum bytes of data blocks to keep. Has no effect on a seed, which keeps all data."""
    scrub_bytes_per_s: int | None = 8 * 10**6
    """Rate at which the store is re-read to detect disk corruption; None means only on request."""
    wait_for_approval: bool = True
    keep_entries: int | None = None
    """Minimum number of ledger entries to keep when older ones are deleted; None keeps all."""
    trust_checkpoint: str | None = None
    """HEIGHT:DIGEST of a Commit (a ledger entry) that the user trusts, for a run whose older
    entries have been deleted by all peers. The ledger is verified only from there on.
    """
    run: RunId | None = None
    organiser: PeerId | None = None
    """The organiser that the run must have, according to the user's invitation."""
    ticket: bytes = field(default=b"", repr=False)
    """The ticket of the user's invitation, with which the organiser's node admits this node; b"" if
    there is none."""
    note: str = ""
    """One line about this node's user, for the organiser. It is part of the request to join."""
    assume_yes: bool = False
    """Do not ask the user before taking part in a run that is new on this machine."""
    mdns: bool = False
    """Whether to look for peers in the local network from the start, and to be found there."""
    searches_lan: bool = False
    """Whether to look for peers in the local network once no address of the user's invitation
    leads to the run, without being found there."""
    port_mapping: bool = False
    """Whether to ask this machine's router to open both ports. The command line switches it on;
    programs that make a NodeConfig, such as tests and the demo, do not."""
    page_port: int | None = None
    """First port to try for this node's page, on loopback; 0 stands for any free port. None: there
    is no page. The command line switches the page on; programs that make a NodeConfig do not."""
    quiet: bool = False
    """Print errors only."""
    verbose: bool = False
    """Also print the states that are part of every outer step."""

    def __post_init__(self) -> None:
        most = EXTERNAL_RANKS_MAX if self.ranks_host else RANKS_MAX
        _require(1 <= self.ranks <= most, "--ranks", self.ranks, f"choose 1 to {most}")
        _require(
            not self.ranks_host or _is_private(self.ranks_host),
            "--ranks-listen",
            self.ranks_host,
            "set it to an address of this machine in a private network, or 127.0.0.1: this "
            "connection is not encrypted",
        )
        _require(self.threads >= 1, "--threads", self.threads, "choose 1 or more")
        device, fix = self.device, "choose auto, cpu or cuda"
        _require(device in get_args(Device), "--device", device, fix)
        precision, fix = self.precision, "choose auto, fp32 or bf16"
        _require(precision in get_args(Precision), "--precision", precision, fix)
        micro = self.micro_batch
        _require(micro >= 0, "--micro-batch", micro, "choose 0 for as many as fit, or more")
        _require(0 <= self.data_port < 65536, "--data-listen", self.data_port, "choose 0 to 65535")
        page = self.page_port
        _require(page is None or 0 <= page < 65536, "--page-port", page, "choose 0 to 65535")
        self._check_data_announce()
        limit = self.limit_up_bytes_per_s
        _require(limit is None or limit >= 1000, "--limit-up", limit, "choose at least 8kbit")
        edges, most = self.relay_edges, RELAY_EDGES_MAX
        _require(0 <= edges <= most, "--relay-edges", edges, f"choose 0 to {most}")
        kept = self.keep_snapshots
        _require(kept is None or kept >= 1, "--keep-snapshots", kept, "keep at least 1, or all")
        _require(self.data_cache_bytes >= 0, "--data-cache", self.data_cache_bytes, "use 0 or more")
        scrub = self.scrub_bytes_per_s
        _require(scrub is None or scrub >= 1000, "--scrub", scrub, "choose at least 1kB")
        _require(
            self.run is None or is_digest(self.run),
            "--run",
            self.run,
            "give the 64 hexadecimal characters that `p2ptrain run publish` printed",
        )
        _require(
            len(self.note) <= NOTE_CHARACTERS_MAX and self.note.isprintable(),
            "--note",
            self.note,
            f"write one line of at most {NOTE_CHARACTERS_MAX} printable characters",
        )
        keep = self.keep_entries
        _require(
            keep is None or keep >= KEEP_ENTRIES_MIN,
            "--keep-entries",
            keep,
            f"choose {KEEP_ENTRIES_MIN} or more, or leave the option out to keep the whole ledger",
        )
        named = self.trust_checkpoint
        _require(
            named is None or _CHECKPOINT.fullmatch(named) is not None,
            "--trust-checkpoint",
            named,
            "write HEIGHT:DIGEST, as `p2ptrain ledger show` prints it on a node that you trust",
        )
        fix = f"give an address such as {LISTEN}"
        _require(self.listen is None or bool(self.listen), "--listen", self.listen, fix)

    def _check_data_announce(self) -> None:
        if self.data_announce is None:
            return
        host, port = self.data_announce
        fix = "give the IP address and port at which others reach you, such as 203.0.113.7:4202"
        _require(_is_dialable(host) and port > 0, "--data-announce", f"{host}:{port}", fix)


def _require(holds: bool, name: str, value: object, fix: str) -> None:
    if not holds:
        raise ConfigError(f"{name} is {value!r}", do=fix)


def _is_private(host: str) -> bool:
    try:
        address = ip_address(host)
    except ValueError:
        return False
    return address.is_private and not address.is_unspecified


def _is_dialable(host: str) -> bool:
    """Return whether other machines can dial `host`, an IP address. Endpoints do not contain names:
    resolving a name can block a thread without a deadline."""
    try:
        address = ip_address(host)
    except ValueError:
        return False
    return "%" not in host and not address.is_unspecified and not address.is_multicast


def parse_rate(text: str) -> int:
    """Return the bytes per second of a rate such as "8Mbit", "2.5 MB/s" or "512kbit". A unit is
    required, to tell bits from bytes. Raises ConfigError: `text` is not a rate.
    """
    match = _RATE.fullmatch(text.strip())
    if match is None:
        raise ConfigError(
            f"{text!r} is not a rate", do="write a number and a unit: 8Mbit, 500kbit, 2MB"
        )
    number, scale, unit = match.groups()
    return int(float(number) * _UNITS[scale] / (8 if unit == "bit" else 1))


def parse_size(text: str) -> int:
    """Return the number of bytes of a size such as "8GB" or "1.5 GB". Raises ConfigError."""
    match = _SIZE.fullmatch(text.strip())
    if match is None:
        raise ConfigError(f"{text!r} is not a size", do="write a number and a unit: 8GB, 500MB")
    number, scale = match.groups()
    return int(float(number) * _UNITS[scale])


def parse_snapshots(text: str) -> int | None:
    """Return the number of snapshots to keep, or None for "all". Raises ConfigError."""
    if text == "all":
        return None
    if not (text.isascii() and text.isdigit()):
        raise ConfigError(f"{text!r} is not a number of snapshots", do="write a number, or all")
    return int(text)


def parse_data_listen(text: str) -> tuple[str, int]:
    """Return host and port of "0.0.0.0:4202" or ":4202". In the second case the host is "", which
    stands for all addresses of this machine. Raises ConfigError."""
    if not text.startswith(":"):
        return parse_host_port(text)
    _, port = parse_host_port(f"0.0.0.0{text}")
    return "", port


def parse_host_port(text: str) -> tuple[str, int]:
    """Return host and port of "0.0.0.0:4202" or "[::]:4202". Raises ConfigError."""
    host, colon, port = text.rpartition(":")
    if not colon or not host or not port.isascii() or not port.isdigit() or int(port) > 65535:
        raise ConfigError(f"{text!r} is not HOST:PORT", do="write it like 0.0.0.0:4202")
    return host.removeprefix("[").removesuffix("]"), int(port)

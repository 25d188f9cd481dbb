"""One process of a measured join: a peer that serves a blob to the joiner, or the joiner.

The processes exchange addresses through a folder, which also contains the blob's store. Each
process has its own address. The processes may be in network namespaces with simulated delays and
rate limits. The joiner's disk is real, and every chunk is checked and synced. The arguments of the
process are SETTING-JSON NUMBER HOST FOLDER DIGEST.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path

import numpy as np

from p2ptrain.bench.meeting import await_files, post_endpoint, read_endpoint
from p2ptrain.dataplane import Credentials, Endpoint, Listener, dial
from p2ptrain.identity import Identity
from p2ptrain.ids import Digest
from p2ptrain.store import Store, StoreReader
from p2ptrain.swarm import PURPOSE, ChunkServer, fetch_blob

CONNECT_S = 60.0
DEADLINE_S = 3600.0

LOOK_S = 0.01
"""Seconds between two checks for the end of the joiner. Checking more often slows the fetch."""

JOINER = 0
"""The joiner's number. The other peers serve the blob."""


@dataclass(frozen=True, slots=True)
class JoinSetting:
    """One measurement: `peers` serve the blob. The first `garbage` of them send wrong bytes. The
    next `dying` of them exit after sending half of their share (the blob's size / `peers`)."""

    peers: int
    bytes: int
    encrypted: bool = True
    streams: int = 1
    garbage: int = 0
    dying: int = 0

    def __post_init__(self) -> None:
        if not 0 <= self.garbage + self.dying < self.peers:
            raise ValueError("at least one peer must send correct chunks and not stop")


def settings_of(
    encryption: Sequence[str], peers: int, size: int, streams: int, garbage: int, dying: int
) -> list[JoinSetting]:
    """Return one setting for each kind of encryption. Raises ValueError if a value is invalid."""
    if not set(encryption) <= {"tls", "none"}:
        raise ValueError("the encryption must be tls or none")
    return [JoinSetting(peers, size, each == "tls", streams, garbage, dying) for each in encryption]


@dataclass(frozen=True, slots=True)
class JoinMeasured:
    """The joiner's measurements. The keys of `bytes_by_peer` are the peers' numbers."""

    seconds: float
    cpu_s: float
    bytes: int
    bytes_by_peer: dict[str, int]
    dropped: tuple[str, ...]


def make_blob(folder: Path, size: int) -> Digest:
    """Make a snapshot of `size` bytes in a store in `folder`. All its chunks are different."""
    with Store(folder / "store") as store:
        return store.put_blob("snapshot", parts_of(size), {})


def parts_of(size: int) -> Iterator[bytes]:
    random, piece = np.random.Generator(np.random.SFC64(1)), 1 << 24
    for start in range(0, size, piece):
        yield random.bytes(min(piece, size - start))


class Chunks:
    """The chunks of one server. Depending on the setting, they are correct or corrupt, or the
    process ends half-way (see `JoinSetting`). `die` ends the process."""

    def __init__(
        self, setting: JoinSetting, me: int, folder: Path, die: Callable[[int], object] = os._exit
    ) -> None:
        self._die = die
        self._store = StoreReader(folder / "store")
        self._garbage = me <= setting.garbage
        dies = setting.garbage < me <= setting.garbage + setting.dying
        self._left = setting.bytes / setting.peers / 2 if dies else float("inf")

    def get_chunk(self, digest: Digest) -> bytes:
        chunk = self._store.get_chunk(digest)
        self._left -= len(chunk)
        if self._left < 0:
            self._die(0)
        return chunk[:-1] + bytes([chunk[-1] ^ 1]) if self._garbage else chunk


def serve(setting: JoinSetting, me: int, host: str, folder: Path) -> None:
    """Serve chunks until the joiner has ended."""
    credentials = Credentials.create(identity(me))
    with _listening(setting, me, credentials, host, folder) as listener:
        listener.handle(PURPOSE, ChunkServer(Chunks(setting, me, folder)))
        await_files([folder / "ended"], DEADLINE_S, LOOK_S)


def join(setting: JoinSetting, host: str, folder: Path, digest: Digest) -> JoinMeasured:
    """Fetch the blob from all serving peers into a new store."""
    credentials = Credentials.create(identity(JOINER))
    numbers = range(1, setting.peers + 1)
    with _listening(setting, JOINER, credentials, host, folder), Store(folder / "joined") as store:
        await_files([folder / f"{number}.trusts" for number in numbers], CONNECT_S)
        sources = [read_endpoint(folder / f"{number}.json") for number in numbers]
        call = partial(dial, credentials, deadline_s=CONNECT_S, encrypted=setting.encrypted)
        connect = partial(call, hello={"purpose": PURPOSE})
        begun, cpu_begun = time.monotonic(), time.process_time()
        streams = setting.streams
        report = fetch_blob(
            store, digest, sources, connect, deadline_s=DEADLINE_S, streams_per_peer=streams
        )
        seconds, cpu_s = time.monotonic() - begun, time.process_time() - cpu_begun
        names = {source.peer: str(number) for number, source in zip(numbers, sources, strict=True)}
    (folder / "ended").touch()
    return JoinMeasured(
        seconds,
        cpu_s,
        report.bytes_fetched,
        {names[peer]: count for peer, count in report.bytes_by_peer.items()},
        tuple(f"{names[drop.peer]} {drop.fault.value}" for drop in report.dropped),
    )


def identity(number: int) -> Identity:
    return Identity.from_seed((number + 1).to_bytes(32, "big"))


@contextmanager
def _listening(
    setting: JoinSetting, me: int, credentials: Credentials, host: str, folder: Path
) -> Iterator[Listener]:
    """Open a listener and write its address into `folder`. If this process is a server, also wait
    for the joiner's certificate and trust it."""
    with Listener(
        credentials, host, 0, allowed=lambda peer: True, encrypted=setting.encrypted
    ) as listener:
        mine = Endpoint(credentials.peer, *listener.address, credentials.certificate_der)
        post_endpoint(folder / f"{me}.json", mine)
        if me != JOINER:
            joiner = folder / f"{JOINER}.json"
            await_files([joiner], CONNECT_S)
            listener.trust_certificate(read_endpoint(joiner).certificate_der)
            (folder / f"{me}.trusts").touch()
        yield listener


def main(setting_json: str, me: str, host: str, folder: str, digest: str) -> None:
    setting = JoinSetting(**json.loads(setting_json))
    if int(me) == JOINER:
        measured = join(setting, host, Path(folder), Digest(digest))
        sys.stdout.write(json.dumps(asdict(measured)))
    else:
        serve(setting, int(me), host, Path(folder))


if __name__ == "__main__":
    main(*sys.argv[1:])

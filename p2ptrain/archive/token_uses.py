"""Count the peers that each token has admitted, in the organiser's home.

A use is durable before the allowlist that admits the peer is signed, so a crash cannot admit more
peers than the token allows. Each use names the number of that list. If a crash came between the
two, the newest list has a lower number, and the peer is admitted after the restart. If the list has
this number or a higher one and lacks the peer, the organiser has revoked the peer since, and the
token does not admit it again.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from pathlib import Path
from types import MappingProxyType

from p2ptrain.encoding import pack, unpack
from p2ptrain.errors import ConfigError, RemoteProtocolError
from p2ptrain.ids import PeerId
from p2ptrain.run.token import Token
from p2ptrain.store.disk import Disk, LocalDisk, disk_errors

BYTES_MAX = 16 << 20

Uses = Mapping[str, Mapping[str, int]]
"""For each token's key, the number of the list that admitted each peer."""

NO_USES: Uses = MappingProxyType({})


def refusal(token: Token, uses: Uses, peer: PeerId, sequence: int, now_unix: float) -> str:
    """Return why `token` does not admit `peer`; "" if it does. `sequence` is the number of the
    newest allowlist, which does not contain `peer`."""
    used = uses.get(token.key, {})
    if now_unix >= token.expires_unix:
        return "the invitation has expired"
    if peer in used:
        return "the peer was removed from the list since" if used[peer] <= sequence else ""
    if len(used) >= token.uses:
        return f"the invitation has been used {len(used)} times, as often as it allows"
    return ""


def with_use(uses: Uses, token: Token, peers: Collection[PeerId], sequence: int) -> Uses:
    """Return `uses` with `peers` admitted by `token` in the list `sequence`."""
    used = dict(uses.get(token.key, {}))
    used.update(dict.fromkeys(peers, sequence))
    return {**uses, token.key: used}


def load_uses(path: Path, disk: Disk | None = None) -> Uses:
    """Return the uses in the file; none if there is no file.

    Raises:
        ConfigError: the file is damaged. Without it, a token could admit too many peers.
        StoreError: the disk cannot be read."""
    disk = disk or LocalDisk()
    with disk_errors("reading the uses of tokens", path):
        size = disk.size(path)
        data = b"" if size is None else disk.read(path, 0, min(size, BYTES_MAX + 1))
    if size is None:
        return NO_USES
    try:
        value = unpack(data, bytes_max=BYTES_MAX)
        if isinstance(value, dict) and all(map(_is_used, value.values())):
            return value
        reason = "it is not a table of uses"
    except RemoteProtocolError as exc:
        reason = exc.what
    raise ConfigError(
        f"{path} does not show how often invitations were used: {reason}",
        code="RUN-FILE",
        likely="the file was damaged",
        do=f"move {path} away; invitations with --uses then count from the start",
    )


def _is_used(value: object) -> bool:
    return isinstance(value, dict) and all(type(number) is int for number in value.values())


def save_uses(path: Path, uses: Uses, disk: Disk | None = None) -> None:
    """Store the uses; they are durable on return. Raises StoreError: the disk cannot be written."""
    disk = disk or LocalDisk()
    new = path.with_suffix(".new")
    with disk_errors("counting the use of an invitation", path):
        disk.write(new, memoryview(pack({key: dict(used) for key, used in uses.items()})))
        disk.sync(new)
        disk.replace(new, path)
        disk.sync_directory(path.parent)

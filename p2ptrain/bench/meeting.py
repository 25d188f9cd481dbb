"""How the processes of a benchmark meet: through files in a folder that all of them can read."""

from __future__ import annotations

import json
import time
from collections.abc import Iterable
from pathlib import Path

from p2ptrain.dataplane import Endpoint

LOOK_S = 0.001


def post(path: Path, text: str) -> None:
    """Write a file. Other processes see it only when it is complete."""
    part = path.with_name(f"{path.name}.part")
    part.write_text(text)
    part.rename(path)


def post_endpoint(path: Path, endpoint: Endpoint) -> None:
    plain = endpoint.to_wire() | {"certificate": endpoint.certificate_der.hex()}
    post(path, json.dumps(plain))


def read_endpoint(path: Path) -> Endpoint:
    plain = json.loads(path.read_text())
    return Endpoint.from_wire(plain | {"certificate": bytes.fromhex(plain["certificate"])})


def await_files(files: Iterable[Path], seconds: float, look_s: float = LOOK_S) -> None:
    """Wait until all these files exist, and look for them every `look_s`. Raises TimeoutError."""
    ends = time.monotonic() + seconds
    for file in files:
        while not file.exists():
            if time.monotonic() > ends:
                raise TimeoutError(f"no process wrote {file.name} within {seconds:g} s")
            time.sleep(look_s)


def all_have(folder: Path, me: int, peers: int, what: str, seconds: float) -> None:
    """Tell the others that `me` has reached the point `what`. Wait until all peers have. Raises
    TimeoutError."""
    (folder / f"{me}.{what}").touch()
    await_files([folder / f"{number}.{what}" for number in range(peers)], seconds)

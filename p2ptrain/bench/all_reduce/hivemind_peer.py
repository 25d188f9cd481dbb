"""The process of one peer of hivemind's averager: NUMBER PEERS ELEMENTS REPEATS CODEC HOST FOLDER.

It runs in a separate environment with hivemind, and does not import p2ptrain. Only the averaging is
timed, after the group has been formed, which takes hivemind a few seconds. If a repeat loses a peer
or returns a wrong mean, the process ends with an error.
"""

from __future__ import annotations

import importlib
import json
import sys
import time
from pathlib import Path
from typing import Any

CODECS = {"fp32": "NoCompression", "fp16": "Float16Compression", "uint8": "Uniform8BitQuantization"}
GROUP_S = 120.0
STEP_S = 300.0
LOOK_S = 0.001
ERROR_MAX = 0.2
"""Largest accepted relative error of the mean. With 8 bits per value and one scale for all values,
the error is 0.03."""


def main(
    me: str, peers: str, elements: str, repeats: str, codec: str, host: str, meeting: str
) -> None:
    number, count, folder = int(me), int(peers), Path(meeting)
    names = ("torch", "hivemind", "hivemind.compression")
    torch, hivemind, compression = (importlib.import_module(name) for name in names)
    torch.set_num_threads(1)
    own, mean = _vectors(torch, number, count, int(elements))
    dht = _dht(hivemind, number, host, folder)
    vector = own.clone()
    averager = hivemind.DecentralizedAverager(
        [vector],
        dht,
        start=True,
        prefix="bench",
        target_group_size=count,
        min_group_size=count,
        min_matchmaking_time=5.0,
        request_timeout=3.0,
        compression=getattr(compression, CODECS[codec])(),
    )
    seconds = []
    for repeat in range(int(repeats)):
        with averager.get_tensors() as tensors:
            tensors[0][:] = own
        step = _grouped(averager)
        _all_have(folder, number, count, f"grouped-{repeat}")
        begun = time.monotonic()
        step.allow_allreduce()
        group = step.result(timeout=STEP_S)
        seconds.append(time.monotonic() - begun)
        with averager.get_tensors() as tensors:
            _check(float((tensors[0] - mean).norm() / mean.norm()), len(group), count)
        _all_have(folder, number, count, f"ended-{repeat}")
    averager.shutdown()
    dht.shutdown()
    sys.stdout.write(json.dumps(seconds))


def _vectors(torch: Any, me: int, peers: int, elements: int) -> tuple[Any, Any]:
    """Return this peer's vector, and the mean of all vectors."""
    mean = torch.zeros(elements)
    for number in range(peers):
        drawn = torch.randn(elements, generator=torch.Generator().manual_seed(number))
        mean += drawn / peers
        if number == me:
            own = drawn
    return own, mean


def _dht(hivemind: Any, me: int, host: str, folder: Path) -> Any:
    """Start this peer's DHT daemon. All peers but the first use the first one's address."""
    address = folder / "first.json"
    if me > 0:
        _await([address])
    known = json.loads(address.read_text()) if me > 0 else []
    dht = hivemind.DHT(start=True, host_maddrs=[f"/ip4/{host}/tcp/0"], initial_peers=known)
    if me == 0:
        written = folder / "first.part"
        written.write_text(json.dumps([str(each) for each in dht.get_visible_maddrs()]))
        written.rename(address)
    return dht


def _grouped(averager: Any) -> Any:
    """Return a step whose group is complete, and which waits for its trigger."""
    step = averager.step(wait=False, require_trigger=True, timeout=GROUP_S)
    ends = time.monotonic() + GROUP_S
    while step.stage.name != "AWAITING_TRIGGER":
        if step.done() or time.monotonic() > ends:
            raise TimeoutError(f"hivemind did not form a group in {GROUP_S:.0f} s")
        time.sleep(LOOK_S)
    return step


def _check(error: float, grouped: int, peers: int) -> None:
    if grouped != peers or not error < ERROR_MAX:
        raise RuntimeError(
            f"{grouped} of {peers} peers averaged, and their mean has an error of {error:.3f}"
        )


def _all_have(folder: Path, me: int, peers: int, what: str) -> None:
    (folder / f"{me}.{what}").touch()
    _await([folder / f"{number}.{what}" for number in range(peers)])


def _await(files: list[Path]) -> None:
    ends = time.monotonic() + GROUP_S
    while not all(file.exists() for file in files):
        if time.monotonic() > ends:
            missing = ", ".join(file.name for file in files if not file.exists())
            raise TimeoutError(f"other peers did not write {missing} within {GROUP_S:g} s")
        time.sleep(LOOK_S)


if __name__ == "__main__":
    main(*sys.argv[1:])

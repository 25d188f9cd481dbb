"""The process of one rank of gloo's all-reduce: RANK RANKS ELEMENTS REPEATS FIRST PORT HOST.

The ranks meet at port PORT of FIRST, the address of rank 0. HOST is the address of this rank.

torch is imported with importlib, because it is only a contender here and not a dependency.
"""

from __future__ import annotations

import importlib
import json
import os
import sys
import time

import psutil


def main(
    rank: str, ranks: str, elements: str, repeats: str, first: str, port: str, host: str
) -> None:
    interface = _interface_of(host)
    os.environ |= {"MASTER_ADDR": first, "MASTER_PORT": port, "GLOO_SOCKET_IFNAME": interface}
    torch = importlib.import_module("torch")
    distributed = importlib.import_module("torch.distributed")
    torch.set_num_threads(1)
    distributed.init_process_group("gloo", rank=int(rank), world_size=int(ranks))
    vector = torch.randn(int(elements))
    seconds = []
    for _ in range(int(repeats)):
        distributed.barrier()
        begun = time.monotonic()
        distributed.all_reduce(vector)
        seconds.append(time.monotonic() - begun)
    distributed.destroy_process_group()
    sys.stdout.write(json.dumps(seconds))


def _interface_of(host: str) -> str:
    for name, addresses in psutil.net_if_addrs().items():
        if any(each.address == host for each in addresses):
            return name
    raise ValueError(f"no network interface of this machine has the address {host}")


if __name__ == "__main__":
    main(*sys.argv[1:])

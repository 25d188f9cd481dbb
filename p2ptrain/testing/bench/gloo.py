"""The process of one rank of gloo's all-reduce: RANK RANKS ELEMENTS REPEATS PORT.

torch is looked up by name: it is what we compare with, and nothing of ours needs it here.
"""

from __future__ import annotations

import importlib
import json
import os
import sys
import time


def main(rank: str, ranks: str, elements: str, repeats: str, port: str) -> None:
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "GLOO_SOCKET_IFNAME": "lo"}
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


if __name__ == "__main__":
    main(*sys.argv[1:])

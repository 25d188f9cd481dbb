"""A program for benchmarks that trains until it is killed and prints when each inner step ended.

Run it as `python -m p2ptrain.trainer.tools.ticking JSON`, where JSON is a `TrainerConfig`. The
times are seconds of the machine's monotonic clock. All processes share that clock, so the benchmark
can tell which inner steps coincided with its own work.
"""

from __future__ import annotations

import sys
import time
import warnings

import torch

from p2ptrain.ipc.trainer_config import TrainerConfig
from p2ptrain.trainer.rank.ranks import open_ranks
from p2ptrain.trainer.tools.speed import fsdp2, random_rows


def main() -> None:
    config = TrainerConfig.from_json(sys.argv[1])
    rows = random_rows(config)
    torch.set_num_threads(config.threads)
    # Ignore a warning about random initial weights: they do not affect how long a step takes.
    warnings.filterwarnings("ignore", "DTensor random operators", UserWarning)
    with open_ranks(config.device, None) as ranks:
        step = fsdp2(config, ranks)
        while True:
            step(rows)
            if ranks.device.type == "cuda":
                torch.cuda.synchronize()
            sys.stdout.write(f"{time.monotonic()}\n")
            sys.stdout.flush()


if __name__ == "__main__":
    main()

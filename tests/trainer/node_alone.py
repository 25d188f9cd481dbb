"""The node's side of a trainer whose ranks are on other hosts, as a separate process, so that it
can run in a network namespace: `node_alone.py FOLDER HOST PORT RANKS`.

It reads orders from stdin and prints what it receives, one line of JSON each.
"""

from __future__ import annotations

import json
import sys
import time
from dataclasses import asdict
from pathlib import Path

import numpy as np

from p2ptrain.errors import TrainerError
from p2ptrain.ipc import admission
from p2ptrain.ipc.frames import Evaluate, Frame, Load, Train
from p2ptrain.ipc.trainer_config import TrainerConfig
from p2ptrain.trainer.host.stall_watch import AnswerTimeout
from p2ptrain.trainer.host.torchrun_trainer import ExternalRanks, ExternalTrainers
from tests.trainer.receiving import receive

LIMIT_S = 200.0


def tell(kind: str, **fields: object) -> None:
    sys.stdout.write(json.dumps({"kind": kind, **fields}) + "\n")
    sys.stdout.flush()


def hear(ranks: ExternalRanks, kind: str) -> Frame:
    ends = time.monotonic() + LIMIT_S
    while time.monotonic() < ends:
        frame = receive(ranks, timeout_s=0.2)
        if frame is not None and frame.kind == kind:
            return frame
    raise TrainerError(f"no {kind} within {LIMIT_S} s")


def main(folder: Path, host: str, port: int, count: int) -> None:
    config = TrainerConfig.from_json((folder / "config.json").read_text())
    theta = np.fromfile(folder / "theta", np.float32)
    local = np.full_like(theta, np.nan)
    trainers = ExternalTrainers(
        config,
        theta.view(np.uint8).data,
        local.view(np.uint8).data,
        admission.load_or_create(folder / "ranks.secret"),
        host,
        port,
        count,
        tell,
        patience=AnswerTimeout(start_limit_s=LIMIT_S),
    )
    ranks = trainers.start()
    tell("listens")
    for line in sys.stdin:
        order = json.loads(line)
        try:
            match order["kind"]:
                case "hello":
                    tell("heard", frame=asdict(hear(ranks, "hello")))
                case "train":
                    paths = tuple(order["paths"])
                    ranks.send(Load(0))
                    ranks.send(Evaluate(1, paths))
                    ranks.send(Train(0, paths, 0))
                    tell("heard", frame=asdict(hear(ranks, "evaluated")))
                    ready = asdict(hear(ranks, "fragment_ready"))
                    local.tofile(folder / "local")
                    tell("heard", frame=ready)
                case "wait":
                    hear(ranks, "nothing")
                case "stop":
                    tell("stopped", status=ranks.stop(LIMIT_S))
                    return
        except TrainerError as exc:
            tell("error", code=exc.code, what=exc.what)
            ranks.stop(0.0, again=True)
            ranks = trainers.start()
            tell("listens")


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2], int(sys.argv[3]), int(sys.argv[4]))

"""The process of one peer of `bench allreduce`: SETTING-JSON NUMBER HOST MEETING-FOLDER."""

from __future__ import annotations

import json
import sys
from dataclasses import asdict
from pathlib import Path

from p2ptrain.bench.all_reduce.averaging import AverageSetting, average


def main(setting_json: str, me: str, host: str, meeting: str) -> None:
    given = json.loads(setting_json)
    slow = given.get("slow_link")
    tuples = {"order": tuple(given.get("order", ())), "slow_link": tuple(slow) if slow else None}
    setting = AverageSetting(**given | tuples)
    sys.stdout.write(json.dumps(asdict(average(setting, int(me), host, Path(meeting)))))


if __name__ == "__main__":
    main(*sys.argv[1:])

"""The process of one peer of `bench join`: SETTING-JSON NUMBER HOST FOLDER DIGEST."""

from __future__ import annotations

import json
import sys
from dataclasses import asdict
from pathlib import Path

from p2ptrain.bench.joining import JOINER, JoinSetting, join, serve
from p2ptrain.ids import Digest


def main(setting_json: str, me: str, host: str, folder: str, digest: str) -> None:
    setting = JoinSetting(**json.loads(setting_json))
    if int(me) == JOINER:
        measured = join(setting, host, Path(folder), Digest(digest))
        sys.stdout.write(json.dumps(asdict(measured)))
    else:
        serve(setting, int(me), host, Path(folder))


if __name__ == "__main__":
    main(*sys.argv[1:])

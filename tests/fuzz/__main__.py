"""Fuzz the decoders with atheris, guided by coverage, for a given time.

scripts/fuzz --minutes 30 [--targets heartbeat hello-reply]

Each target is fuzzed in a separate process, since a crash ends the process. Fuzzing starts from the
target's examples in tests/fuzz/corpus. The command prints one JSON line for each target, and one
for all targets together. Inputs that cause a crash are kept in build/fuzz/TARGET. If an input takes
longer than `INPUT_S` or more memory than `MEMORY_MB`, this counts as a crash. The given time is CPU
time of the fuzzers, and is shared equally among the targets.
"""

from __future__ import annotations

import argparse
import json
import re
import resource
import subprocess
import sys
import tempfile
from pathlib import Path

from tests.fuzz.recording import CORPUS

INPUT_S = 10
"""Seconds that one input may take. The slowest legitimate input takes milliseconds; the rest allows
for a busy machine."""
MEMORY_MB = 2048
LENGTH_MAX = 1 << 16
RUNS_DONE = re.compile(r"Done (\d+) runs|#(\d+)\s+DONE|stat::number_of_executed_units: (\d+)")
BUILD = Path("build") / "fuzz"


def main() -> int:
    parser = argparse.ArgumentParser(prog="scripts/fuzz", description=__doc__.splitlines()[0])
    parser.add_argument(
        "--minutes", type=float, default=30.0, help="CPU minutes of all targets together"
    )
    parser.add_argument("--targets", nargs="+", metavar="TARGET", help="fuzz these targets only")
    parser.add_argument("--one", help=argparse.SUPPRESS)
    given, rest = parser.parse_known_args()
    if given.one:
        _fuzz(given.one, rest)
    from tests.fuzz.good import GOOD
    from tests.fuzz.targets import TARGETS

    names = given.targets or list(TARGETS)
    if unknown := set(names) - set(TARGETS):
        parser.error(f"no such target: {', '.join(sorted(unknown))}")
    began_s, lines = _children_cpu_s(), list[dict[str, int]]()
    # The fuzzer limits its time by the wall clock, so on a busy machine it uses less CPU time than
    # it may. The CPU time that is left is then shared among the targets again.
    while (left_s := 60 * given.minutes - (_children_cpu_s() - began_s)) > 0:
        seconds = max(1, round(left_s / len(names)))
        lines += [_fuzzed(name, GOOD.get(name, b""), seconds) for name in names]
    spent = {"cpu_minutes": round((_children_cpu_s() - began_s) / 60, 2)}
    crashes = sum(line["crashes"] for line in lines)
    runs = sum(line["runs"] for line in lines)
    sys.stdout.write(
        json.dumps({"target": "all", "runs": runs, "crashes": crashes, **spent}) + "\n"
    )
    return 1 if crashes else 0


def _children_cpu_s() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def _fuzzed(name: str, good: bytes, seconds: int) -> dict[str, int]:
    """Fuzz one target. Print and return the result."""
    left = BUILD / name
    left.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as found:
        (Path(found) / "good").write_bytes(good)
        (CORPUS / name).mkdir(exist_ok=True)
        done = subprocess.run(
            [
                *(sys.executable, "-m", "tests.fuzz", "--one", name, found, str(CORPUS / name)),
                *(f"-max_total_time={seconds}", f"-timeout={INPUT_S}", f"-max_len={LENGTH_MAX}"),
                *(
                    f"-rss_limit_mb={MEMORY_MB}",
                    f"-artifact_prefix={left}/",
                    "-print_final_stats=1",
                ),
            ],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            errors="replace",
            check=False,
        )
    runs = [int(next(filter(None, each))) for each in RUNS_DONE.findall(done.stderr)]
    line = {"runs": max(runs, default=0), "crashes": int(done.returncode != 0)}
    sys.stdout.write(json.dumps({"target": name, **line}) + "\n")
    sys.stdout.flush()
    if done.returncode:
        sys.stderr.write(done.stderr[-4000:] + "\n")
    return line


def _fuzz(name: str, options: list[str]) -> None:
    """Fuzz the target, and never return. The modules are instrumented while they are imported."""
    import atheris

    with atheris.instrument_imports(include=["p2ptrain"]):
        from tests.fuzz.targets import TARGETS
    target = TARGETS[name]

    def one_input(data: bytes) -> None:
        target.run(data)

    atheris.Setup([sys.argv[0], *options], one_input)
    atheris.Fuzz()


if __name__ == "__main__":
    sys.exit(main())

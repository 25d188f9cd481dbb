"""The first θ of a run, from the model's sizes and a seed.

Every parameter draws from its own generator, keyed by the seed and its name. Therefore an added
parameter does not change the others, and the bytes do not depend on torch, on the number of ranks
or on the order of generation. Peers do not run this program to agree on θ: they compare the digest
of the snapshot that the organiser published.

As a program, `python -m p2ptrain.trainer.formats.genesis --model-json JSON --seed N --out DIR`
writes `theta.bin` (little-endian fp32 in the canonical layout) and `layout.bin`
(`Layout.to_wire`).
"""

from __future__ import annotations

import argparse
import hashlib
import json
from pathlib import Path

import numpy as np
import numpy.typing as npt

from p2ptrain.errors import ConfigError
from p2ptrain.ipc.trainer_config import ModelSpec
from p2ptrain.trainer.formats.shapes import Parameter, layout_of, parameters


def genesis(spec: ModelSpec, seed: int) -> npt.NDArray[np.float32]:
    """Return θ at outer step 0: fp32, `layout_of(spec).numel` elements, zeros in the padding."""
    layout = layout_of(spec)
    starts = {parameter.name: parameter for parameter in parameters(spec)}
    theta = np.zeros(layout.numel, dtype=np.float32)
    for entry in layout.entries:
        theta[entry.offset : entry.end] = _values(starts[entry.name], entry.numel, seed)
    return theta


def _values(parameter: Parameter, numel: int, seed: int) -> npt.NDArray[np.float32]:
    if parameter.deviation is None:
        return np.ones(numel, dtype=np.float32)
    key = hashlib.sha256(f"p2ptrain genesis {seed} {parameter.name}".encode()).digest()[:16]
    random = np.random.Generator(np.random.Philox(key=int.from_bytes(key, "little")))
    return random.standard_normal(numel, dtype=np.float32) * np.float32(parameter.deviation)


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description="write the first parameters of a run")
    parser.add_argument("--model-json", required=True, help="the model's sizes, as JSON")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, required=True, help="folder to write to")
    chosen = parser.parse_args(arguments)
    try:
        spec = ModelSpec(**json.loads(chosen.model_json))
    except (ValueError, TypeError) as exc:
        raise ConfigError(f"--model-json does not describe a model: {exc}") from exc
    chosen.out.mkdir(parents=True, exist_ok=True)
    (chosen.out / "theta.bin").write_bytes(genesis(spec, chosen.seed).astype("<f4").tobytes())
    (chosen.out / "layout.bin").write_bytes(layout_of(spec).to_wire())


if __name__ == "__main__":
    main()

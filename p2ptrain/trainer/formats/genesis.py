"""The first θ of a run, from the model's sizes and a seed.

The values of a parameter come from a random generator that is keyed by the seed and the parameter's
name. Therefore an added parameter does not change the others, and the bytes do not depend on torch,
on the number of ranks or on the order of generation. Only the organiser computes the first θ; the
other peers fetch it, and verify it against the digest in the manifest.
"""

from __future__ import annotations

import hashlib

import numpy as np
import numpy.typing as npt

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

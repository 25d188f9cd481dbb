"""Load a model from a folder that `p2ptrain export` has written. The folder may come from anyone.

The files contain JSON and tensors; nothing in them is executed. The loader rejects missing or
unknown tensors, wrong shapes and unsupported models, and its error says what is wrong.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from p2ptrain.errors import MachineUnfit
from p2ptrain.ipc.trainer_config import ModelSpec
from p2ptrain.state.layout import aligned
from p2ptrain.trainer.formats.huggingface import foreign, lacks, name_of, spec_of
from p2ptrain.trainer.formats.shapes import layout_of, parameters
from p2ptrain.trainer.rank.model import Llama

JSON_BYTES_MAX = 16 * 2**20
"""Maximum size of a JSON file. The index of a model of ten thousand tensors takes 1 MiB."""

ONE_FILE = "model.safetensors"
INDEX = "model.safetensors.index.json"
_FILE = re.compile(r"[\w.-]{1,200}\.safetensors", re.ASCII)
"""A file name that is valid on every system and stays in the same folder."""


def read_json(path: Path) -> object:
    """Return the value in a JSON file. Raises ConfigError: it is missing, too long or not JSON."""
    try:
        with path.open("rb") as file:
            data = file.read(JSON_BYTES_MAX + 1)
        if len(data) > JSON_BYTES_MAX:
            raise foreign(f"{path.name} is longer than {JSON_BYTES_MAX} bytes")
        return json.loads(data)
    except FileNotFoundError as exc:
        raise lacks(path) from exc
    except (OSError, ValueError, RecursionError) as exc:
        raise foreign(f"{path.name} cannot be read: {exc}") from exc


def best_device() -> torch.device:
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")


def exact_device() -> torch.device:
    """Return the device on which `load_model` keeps weights in fp32."""
    return torch.device("cpu")


def to_best_device(model: Llama) -> Llama:
    """Move a model from `exact_device` to the best device, as `load_model` would load it there."""
    device = best_device()
    return model if device.type == "cpu" else model.to(device, torch.bfloat16)


def theta_bytes(model: Llama) -> Iterator[bytes]:
    """Yield the bytes of θ, padding included, of a model on `exact_device`: one parameter after the
    other, in the order of the run's layout."""
    for entry in layout_of(model.spec).entries:
        values = model.get_parameter(entry.name).numpy()
        yield values.astype("<f4", copy=False).tobytes()
        yield bytes(4 * (aligned(entry.end) - entry.end))


def load_spec(folder: Path) -> ModelSpec:
    """Return the sizes of the model in `folder`. Raises ConfigError."""
    return spec_of(read_json(folder / "config.json"))


def load_model(folder: Path, device: torch.device) -> Llama:
    """Load the model for inference: fp32 on a CPU, bf16 on a GPU.

    Raises:
        ConfigError: the folder does not contain the complete model.
        MachineUnfit: the GPU has too little memory.
    """
    try:
        return _loaded(folder, device)
    except torch.OutOfMemoryError as exc:
        raise MachineUnfit(
            "the model does not fit into the GPU's memory",
            code="MEM-GPU",
            do="stop other programs on the GPU, or set CUDA_VISIBLE_DEVICES= to use the CPU",
        ) from exc


def _loaded(folder: Path, device: torch.device) -> Llama:
    spec = load_spec(folder)
    with torch.device("meta"):
        model = Llama(spec)
    dtype = torch.float32 if device.type == "cpu" else torch.bfloat16
    shapes = {name_of(each.name): (each.name, each.shape) for each in parameters(spec)}
    state: dict[str, Tensor] = {}
    for name, tensor in _tensors(folder):
        if name not in shapes:
            raise foreign(f"it has the tensor {name}, which p2ptrain's model does not have")
        ours, shape = shapes[name]
        if tuple(tensor.shape) != shape or not tensor.is_floating_point():
            found = f"{tuple(tensor.shape)} of {str(tensor.dtype).removeprefix('torch.')}"
            raise foreign(f"{name} is {found}, not {shape} of floating-point numbers")
        state[ours] = tensor.to(device, dtype)
    missing = [name for name, (ours, _) in shapes.items() if ours not in state]
    if missing:
        raise foreign(f"{len(missing)} tensors are missing, among them {missing[0]}")
    if spec.tied:
        state["head.weight"] = state["embedding.weight"]
    model.load_state_dict(state, assign=True)
    return model.eval().requires_grad_(False)


def _tensors(folder: Path) -> Iterator[tuple[str, Tensor]]:
    """Yield the names and tensors of all files, one at a time. Raises ConfigError."""
    for file in _files(folder):
        try:
            with safe_open(folder / file, framework="pt") as opened:
                for name in opened.keys():  # noqa: SIM118 — it is not a mapping.
                    yield name, opened.get_tensor(name)
        except FileNotFoundError as exc:
            raise lacks(folder / file) from exc
        except (SafetensorError, OSError) as exc:
            raise foreign(f"{file} cannot be read: {exc}") from exc


def _files(folder: Path) -> list[str]:
    if not (folder / INDEX).exists():
        return [ONE_FILE]
    index = read_json(folder / INDEX)
    listed = index.get("weight_map") if isinstance(index, dict) else None
    files = sorted(set(map(str, listed.values()))) if isinstance(listed, dict) else []
    for file in files:
        if not _FILE.fullmatch(file):
            raise foreign(f"{INDEX} names {file[:80]!r}, which is not a valid file name")
    return files

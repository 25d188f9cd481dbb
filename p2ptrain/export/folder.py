"""Atomically write the folder that `transformers` and `p2ptrain chat` read.

    model.safetensors            the weights; or several files, and model.safetensors.index.json
    config.json                  the model's sizes
    generation_config.json       the token that ends a text
    tokenizer.json, tokenizer_config.json
    README.md                    the model card
    p2ptrain.json                the same facts for programs; marks the folder as an export
    p2ptrain.certificate         proof that a quorum certified the weights, if one did

The folder is written next to its final path under a different name, checked by the caller's
`check_folder`, synced, and then renamed. An existing folder is replaced only if the caller asks for
it (`force`), and only if it is an export.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

from p2ptrain.errors import ConfigError, StoreFull
from p2ptrain.export import certificate
from p2ptrain.export.atomic_folder import appearing
from p2ptrain.export.card import card
from p2ptrain.export.certificate import SnapshotCertificate, WeightsCertificate
from p2ptrain.export.provenance import Provenance
from p2ptrain.export.source import Theta, ThetaOfSnapshot
from p2ptrain.export.tensor_file import (
    BYTES,
    TORCH_NAMES,
    Dtype,
    Shard,
    Tensor,
    header,
    index_of,
    sharded,
    write_pieces,
)
from p2ptrain.export.tokens import Tokenizer
from p2ptrain.ids import Digest
from p2ptrain.ipc.trainer_config import ModelSpec
from p2ptrain.observe.states import size
from p2ptrain.state.layout import aligned
from p2ptrain.trainer.formats.huggingface import config_of, name_of
from p2ptrain.trainer.formats.shapes import layout_of, parameter_count

MARK = "p2ptrain.json"
SHARD_BYTES_MAX = 5_000_000_000
"""Maximum size of a file of weights: the default of transformers. Some file systems and servers do
not accept much larger files."""

SPARE_BYTES = 4 * 2**20
"""Disk space reserved for all files but the weights and the tokenizer: twice the size of 10,000
tensor names with their offsets."""


@dataclass(frozen=True, slots=True)
class ExportPlan:
    """The export to write. `certificate` certifies the weights themselves; None if nothing does."""

    spec: ModelSpec
    origin: Provenance
    tokenizer: Tokenizer
    dtype: Dtype = "fp32"
    shard_bytes_max: int = SHARD_BYTES_MAX
    certificate: SnapshotCertificate | None = None


@dataclass(frozen=True, slots=True)
class Exported:
    """A finished export. `bytes` is the size of all files; `theta` is the digest of θ."""

    folder: Path
    files: tuple[str, ...]
    bytes: int
    theta: Digest


CheckFolder = Callable[[Path], None]


def free_bytes(folder: Path) -> int:
    """Return the free bytes on the disk of `folder`."""
    return shutil.disk_usage(folder).free


def export(
    plan: ExportPlan,
    theta: Theta,
    target: Path,
    *,
    force: bool = False,
    check_folder: CheckFolder | None = None,
    free: Callable[[Path], int] = free_bytes,
) -> Exported:
    """Write `theta` to the folder `target` as `plan` says. `check_folder` is called with the folder
    before it appears as `target`; if it raises, nothing is exported. `free` returns the free bytes
    on the disk of a folder.

    Raises:
        ConfigError: `target` already exists, or transformers does not support this model.
        StoreError: a part of θ is missing or damaged, or the disk has too little space.
    """
    check_target(target, force=force)
    shards = _shards(plan)
    _check_room(target.parent, plan, free)
    with appearing(target) as partial:
        digest = _write_weights(plan, theta, shards, partial)
        if len(shards) > 1:
            _write_json(partial / "model.safetensors.index.json", index_of(shards, plan.dtype))
        _write_rest(plan, digest, partial)
        _write_certificate(plan, theta, partial)
        if check_folder is not None:
            check_folder(partial)
        files = tuple(sorted(path.name for path in partial.iterdir()))
        written_bytes = sum((partial / name).stat().st_size for name in files)
    return Exported(target, files, written_bytes, digest)


def check_target(target: Path, *, force: bool) -> None:
    """Raise ConfigError (EXPORT-EXISTS) if `target` exists and must not be replaced."""
    if not os.path.lexists(target):
        return
    ours = not target.is_symlink() and (target / MARK).is_file()
    if force and ours:
        return
    likely = f"it is not an export of p2ptrain: it does not contain {MARK}"
    do = "write to another folder"
    if ours:
        likely, do = "it is an earlier export", f"{do}, or replace this one with --force"
    raise ConfigError(f"{target} already exists", code="EXPORT-EXISTS", likely=likely, do=do)


def _shards(plan: ExportPlan) -> tuple[Shard, ...]:
    entries = layout_of(plan.spec).entries
    tensors = [Tensor(name_of(each.name), each.name, each.shape, each.numel) for each in entries]
    return sharded(tensors, plan.dtype, plan.shard_bytes_max)


def _check_room(folder: Path, plan: ExportPlan, free: Callable[[Path], int]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    weights_bytes = parameter_count(plan.spec) * BYTES[plan.dtype]
    certificate_bytes = 0 if plan.certificate is None else certificate.FILE_BYTES_MAX
    needed = weights_bytes + len(plan.tokenizer.json_bytes) + certificate_bytes + SPARE_BYTES
    left = free(folder)
    if left < needed:
        raise StoreFull(
            f"the export takes {size(needed)}, but {folder} has only {size(left)} free",
            do="make room, or choose a folder on another disk",
        )


def _write_weights(
    plan: ExportPlan, theta: Theta, shards: tuple[Shard, ...], folder: Path
) -> Digest:
    """Write all files of weights in one pass over θ; return θ's digest, padding included."""
    about = {"run": plan.origin.run, "step": str(plan.origin.step), "source": "p2ptrain"}
    ends = {entry.name: entry.end for entry in layout_of(plan.spec).entries}
    for shard in shards:
        with (folder / shard.file).open("xb") as file:
            file.write(header(shard, plan.dtype, about))
            for tensor in shard.tensors:
                write_pieces(file, theta.pieces(tensor.numel), plan.dtype)
                end = ends[tensor.parameter]
                for _ in theta.pieces(aligned(end) - end):
                    pass  # Padding after a parameter is part of θ's digest, but not of the file.
    return theta.digest


def _write_rest(plan: ExportPlan, theta: Digest, folder: Path) -> None:
    tokenizer, sequence = plan.tokenizer, plan.spec.sequence
    ends = {f"{role}_token_id": number for role, number in sorted(tokenizer.numbers.items())}
    config = config_of(plan.spec, TORCH_NAMES[plan.dtype], tokenizer.numbers)
    _write_json(folder / "config.json", config)
    _write_json(folder / "generation_config.json", dict[str, object](ends))
    _write_json(folder / "tokenizer_config.json", tokenizer.config(sequence))
    (folder / "tokenizer.json").write_bytes(tokenizer.json_bytes)
    text = card(plan.origin, plan.spec, plan.dtype, theta, tokenizer.example)
    (folder / "README.md").write_text(text, encoding="utf-8")
    facts = {**asdict(plan.origin), "theta": theta, "dtype": plan.dtype, "schema": 1}
    _write_json(folder / MARK, facts)


def _write_certificate(plan: ExportPlan, theta: Theta, folder: Path) -> None:
    """Write the file with which anybody can check the weights, if they are certified themselves.
    `theta` has been read to its end."""
    if plan.certificate is not None and isinstance(theta, ThetaOfSnapshot):
        whole = WeightsCertificate(plan.certificate, theta.manifest.to_wire(), theta.rest)
        (folder / certificate.FILE_NAME).write_bytes(whole.to_bytes())


def _write_json(path: Path, value: dict[str, object]) -> None:
    path.write_text(json.dumps(value, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")

"""`p2ptrain export`: write a run's weights, with their provenance, for other programs."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterator
from dataclasses import asdict
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from p2ptrain.cli.homes import HomeOption, open_home, run_of
from p2ptrain.cli.output import JsonOption, examples, progress, result, result_json

if TYPE_CHECKING:
    from p2ptrain.archive.chain_reader import Walk
    from p2ptrain.archive.home import Home
    from p2ptrain.export.choosing import Chain
    from p2ptrain.export.folder import Exported
    from p2ptrain.export.parity import Parity
    from p2ptrain.export.provenance import Provenance
    from p2ptrain.export.tokens import Tokenizer
    from p2ptrain.ledger.chain.values import Certified
    from p2ptrain.run import Run
    from p2ptrain.store import StoreReader

EXAMPLES = examples(
    "p2ptrain export --to hf ./weights",
    "p2ptrain export --to hf ./weights --snapshot 4000 --dtype bf16 --home ./fetched",
    "p2ptrain export --to hf ./weights --snapshot head --force",
)


class Target(StrEnum):
    HF = "hf"


class Number(StrEnum):
    FP32 = "fp32"
    BF16 = "bf16"


SnapshotOption = Annotated[
    str,
    typer.Option(
        "--snapshot",
        metavar="WHICH",
        help=(
            "newest, genesis, an outer step, or the first characters of a digest. head is the "
            "newest snapshot with all later updates applied; it needs memory for θ and m."
        ),
    ),
]
DtypeOption = Annotated[
    Number,
    typer.Option(
        "--dtype", help="Number format; bf16 halves the size and rounds the certified weights."
    ),
]
ShardOption = Annotated[
    int,
    typer.Option(
        "--shard-mb", min=1, metavar="MB", help="Maximum size of each weights file, in MB."
    ),
]
ParityOption = Annotated[
    bool | None,
    typer.Option(
        "--parity/--no-parity",
        help="Compare the logits with those of transformers.",
        show_default="if it is installed",
    ),
]


def export(
    folder: Annotated[Path, typer.Argument(metavar="DIR", show_default=False)],
    to: Annotated[Target, typer.Option("--to", help="Format to write.")] = Target.HF,
    snapshot: SnapshotOption = "newest",
    dtype: DtypeOption = Number.FP32,
    shard_mb: ShardOption = 5000,
    force: Annotated[
        bool, typer.Option("--force", help="Replace an earlier export in DIR.")
    ] = False,
    parity: ParityOption = None,
    home: HomeOption = None,
    as_json: JsonOption = False,
) -> None:
    """Write the run's weights as a Hugging Face folder.

    The folder contains safetensors, a tokenizer and a model card. Works whether or not a node runs
    in the home, and after p2ptrain ckpt fetch. Every chunk is checked against its certified digest,
    and the folder is created completely or not at all.
    """
    from p2ptrain.export.atomic_folder import clear_away
    from p2ptrain.export.choosing import find
    from p2ptrain.export.folder import Plan, check_target, export
    from p2ptrain.export.parity import hindrance, is_wanted
    from p2ptrain.store import StoreReader
    from p2ptrain.trainer.formats.shapes import parameter_count

    assert to is Target.HF, "hf is the only format"
    folder = folder.expanduser().absolute()
    for left in clear_away(folder):
        progress(f"removed {left}, the remains of an export that was killed")
    check_target(folder, force=force)
    where = open_home(home, to_write=False)
    run, store = run_of(where), StoreReader(where.store)
    parameters = parameter_count(run.manifest.model)
    compared = is_wanted(parity, parameters)
    found = find(run, _chain(where, run), store, snapshot, progress)
    tokenizer = _tokenizer(run, store)
    plan = Plan(run.manifest.model, found.origin, tokenizer, dtype.value, shard_mb * 1_000_000)
    seen: list[Parity] = []
    exported = export(plan, found.theta, folder, force=force, look=_looking(compared, seen))
    if as_json:
        more = {"dtype": plan.dtype, "updates_after": found.updates_after}
        result_json(_facts(found.origin, exported, seen) | more)
    else:
        lacking = hindrance(parameters) if parity is None else "--no-parity"
        for line in _lines(found.origin, exported, seen, lacking):
            result(line)
    if found.updates_after:
        progress(
            f"{found.updates_after} outer steps ended after that snapshot; --snapshot head "
            "includes those whose updates are held here"
        )


def _looking(compared: bool, seen: list[Parity]) -> Callable[[Path], None]:
    """Return a `Look` function. If `compared`, it compares the logits of a folder and appends the
    result to `seen`."""
    from p2ptrain.export.parity import compare

    def look(written: Path) -> None:
        if compared:
            seen.append(compare(written))

    return look


def export_newest(home: Path, folder: Path) -> Path:
    """Export the newest certified snapshot in `home` to `folder`, and return that folder."""
    from p2ptrain.export.choosing import find
    from p2ptrain.export.folder import Plan, export
    from p2ptrain.store import StoreReader

    where = open_home(home, to_write=False)
    run, store = run_of(where), StoreReader(where.store)
    found = find(run, _chain(where, run), store, "newest", progress)
    tokenizer = _tokenizer(run, store)
    progress(f"the newest snapshot held here is that of outer step {found.origin.step}")
    return export(Plan(run.manifest.model, found.origin, tokenizer), found.theta, folder).folder


def _tokenizer(run: Run, store: StoreReader) -> Tokenizer:
    """Read the run's tokenizer from the store. Raises StoreError."""
    from p2ptrain.export.tokens import Tokenizer

    manifest = run.manifest
    return Tokenizer.of(store.read_blob(manifest.tokenizer), manifest.data.document_token)


def _chain(where: Home, run: Run) -> Chain:
    """Read the ledger in the home and check each certificate. Raises StoreError."""
    from p2ptrain.archive.amendments import Amendments
    from p2ptrain.archive.chain_reader import Walk, records_in
    from p2ptrain.archive.ledger_on_disk import rules_of
    from p2ptrain.archive.replay import account_of
    from p2ptrain.export.choosing import Chain

    walk = Walk(rules_of(run), records_in(where.ledger), where.ledger)
    tokens_before = {walk.begins.step: walk.begins.tokens}
    account = account_of(run.manifest, walk.begins, _counted(walk, tokens_before))
    amendments = Amendments.of(where, run)
    return Chain(account, tokens_before, walk.state.height, walk.state.head, amendments)


def _counted(walk: Walk, tokens_before: dict[int, int]) -> Iterator[Certified]:
    for link in walk.links():
        tokens_before[link.after.step] = link.after.tokens
        yield link.certified


def _facts(origin: Provenance, exported: Exported, seen: list[Parity]) -> dict[str, object]:
    return {
        **asdict(origin),
        "folder": str(exported.folder),
        "files": list(exported.files),
        "bytes": exported.bytes,
        "theta": exported.theta,
        "parity": asdict(seen[0]) if seen else None,
    }


def _lines(
    origin: Provenance, exported: Exported, seen: list[Parity], lacking: str
) -> Iterator[str]:
    """Return the lines to print. `lacking` says why logits were not compared if `seen` is empty."""
    from p2ptrain.observe.states import size

    if origin.loudly is not None:
        yield origin.loudly
    tokens = "" if origin.tokens is None else f", after {origin.tokens:,} tokens"
    yield f"{exported.folder}: {origin.run_name} before outer step {origin.step}{tokens}"
    yield f"{origin.words}; θ {exported.theta}"
    yield f"{len(exported.files)} files, {size(exported.bytes)}"
    for parity in seen:
        yield parity.words
    if not seen:
        yield f"the logits were not compared with transformers: {lacking}"
    yield f"p2ptrain chat {shlex.quote(str(exported.folder))}"

"""`p2ptrain watch --weights DIR`: take a run's public weights without admission or a home.

The chunks are kept in `DIR.chunks` until the folder is complete, so that an interrupted command
goes on where it stopped.
"""

from __future__ import annotations

import shutil
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

from p2ptrain.cli.output import progress, result, result_json
from p2ptrain.cli.outside import outside

if TYPE_CHECKING:
    from p2ptrain.config.node import NodeConfig
    from p2ptrain.export.choosing import ChainContents
    from p2ptrain.node.watching.take_weights import TakenWeights


def write_weights(config: NodeConfig, folder: Path, *, as_json: bool) -> None:
    """Fetch the newest certified weights, and write them to the new folder `folder`.

    Raises P2PTrainError: the folder exists, or the weights cannot be fetched; the error says why.
    """
    from p2ptrain.export.atomic_folder import clear_away
    from p2ptrain.export.folder import check_target
    from p2ptrain.node.watching.take_weights import take_weights

    folder = folder.expanduser().absolute()
    clear_away(folder)
    check_target(folder, force=False)
    chunks = folder.with_name(f"{folder.name}.chunks")
    taken = take_weights(config, chunks, progress)
    progress(f"fetched {taken.bytes_fetched / 1e6:,.1f} MB in {taken.seconds:.0f} s")
    _write(taken, chunks, folder, as_json=as_json)
    shutil.rmtree(chunks, ignore_errors=True)


def _write(taken: TakenWeights, chunks: Path, folder: Path, *, as_json: bool) -> None:
    """Export the fetched snapshot to `folder`, and print what it is. Raises P2PTrainError."""
    from p2ptrain.cli.commands.export import chat_command, described
    from p2ptrain.export.choosing import find
    from p2ptrain.export.folder import ExportPlan, export
    from p2ptrain.export.tokens import Tokenizer
    from p2ptrain.store import StoreReader

    store, manifest = StoreReader(chunks), taken.run.manifest
    found = find(taken.run, chain_of(taken, chunks), store, "newest", progress)
    tokenizer = Tokenizer.of(store.read_blob(manifest.tokenizer), manifest.data.document_token)
    what = manifest.model, found.origin, tokenizer
    plan = ExportPlan(*what, certificate=found.certificate)
    exported = export(plan, found.theta, folder, free=outside().disk_free_bytes)
    if as_json:
        told = {"bytes_fetched": taken.bytes_fetched, "updates_after": found.updates_after}
        files = {"folder": str(folder), "files": list(exported.files), "theta": exported.theta}
        result_json({**asdict(found.origin), **files, **told})
        return
    for line in (*described(found.origin, exported), chat_command(exported)):
        result(line)


def chain_of(taken: TakenWeights, chunks: Path) -> ChainContents:
    """Return what the observer knows of the ledger, in the form in which an export reads it."""
    from p2ptrain.archive.amendments import Amendments
    from p2ptrain.archive.replay import CertifiedSnapshot, ChainFacts, FactSource
    from p2ptrain.export.choosing import ChainContents

    named = taken.snapshot
    source = FactSource(named.height, named.signed_by)
    certified = {named.step: CertifiedSnapshot(named.step, named.digest, source)}
    tokens = {} if named.tokens is None else {named.step: named.tokens}
    return ChainContents(
        ChainFacts(taken.step, {}, certified),
        tokens,
        taken.height,
        taken.head,
        # An export of a certified snapshot replays nothing, so it needs no amendments.
        Amendments(taken.run, chunks / "no-amendments"),
        {} if named.named_by is None else {named.height: named.named_by},
    )

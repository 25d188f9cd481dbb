"""Publish a run: pack the data, create the first weights, store both, and sign the manifest.

The manifest is written last, so an interrupted `run publish` does not create a run. The next
`run publish` reuses the data that the interrupted one has already stored.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from p2ptrain.archive.home import Home
from p2ptrain.config.run_file import RunFile, load_run_file
from p2ptrain.errors import ConfigError
from p2ptrain.identity import Identity, load_or_create
from p2ptrain.ids import Digest, PeerId
from p2ptrain.observe.states import size
from p2ptrain.prepare.machine_check import check_publishing
from p2ptrain.prepare.pack_data import PrintLine, make_data
from p2ptrain.prepare.run_advice import founders_lints
from p2ptrain.run import Allowlist, Run, SignedAllowlist, save_allowlist, save_run
from p2ptrain.run.draft import DraftedRun, draft_manifest, model_spec
from p2ptrain.state import snapshot_meta, write_state
from p2ptrain.store import Store
from p2ptrain.trainer.formats.genesis import genesis
from p2ptrain.trainer.formats.shapes import layout_of


def publish_run(
    run_path: Path,
    home: Home,
    *,
    founders: Sequence[PeerId],
    allowed: Sequence[PeerId],
    print_line: PrintLine,
) -> Run:
    """Create the run that the file `run_path` describes, and store it in `home` (the folder with
    the organiser's files).

    If `founders` is empty, the organiser is the only founder. The organiser and all founders are
    put on the allowlist, as are the peers in `allowed`. If several organisers must sign each list,
    no list is stored: the caller makes a proposal. The run can begin without a list.

    Raises:
        ConfigError: the run file is invalid, the training data cannot be read or are too small, or
            the home already contains a run.
        MachineUnfit: the first weights cannot be created on this machine.
        StoreError: the store is in use, or the disk is full.
    """
    if home.manifest.exists():
        raise ConfigError(
            f"the home {home.root} already contains a run",
            code="RUN-EXISTS",
            do="use a different home for this run: --home DIR",
        )
    run_file = load_run_file(run_path)
    for lint in founders_lints(run_file, len(set(founders)) or 1):
        print_line(f"warning: {lint.words}")
    organiser = load_or_create(home.identity)
    with Store(home.store) as store:
        made = _make(run_file, run_path.parent, home, store, print_line)
    manifest = draft_manifest(
        run_file,
        made,
        organiser=organiser.peer,
        founders=tuple(dict.fromkeys(founders)) or (organiser.peer,),
        created_unix=int(time.time()),
    )
    run = Run.publish(organiser, manifest)
    signed = first_list(run, organiser, allowed)
    if manifest.organisers.signatures_min == 1:
        save_allowlist(home.allowlist, signed)
    save_run(home.manifest, run)
    print_line(
        f"signed run {manifest.name!r}; peers on its allowlist: {len(signed.allowlist.peers)}"
    )
    return run


def first_list(run: Run, organiser: Identity, allowed: Sequence[PeerId]) -> SignedAllowlist:
    """Return the first allowlist of `run`, signed by `organiser` alone."""
    peers = [*run.manifest.organiser_keys, *run.manifest.founders, *allowed]
    return SignedAllowlist.publish(organiser, Allowlist.of(run.id, 1, peers))


def _make(
    run_file: RunFile, folder: Path, home: Home, store: Store, print_line: PrintLine
) -> DraftedRun:
    """Create and store the data and the first weights. Return their digests."""
    # Check the machine first, because packing the data may take hours.
    check_publishing(home, layout_of(model_spec(run_file)).numel)
    data = make_data(run_file, folder, store, home.root / "packing", print_line)
    print_line(data.words)
    genesis_digest, layout_digest = _store_genesis(run_file, store, print_line)
    return DraftedRun(
        data.tokenizer,
        data.index,
        data.train_blocks,
        data.validation_blocks,
        genesis_digest,
        layout_digest,
        data.document_token,
    )


def _store_genesis(run_file: RunFile, store: Store, print_line: PrintLine) -> tuple[Digest, Digest]:
    """Store the snapshot of θ and m before outer step 0. Return the digests of the snapshot and of
    the layout.

    The snapshot's `meta` does not contain the run's id, because the id is a digest of the manifest,
    which contains the snapshot's digest.
    """
    spec = model_spec(run_file)
    layout = layout_of(spec)
    theta = genesis(spec, run_file.model.seed)
    meta = snapshot_meta(None, 0, layout.digest)
    digest = write_state(store, theta, np.zeros_like(theta), meta)
    print_line(f"first weights: {layout.numel} elements, {size(theta.nbytes)}")
    return digest, layout.digest

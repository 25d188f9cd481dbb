"""A small published run in a home, with its data and its initial weights."""

from __future__ import annotations

import atexit
import json
import os
import shutil
import tempfile
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

import numpy as np

from p2ptrain.archive.home import Home
from p2ptrain.data.blocks import encode_block
from p2ptrain.identity import load_or_create
from p2ptrain.ids import Digest, PeerId
from p2ptrain.ipc.trainer_config import InnerSpec, JoinOptimizer, ModelSpec
from p2ptrain.run import (
    Allowlist,
    DataIndex,
    Run,
    RunManifest,
    SignedAllowlist,
    data_index,
    load_allowlist,
    save_allowlist,
    save_run,
)
from p2ptrain.run.co_organisers import NO_CO_ORGANISERS, CoOrganisers
from p2ptrain.run.manifest import CodecSpec, DataSpec, OuterSpec, Policy
from p2ptrain.run.outside_facts import NO_SAMPLES, NOTHING_PUBLIC, Public, SamplePrompts
from p2ptrain.run.trust_rules import NOTHING_CHECKED, TrustRules
from p2ptrain.state import snapshot_meta, write_state
from p2ptrain.store import Store
from p2ptrain.sync import SyncSpec
from p2ptrain.trainer.formats.genesis import genesis as first_weights
from p2ptrain.trainer.formats.shapes import layout_of

MODEL = ModelSpec(vocab=64, layers=1, width=16, heads=2, kv_heads=1, ffn=16, sequence=8)
BLOCK_TOKENS = 2 * MODEL.sequence
BLOCKS = 96
CHUNK_BYTES = 4096
SYLLABLES = tuple(
    first + rest for first in "bdfgklmn" for rest in ("a", "e", "i", "o", "u", "ai", "au", "oi")
)
WORDS = ("once", "upon", "a", "time", *SYLLABLES[:59], "[UNK]")
"""The vocabulary: one token for each word."""

TOKENIZER: dict[str, object] = {
    "version": "1.0",
    "truncation": None,
    "padding": None,
    "added_tokens": [],
    "normalizer": None,
    "pre_tokenizer": {"type": "Whitespace"},
    "post_processor": None,
    "decoder": None,
    "model": {
        "type": "WordLevel",
        "vocab": {word: number for number, word in enumerate(WORDS)},
        "unk_token": "[UNK]",
    },
}


def policy(**changes: object) -> Policy:
    """Return a policy with timeouts for many nodes on one machine."""
    usual = Policy(
        quorum="majority",
        quorum_loss="wait",
        grace_s=1.0,
        round_timeout_s=1.0,
        patience_s=0.2,
        attempts_max=4,
        participants_min=2,
        snapshot_every=2,
        evaluate_every=1,
        chunk_bytes=CHUNK_BYTES,
    )
    return replace(usual, **changes)  # type: ignore[arg-type]


@dataclass(frozen=True)
class PublishedContent:
    """The data and initial weights of all runs that this module publishes, in a store in
    `folder`."""

    folder: Path
    tokenizer: Digest
    index: Digest
    genesis: Digest


@cache
def content() -> PublishedContent:
    """Make the content once, since writing a hundred chunks takes time. `share_content` copies
    it."""
    folder = Path(tempfile.mkdtemp(prefix="p2ptrain-content-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    theta = first_weights(MODEL, 1)
    with Store(folder, chunk_bytes=CHUNK_BYTES) as store:
        blocks = tuple(
            store.put_chunk(block_file(number), durable=False) for number in range(BLOCKS + 2)
        )
        index = DataIndex(blocks[:-2], blocks[-2:]).to_bytes()
        meta = snapshot_meta(None, 0, layout_of(MODEL).digest)
        return PublishedContent(
            folder,
            store.put_blob("tokenizer", [json.dumps(TOKENIZER).encode()], {}),
            store.put_blob(data_index.KIND, [index], {}),
            write_state(store, theta, np.zeros_like(theta), meta),
        )


def block_file(number: int) -> bytes:
    """Return a data block of ascending tokens, which a real trainer can learn. All blocks are
    different."""
    assert 2 * MODEL.sequence == BLOCK_TOKENS
    starts = np.array([[number % MODEL.vocab], [number // MODEL.vocab]])
    rows = (starts + np.arange(MODEL.sequence + 1)) % MODEL.vocab
    return encode_block(rows, MODEL.vocab)


def manifest_of(
    organiser: PeerId,
    *,
    steps: int = 4,
    inner_steps: int = 2,
    founders: Sequence[PeerId] = (),
    admission: str = "allowlist",
    rules: Policy | None = None,
    codec: CodecSpec | None = None,
    sync: SyncSpec | None = None,
    join_optimizer: JoinOptimizer = "fresh",
    join_warmup_steps: int = 0,
    organisers: CoOrganisers = NO_CO_ORGANISERS,
    public: Public = NOTHING_PUBLIC,
    samples: SamplePrompts = NO_SAMPLES,
    trust: TrustRules = NOTHING_CHECKED,
) -> RunManifest:
    made = content()
    return RunManifest(
        name="swarm",
        organiser=organiser,
        created_unix=1_790_000_000,
        model=MODEL,
        tokenizer=made.tokenizer,
        data=DataSpec(made.index, BLOCKS, 2, BLOCK_TOKENS),
        inner=InnerSpec(
            steps=inner_steps,
            batch_sequences=2,
            lr=0.1,
            warmup_steps=0,
            total_steps=1000,
            join_optimizer=join_optimizer,
            join_warmup_steps=join_warmup_steps,
        ),
        outer=OuterSpec(lr=0.7, momentum=0.5, steps=steps),
        sync=sync or SyncSpec(),
        codec=codec or CodecSpec("int8", 64),
        policy=rules or policy(),
        genesis=made.genesis,
        layout=layout_of(MODEL).digest,
        founders=tuple(founders) or (organiser,),
        admission=admission,  # type: ignore[arg-type]
        organisers=organisers,
        public=public,
        samples=samples,
        trust=trust,
    )


def publish(home: Home, *, allowed: Sequence[PeerId] = (), **settings: object) -> Run:
    """Publish a run in `home`, with its data, its initial weights and its allowlist."""
    organiser = load_or_create(home.identity)
    share_content(home)
    manifest = manifest_of(organiser.peer, **settings)  # type: ignore[arg-type]
    run = Run.publish(organiser, manifest)
    listed = Allowlist.of(run.id, 1, [organiser.peer, *manifest.founders, *allowed])
    if manifest.organisers.signatures_min == 1:
        save_allowlist(home.allowlist, SignedAllowlist.publish(organiser, listed))
    save_run(home.manifest, run)
    return run


def copy_run(first: Home, run: Run, others: Iterable[Home]) -> None:
    """Copy `run`, which was published in `first`, with its allowlist and its content into the homes
    of other nodes."""
    listed = load_allowlist(first.allowlist, run)
    assert listed is not None
    for home in others:
        save_run(home.manifest, run)
        save_allowlist(home.allowlist, listed)
        share_content(home)


def share_content(home: Home) -> None:
    """Copy the common content into `home`."""
    shutil.copytree(content().folder, home.store, copy_function=_share)


def _share(source: str, target: str) -> None:
    """Link chunks, which never change, so that one copy serves all stores; copy the rest."""
    is_chunk = len(Path(source).name) > 32
    (os.link if is_chunk else shutil.copy2)(source, target)

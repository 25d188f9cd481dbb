"""Find the weights to export in this machine's store, and say who certified them.

The caller has read the ledger and checked its certificates. A snapshot that no ledger entry names
can also be exported, but only if the user gives its full digest, so that nobody exports one by
mistake. The export is then marked as uncertified.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from p2ptrain.archive.amendments import Amendments
from p2ptrain.archive.replay import CertifiedSnapshot, ChainFacts, Replay, ReplayResult, choose
from p2ptrain.errors import ChunkMissing, ConfigError, ManifestInvalid, StoreError, TryLater
from p2ptrain.export.certificate import SnapshotCertificate
from p2ptrain.export.provenance import Provenance, Standing
from p2ptrain.export.source import Theta, ThetaInMemory, ThetaOfSnapshot
from p2ptrain.ids import Digest, is_digest
from p2ptrain.ledger.chain.values import Certified, LineId
from p2ptrain.run import Run
from p2ptrain.state import SNAPSHOT, snapshot_meta
from p2ptrain.store import BlobManifest, StoreReader
from p2ptrain.suggested_command import to_paste
from p2ptrain.trainer.formats.shapes import layout_of

HEAD = "head"
"""The user's word for the newest outer step in the ledger, whose weights a replay computes."""


@dataclass(frozen=True, slots=True)
class ChainContents:
    """The content of the ledger on this machine. `tokens_before` maps each outer step to the tokens
    committed before it. `height` and `head` are the height and the digest of the last entry.
    `amendments` are the changes of the run's settings that this machine knows. `naming` maps the
    height of each entry that names a snapshot to that entry, with the line that decided it."""

    account: ChainFacts
    tokens_before: Mapping[int, int]
    height: int
    head: Digest
    amendments: Amendments
    naming: Mapping[int, tuple[LineId, Certified]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class ExportableState:
    """The weights to export, and their origin. `updates_after` is the number of newer outer steps
    in the ledger. `certificate` certifies the weights themselves; None if nothing does."""

    origin: Provenance
    theta: Theta
    updates_after: int = 0
    certificate: SnapshotCertificate | None = None


def find(
    run: Run,
    chain: ChainContents,
    store: StoreReader,
    wanted: str,
    print_line: Callable[[str], None],
) -> ExportableState:
    """Return the weights that `wanted` names: "newest" or "genesis" for a snapshot, an outer step,
    the first characters of a snapshot's digest, or "head" for a replay up to the newest outer step.
    `print_line` is called with the progress of the replay.

    Raises:
        ConfigError: there is no such snapshot, or parts of it are not in the store.
        StoreError: the store is damaged, or does not contain any complete snapshot.
        TryLater: (AUDIT-PARTIAL) "head" was wanted, but some updates are not in the store.
    """
    if wanted == HEAD:
        return _replayed(run, chain, store, print_line)
    try:
        named = choose(chain.account, store, wanted)
    except ConfigError:
        manifest = _uncertified(run, chain.account, store, wanted)
        if manifest is None:
            raise
        step = manifest.meta["step"]
        assert isinstance(step, int)
        origin = _origin(run, chain, "uncertified", step, manifest.digest)
        return ExportableState(origin, _theta(run, store, manifest.digest))
    if named is None:
        raise _nothing_held(chain.account, store)
    origin = _origin(run, chain, "certified", named.step, named.digest, named)
    theta = _theta(run, store, named.digest)
    _check_meta(run, theta.manifest, named)
    after = chain.account.end - named.step
    return ExportableState(origin, theta, after, _certificate(run, chain, named))


def _theta(run: Run, store: StoreReader, digest: Digest) -> ThetaOfSnapshot:
    return ThetaOfSnapshot(store, digest, layout_of(run.manifest.model).numel)


def _certificate(
    run: Run, chain: ChainContents, named: CertifiedSnapshot
) -> SnapshotCertificate | None:
    """Return the certificate of a snapshot; None if this machine does not have the entry that names
    it any more."""
    height = named.source.height
    if height and height not in chain.naming:
        return None
    return SnapshotCertificate.of(run, chain.naming.get(height))


def _origin(
    run: Run,
    chain: ChainContents,
    standing: Standing,
    step: int,
    snapshot: Digest,
    named: CertifiedSnapshot | None = None,
    updates: int = 0,
) -> Provenance:
    manifest = run.manifest
    return Provenance(
        run=run.id,
        run_name=manifest.name,
        organiser=manifest.organiser,
        step=step,
        steps_planned=manifest.outer.steps,
        tokens=chain.tokens_before.get(step),
        standing=standing,
        snapshot=snapshot,
        snapshot_step=step if named is None else named.step,
        updates=updates,
        entry_height=None if named is None else named.source.height,
        signed_by=() if named is None else named.source.signed_by,
        ledger_height=chain.height,
        ledger_head=chain.head,
        data_index=manifest.data.index,
        train_blocks=manifest.data.train_blocks,
        block_tokens=manifest.data.block_tokens,
        description=manifest.about.description,
        licence=manifest.about.licence,
        contact=manifest.about.contact,
    )


def _check_meta(run: Run, manifest: BlobManifest, named: CertifiedSnapshot) -> None:
    """Check that the certified snapshot describes this run and step. Raises ManifestInvalid."""
    ours = snapshot_meta(run.id if named.step else None, named.step, run.manifest.layout)
    if dict(manifest.meta) != {"numel": layout_of(run.manifest.model).numel, **ours}:
        raise ManifestInvalid(
            f"the snapshot {named.digest} describes itself as {dict(manifest.meta)}, which is "
            f"not what entry {named.source.height} certified"
        )


def _uncertified(
    run: Run, account: ChainFacts, store: StoreReader, text: str
) -> BlobManifest | None:
    """Return the uncertified snapshot of this run whose digest is exactly `text`, or None."""
    if not is_digest(text) or any(each.digest == text for each in account.snapshots.values()):
        return None
    manifest = store.manifest_if_any(Digest(text))
    if manifest is None or manifest.kind != SNAPSHOT or not store.holds_blob(Digest(text)):
        return None
    step, layout = manifest.meta.get("step"), run.manifest.layout
    if type(step) is not int or step < 0 or manifest.meta.get("run") != run.id:
        return None
    return manifest if manifest.meta.get("layout") == layout else None


def _replayed(
    run: Run, chain: ChainContents, store: StoreReader, print_line: Callable[[str], None]
) -> ExportableState:
    named = choose(chain.account, store, "newest")
    if named is None:
        raise _nothing_held(chain.account, store)
    end = chain.account.end
    replay = Replay(
        run,
        chain.account,
        store,
        named,
        lambda step: print_line(f"replayed outer step {step} of {end}"),
        chain.amendments,
    )
    verdict = replay.replay()
    _check_whole(verdict, end, store)
    assert replay.theta is not None
    standing: Standing = "replayed" if verdict.updates else "certified"
    origin = _origin(run, chain, standing, verdict.reached, named.digest, named, verdict.updates)
    if not verdict.updates:
        certificate = _certificate(run, chain, named)
        return ExportableState(origin, _theta(run, store, named.digest), 0, certificate)
    return ExportableState(origin, ThetaInMemory(replay.theta))


def _check_whole(verdict: ReplayResult, end: int, store: StoreReader) -> None:
    """Check that the replay reached the newest outer step. Raises StoreError, TryLater."""
    home = store.root.parent
    if verdict.difference is not None:
        raise StoreError(
            verdict.difference.what,
            code="CKPT-HASH",
            likely="the disk that holds the store is faulty",
            do=f"{to_paste(home, 'verify')} says which entry is affected; --snapshot newest does "
            "not need updates",
        )
    if verdict.missing is not None:
        lacking = verdict.missing
        raise TryLater(
            f"cannot replay the ledger to outer step {end}, the newest one: this home does not "
            f"contain the {lacking.kind} of outer step {lacking.step}",
            code="AUDIT-PARTIAL",
            evidence=[lacking.digest],
            likely="the snapshot was fetched with --no-updates, or this node is still fetching",
            do=f"{to_paste(home, 'ckpt fetch')}; or --snapshot newest, which does not need updates",
        )


def _nothing_held(account: ChainFacts, store: StoreReader) -> ChunkMissing:
    newest = max(account.snapshots, default=None)
    told = f"the newest certified snapshot is that of outer step {newest}"
    return ChunkMissing(
        "this home does not contain a complete certified snapshot",
        evidence=[] if newest is None else [told],
        likely="this node has not fetched a snapshot yet",
        do=to_paste(store.root.parent, "ckpt fetch"),
    )

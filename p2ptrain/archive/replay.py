"""Replay a run from its ledger, updates and snapshots, and compare the results.

There are two passes. The first pass reads the entries, which the caller has verified, and records
how each outer step ended: its update, its certified snapshot, and the signers. The second pass
starts at a stored snapshot, and applies the updates with the kernel that every node uses. It
compares the result with each later snapshot, chunk by chunk. The replay ends at the first
difference, or at the first missing bytes.

A replay needs memory for θ, m and one update, like a node, and about 200 bytes for each outer step.
The home (the folder with a node's files) is not trusted, locked or changed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Literal

from p2ptrain.archive.amendments import Amendments
from p2ptrain.archive.outer_step import OuterStep, OuterSteps
from p2ptrain.archive.update_format import ReduceShape
from p2ptrain.errors import (
    ChunkCorrupt,
    ChunkMissing,
    ConfigError,
    ManifestInvalid,
    RemoteProtocolError,
    counted,
)
from p2ptrain.ids import Digest, PeerId
from p2ptrain.ledger.chain.state import LedgerState
from p2ptrain.ledger.chain.values import Certified, Commit, Roster, Skip, SnapshotRef, Terms
from p2ptrain.run import Run, RunManifest
from p2ptrain.state import Float32Vector, OuterState, snapshot_meta
from p2ptrain.store import BlobManifest, StoreReader
from p2ptrain.suggested_command import to_paste
from p2ptrain.trainer.formats.shapes import layout_of

SHOWN_MAX = 12
_PREFIX = 8
"""Minimum number of characters of a digest to select a snapshot."""

Kind = Literal["entry", "amendment", "update", "snapshot", "state"]


@dataclass(frozen=True, slots=True)
class FactSource:
    """The entry that a fact comes from, and its signers. Height 0 is the run's manifest."""

    height: int
    signed_by: tuple[PeerId, ...]


@dataclass(frozen=True, slots=True)
class EndedStep:
    """How outer step `step` ended: with `update`, or None if it was skipped. `opened` is the reduce
    that computed the update.
    """

    step: int
    update: Digest | None
    source: FactSource
    opened: ReduceShape | None = None


@dataclass(frozen=True, slots=True)
class CertifiedSnapshot:
    """A certified snapshot of θ and m before outer step `step`."""

    step: int
    digest: Digest
    source: FactSource


@dataclass(frozen=True, slots=True)
class ChainFacts:
    """The facts in a chain about each outer step from `first_step` on. `snapshots` are keyed by
    their step; `amended` are the agreed amendments, each with the entry that it comes from.
    """

    first_step: int
    steps: Mapping[int, EndedStep]
    snapshots: Mapping[int, CertifiedSnapshot]
    amended: tuple[tuple[Terms, FactSource], ...] = ()

    @property
    def terms(self) -> tuple[Terms, ...]:
        return tuple(terms for terms, _ in self.amended)

    @property
    def end(self) -> int:
        """The outer step in progress."""
        return self.first_step + len(self.steps)


def chain_facts(
    manifest: RunManifest, begins: LedgerState, entries: Iterable[Certified]
) -> ChainFacts:
    """Collect the facts in `entries`, which follow the state `begins`. Reads each entry once."""
    snapshots: dict[int, CertifiedSnapshot] = {}
    if begins.step == 0:
        snapshots[0] = CertifiedSnapshot(0, manifest.genesis, FactSource(0, (manifest.organiser,)))
    steps: dict[int, EndedStep] = {}
    amended = [(terms, FactSource(begins.height, ())) for terms in begins.terms]
    opened = None if begins.roster is None else ReduceShape.by(begins.roster)
    for certified in entries:
        value = certified.entry.value
        if isinstance(value, Roster) and value.participants:
            opened = ReduceShape.by(value)
        source = FactSource(certified.entry.height, tuple(sorted(certified.certificate.voters)))
        match value:
            case Roster(terms=Terms() as terms):
                amended.append((terms, source))
            case Commit(step=step, update=update, snapshot=snapshot):
                steps[step] = EndedStep(step, update, source, opened)
                if isinstance(snapshot, SnapshotRef) and snapshot.step >= begins.step:
                    named = CertifiedSnapshot(snapshot.step, snapshot.digest, source)
                    snapshots[named.step] = named
            case Skip(step=step):
                steps[step] = EndedStep(step, None, source)
    return ChainFacts(begins.step, steps, snapshots, tuple(amended))


@dataclass(frozen=True, slots=True)
class Difference:
    """The first difference from what was certified. `height` and `signed_by` are those of the entry
    that certified it.
    """

    kind: Kind
    height: int | None
    step: int | None
    digest: Digest | None
    what: str
    signed_by: tuple[PeerId, ...]


@dataclass(frozen=True, slots=True)
class MissingBytes:
    """The bytes that the replay needs next but that are missing."""

    kind: Kind
    step: int
    digest: Digest


@dataclass(frozen=True, slots=True)
class ReplayResult:
    """How far a replay got. `state` is the digest of θ and m at its end."""

    begun: int
    reached: int
    updates: int
    compared: tuple[CertifiedSnapshot, ...]
    state: Digest | None
    difference: Difference | None = None
    missing: MissingBytes | None = None


def held_starts(account: ChainFacts, store: StoreReader) -> list[CertifiedSnapshot]:
    """Return the certified snapshots that are completely stored, oldest first. Raises StoreError
    only for disk errors.
    """
    return [named for _, named in sorted(account.snapshots.items()) if _is_whole(store, named)]


def _is_whole(store: StoreReader, named: CertifiedSnapshot) -> bool:
    try:
        return store.holds_blob(named.digest)
    except ManifestInvalid:
        return True  # The snapshot is stored; a replay from it will report the error.


def choose(account: ChainFacts, store: StoreReader, wanted: str) -> CertifiedSnapshot | None:
    """Return the stored snapshot at which to start a replay. `wanted` is "newest", "oldest" (the
    oldest of the snapshots from which a replay gets furthest), or as in `snapshot_named`. Return
    None for "newest" or "oldest" if no snapshot is stored.

    Raises ConfigError for another word, or for a snapshot that is not stored.
    """
    starts = held_starts(account, store)
    if wanted == "oldest":
        reached = reaches(account, store)
        return max(starts, key=lambda each: (reached[each.step], -each.step), default=None)
    if wanted == "newest":
        return starts[-1] if starts else None
    named = snapshot_named(account, wanted)
    if named not in starts:
        held = ", ".join(str(each.step) for each in starts)
        fetch = to_paste(store.root.parent, f"ckpt fetch {named.step}")
        raise ConfigError(
            f"the snapshot of outer step {named.step} is not completely stored here",
            do=fetch + (f", or choose one of {held}" if held else ""),
        )
    return named


def snapshot_named(account: ChainFacts, text: str) -> CertifiedSnapshot:
    """Return the certified snapshot for "newest", "genesis", an outer step's number, or the first
    characters of a digest.

    Raises ConfigError.
    """
    by_step = account.snapshots
    if text == "newest" and by_step:
        return by_step[max(by_step)]
    found = [each for each in by_step.values() if text in _spellings(each)]
    if _PREFIX <= len(text) < 64:
        found += [each for each in by_step.values() if each.digest.startswith(text)]
    if len(found) == 1:
        return found[0]
    steps = ", ".join(map(str, sorted(by_step)[-SHOWN_MAX:])) or "none"
    raise ConfigError(
        f"{text[:80]!r} is not a certified snapshot of this run",
        evidence=[f"there are certified snapshots of outer steps {steps}"],
        do="use newest, genesis, an outer step, or the first 8 or more characters of a digest",
    )


def _spellings(named: CertifiedSnapshot) -> set[str]:
    return {str(named.step), named.digest, *(["genesis"] if named.source.height == 0 else [])}


def reaches(account: ChainFacts, store: StoreReader) -> dict[int, int]:
    """Return, for each outer step, the step that a replay from there reaches: the first step whose
    update is missing, or the step in progress.
    """
    reached = {account.end: account.end}
    for step in range(account.end - 1, account.first_step - 1, -1):
        update = account.steps[step].update
        held = update is None or store.has_chunk(update)
        reached[step] = reached[step + 1] if held else step
    return reached


class _ReplayEnded(Exception):
    """The replay has met a difference or missing bytes."""

    def __init__(self, found: Difference | MissingBytes) -> None:
        super().__init__()
        self.found = found


@dataclass(slots=True)
class Replay:
    """A replay from `start` to the end of `account`. `on_step` is called after each outer step."""

    run: Run
    account: ChainFacts
    store: StoreReader
    start: CertifiedSnapshot
    on_step: Callable[[int], None]
    amendments: Amendments
    theta: Float32Vector | None = None
    """θ at the end of the replay; None before that."""
    _updates: int = 0
    _step: int = 0
    _compared: list[CertifiedSnapshot] = field(default_factory=list)
    _outer_steps: OuterSteps = field(init=False)

    def __post_init__(self) -> None:
        self._outer_steps = OuterSteps(self.run.id, self.run.manifest, self.amendments)

    def replay(self) -> ReplayResult:
        """Run the replay. Raises StoreError only for disk errors, such as STORE-IO."""
        layout = layout_of(self.run.manifest.model)
        self._step = self.start.step
        state = OuterState(layout.numel)
        found: Difference | MissingBytes | None = None
        try:
            self._begin(state)
            for step in range(self.start.step, self.account.end):
                self._advance(state, step)
        except _ReplayEnded as ended:
            found = ended.found
        finally:
            state.close()
        self.theta = state.theta
        return ReplayResult(
            begun=self.start.step,
            reached=self._step,
            updates=self._updates,
            compared=tuple(self._compared),
            state=state.digest(),
            difference=found if isinstance(found, Difference) else None,
            missing=found if isinstance(found, MissingBytes) else None,
        )

    def _begin(self, state: OuterState) -> None:
        named = self.start
        try:
            manifest = state.load_snapshot(self.store, named.digest)
        except ChunkMissing as exc:
            raise _ReplayEnded(MissingBytes("snapshot", named.step, named.digest)) from exc
        except (ChunkCorrupt, ManifestInvalid) as exc:
            raise _differs("snapshot", named, named.digest, exc.what) from exc
        expected = {"numel": state.numel, **self._meta(named.step)}
        if dict(manifest.meta) != expected:
            what = f"its meta is {dict(manifest.meta)}"
            raise _differs("snapshot", named, named.digest, what)

    def _advance(self, state: OuterState, step: int) -> None:
        ended = self.account.steps[step]
        if ended.update is not None:
            self._apply(state, ended, ended.update)
        self._step = step + 1
        named = self.account.snapshots.get(step + 1)
        if named is not None:
            self._compare(state, named)
        self.on_step(step + 1)

    def _apply(self, state: OuterState, ended: EndedStep, update: Digest) -> None:
        outer_step = self._outer_step(ended)
        rates, form = outer_step.rates, outer_step.update
        try:
            payload = form.read_payload(self.store, update)
            if ended.opened is not None:
                form.check_bound(payload, ended.opened)
        except ChunkMissing as exc:
            raise _ReplayEnded(MissingBytes("update", ended.step, update)) from exc
        except (ChunkCorrupt, ManifestInvalid, RemoteProtocolError) as exc:
            raise _differs("update", ended, update, exc.what) from exc
        state.apply(payload, rates.lr, rates.momentum, form.codec, outer_step.fragment)
        self._updates += 1

    def _outer_step(self, ended: EndedStep) -> OuterStep:
        """Return the terms of the step that `ended`. Raises _ReplayEnded if this node lacks an
        amendment that applies in it, or has a different one.
        """
        terms = self.account.terms
        missing = self.amendments.missing(terms, ended.step)
        if missing is not None:
            raise _ReplayEnded(MissingBytes("amendment", missing.step, missing.digest))
        try:
            return self._outer_steps.at(terms, ended.step)
        except RemoteProtocolError as exc:
            raise _differs("amendment", ended, None, exc.what) from exc

    def _compare(self, state: OuterState, named: CertifiedSnapshot) -> None:
        chunk_bytes = self.run.manifest.policy.chunk_bytes
        computed = state.describe(chunk_bytes, self._meta(named.step))
        held = self.store.manifest_if_any(named.digest)
        if computed.digest != named.digest:
            raise _differs("state", named, named.digest, _unlike(computed, held, named))
        self._compared.append(named)
        for chunk in dict.fromkeys(() if held is None else held.chunks):
            try:
                self.store.get_chunk(chunk)
            except ChunkMissing:
                continue  # An incomplete snapshot is not an error: nobody can start from it here.
            except ChunkCorrupt as exc:
                raise _differs("snapshot", named, named.digest, exc.what) from exc

    def _meta(self, step: int) -> dict[str, object]:
        run = None if step == 0 else self.run.id
        return snapshot_meta(run, step, self.run.manifest.layout)


def _differs(
    kind: Kind, at: EndedStep | CertifiedSnapshot, digest: Digest | None, what: str
) -> _ReplayEnded:
    """Return the end of a replay at a difference from what the entry `at.source` certified."""
    source = at.source
    return _ReplayEnded(Difference(kind, source.height, at.step, digest, what, source.signed_by))


def _unlike(computed: BlobManifest, held: BlobManifest | None, named: CertifiedSnapshot) -> str:
    """Describe in which chunks θ and m differ, if the certified snapshot's manifest is stored."""
    what = f"the updates result in {computed.digest}, not in {named.digest}"
    if held is None or held.chunk_bytes != computed.chunk_bytes:
        return what
    pairs = zip(computed.chunks, held.chunks, strict=False)
    unlike = [index for index, (ours, theirs) in enumerate(pairs) if ours != theirs]
    if not unlike:
        return f"{what}: its meta differs"
    differ = "differs" if len(unlike) == 1 else "differ"
    chunks = counted(len(computed.chunks), "chunk")
    return (
        f"{what}: {len(unlike)} of {chunks} {differ}, the first at byte "
        f"{unlike[0] * computed.chunk_bytes} of θ and m"
    )

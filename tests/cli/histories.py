"""Make a run's history in a home without a network: real entries, updates and snapshots.

The run's only founder signs every entry. Each outer step's update is drawn at random and applied
with the real kernel, and the next commit certifies a snapshot. Use it to test code that reads
homes: audits, retention, benchmarks.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from p2ptrain.archive.chain_log import entry_bytes
from p2ptrain.archive.home import Home
from p2ptrain.archive.ledger_on_disk import rules_of
from p2ptrain.archive.update_format import UpdateFormat, published_formats
from p2ptrain.identity import Identity, load_or_create
from p2ptrain.ids import Digest
from p2ptrain.ledger.chain.apply import apply, genesis
from p2ptrain.ledger.chain.state import LedgerState
from p2ptrain.ledger.chain.values import (
    Certificate,
    Certified,
    Commit,
    Entry,
    Participant,
    Roster,
    SnapshotRef,
    Terms,
    Value,
    vote_message,
)
from p2ptrain.run import Leg, Run, RunManifest, SignedAmendment, save_amendments
from p2ptrain.state import OuterState, snapshot_meta
from p2ptrain.store import Head, RecordLog, Store
from p2ptrain.testing.ledgers import sealing
from p2ptrain.trainer.formats.shapes import layout_of


@dataclass(slots=True)
class WrittenHistory:
    """The content written to a home. `updates` maps outer steps to updates. `snapshots` maps each
    outer step to the snapshot taken before it."""

    run: Run
    chain: list[Certified] = field(default_factory=list)
    updates: dict[int, Digest] = field(default_factory=dict)
    snapshots: dict[int, Digest] = field(default_factory=dict)
    state: Digest | None = None


def make_history(
    home: Home,
    run: Run,
    steps: int,
    amendments: Sequence[SignedAmendment] = (),
    agreed: Mapping[int, Terms] | None = None,
    *,
    deviation: float = 0.01,
) -> WrittenHistory:
    """Write `steps` outer steps of `run` to `home`. Its identity must be the run's only founder.

    The roster of outer step s names the terms `agreed[s]`, if there are any. If `agreed` is None,
    the roster names the s-th of `amendments`. `deviation` is the standard deviation of the updates'
    elements.
    """
    if amendments:
        save_amendments(home.amendments, amendments)
    if agreed is None:
        agreed = {step: each.terms for step, each in enumerate(amendments)}
    history, me = WrittenHistory(run), load_or_create(home.identity)
    manifest, rules = run.manifest, rules_of(run)
    state, outer = genesis(rules), OuterState(layout_of(manifest.model).numel)
    pending: SnapshotRef | None = None
    published = published_formats(run.id, manifest)
    with Store(home.store, chunk_bytes=manifest.policy.chunk_bytes) as store:
        outer.load_snapshot(store, manifest.genesis)
        for step in range(steps):
            amended = _amended(run, amendments, step)
            form = replace(published[step % len(published)], step=step, spec=amended.codec)
            payload = _update(form, deviation)
            history.updates[step] = form.write(store, payload)
            commit = Commit(step, 0, history.updates[step], pending, None if not pending else _ANY)
            opening = replace(_opening(state, me), terms=agreed.get(step))
            for value in (opening, commit):
                history.chain.append(_certified(run, state, value, me))
                state = apply(rules, state, history.chain[-1].entry)
            rates = amended.outer.lr, amended.outer.momentum
            outer.apply(payload, *rates, form.codec, form.fragment)
            pending = None
            if (step + 1) % manifest.policy.snapshot_every == 0:
                meta = snapshot_meta(run.id, step + 1, manifest.layout)
                pending = SnapshotRef(step + 1, outer.write_snapshot(store, meta))
                history.snapshots[step + 1] = pending.digest
                head = Head(run.id, state.height, state.head, step + 1, pending.digest, step + 1)
                store.put_head(head)
    history.state = outer.digest()
    outer.close()
    RecordLog(home.ledger).rewrite(map(entry_bytes, history.chain))
    return history


def _amended(run: Run, amendments: Sequence[SignedAmendment], step: int) -> RunManifest:
    leg = Leg(run.manifest)
    for each in amendments:
        leg = leg.amended(each.amendment) if each.amendment.step <= step else leg
    return leg.manifest


_ANY = Digest("0" * 64)


def _update(form: UpdateFormat, deviation: float) -> bytes:
    vector = np.random.default_rng(form.step).standard_normal(form.numel, dtype=np.float32)
    payload = bytearray(form.payload_bytes)
    form.codec.quantise(vector * np.float32(deviation), payload)
    return bytes(payload)


def _opening(state: LedgerState, me: Identity) -> Roster:
    blocks = len(state.leases[me.peer])
    took_part = (Participant(me.peer, blocks, blocks),)
    return Roster(state.step, state.attempt, state.voters, (), took_part)


def _certified(run: Run, state: LedgerState, value: Value, me: Identity) -> Certified:
    entry = Entry(state.height + 1, state.head, sealing(state, value))
    vote = me.sign(vote_message(run.id, entry.height, 0, entry.digest))
    return Certified(entry, Certificate(entry.height, 0, entry.digest, ((me.peer, vote),)))

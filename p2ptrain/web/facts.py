"""Facts about the run that change seldom: its manifest, its certified snapshots, an invitation.

The manifest and the ledger are read from the node's home. They were checked by the node, so the
signatures of the ledger are not verified again here: `p2ptrain verify` does that.
"""

from __future__ import annotations

import time
from pathlib import Path

import trio

from p2ptrain.archive.chain_log import entry_of, origin_of
from p2ptrain.archive.chain_reader import records_in
from p2ptrain.archive.home import Home
from p2ptrain.errors import P2PTrainError, counted
from p2ptrain.ledger.chain.values import Commit, SnapshotRef
from p2ptrain.names import label, peer_name
from p2ptrain.run import Run, load_run
from p2ptrain.run.outside_facts import DESCRIPTION_CHARACTERS_MAX
from p2ptrain.web import capped
from p2ptrain.web.history import History, Row
from p2ptrain.web.node_client import ask

SNAPSHOTS_MAX = 20
LEDGER_BYTES_MAX = 64 * 2**20
"""Maximum size of a ledger that is read for the list of snapshots. A longer one takes seconds."""

INVITATION_S = 600.0
"""Age in seconds at which the page asks for a new invitation: addresses rarely change."""

RETRY_S = 30.0


class Facts:
    """The facts as they were when they were last read. `refresh` reads what may have changed."""

    def __init__(self, home: Home, history: History) -> None:
        self._home = home
        self._history = history
        self._run: Run | None = None
        self._snapshots: list[Row] = []
        self._read_at_step: object = None
        self._invite: str | None = None
        self._ask_at_s = 0.0

    async def refresh(self, status: Row) -> None:
        """Read what may have changed since the last call, according to the node's status."""
        if self._run is None or self._run.id != status.get("run"):
            self._run = _loaded(self._home.manifest)
        newest = status.get("snapshot_step")
        if newest is not None and newest != self._read_at_step:
            self._read_at_step = newest
            self._snapshots = await trio.to_thread.run_sync(snapshots_in, self._home.ledger)
        if self._run is not None and time.monotonic() >= self._ask_at_s:
            self._invite = await _invitation(self._home.control)
            wait_s = RETRY_S if self._invite is None else INVITATION_S
            self._ask_at_s = time.monotonic() + wait_s

    @property
    def invite(self) -> str | None:
        return self._invite

    @property
    def prompts(self) -> list[str]:
        """The prompts of the run's samples."""
        known = () if self._run is None else self._run.manifest.samples.prompts
        return [capped.text(each) for each in known]

    def run(self) -> Row | None:
        return None if self._run is None else run_facts(self._run)

    def snapshots(self, status: Row | None) -> list[Row]:
        """Return the newest certified snapshots, newest first, with what the history says about
        their outer steps, and the status about their copies."""
        copies = _copies(status or {})
        found: list[Row] = []
        for snapshot in self._snapshots:
            tokens, loss = self._history.loss_before(int(str(snapshot["step"])))
            facts = {
                "tokens": tokens,
                "loss": capped.plain(loss),
                "copies": copies.get(snapshot["digest"]),
            }
            found.append({**snapshot, **facts})
        return found


def _copies(status: Row) -> dict[object, object]:
    """Return how many members have each snapshot, by its digest, as far as the node knows."""
    known = status.get("snapshots")
    rows = known if isinstance(known, list) else []
    return {each.get("digest"): each.get("copies") for each in rows if isinstance(each, dict)}


def _loaded(manifest: Path) -> Run | None:
    try:
        return load_run(manifest)
    except (OSError, P2PTrainError):
        return None


def run_facts(run: Run) -> Row:
    manifest, model = run.manifest, run.manifest.model
    about = manifest.about
    words = (
        f"{counted(model.layers, 'layer')} of width {model.width}, {model.heads} heads, "
        f"vocabulary {model.vocab}, context {model.sequence}"
    )
    return {
        "id": run.id,
        "name": manifest.name,
        "organiser": label(manifest.organiser),
        "model": words,
        "steps": manifest.outer.steps,
        "description": capped.text(about.description, DESCRIPTION_CHARACTERS_MAX),
        "licence": capped.text(about.licence),
        "contact": capped.text(about.contact),
        "public_weights": manifest.public.weights,
    }


def snapshots_in(ledger: Path) -> list[Row]:
    """Return the newest certified snapshots in a ledger, newest first: step, digest, signers."""
    found: dict[int, Row] = {}
    try:
        if not ledger.exists() or ledger.stat().st_size > LEDGER_BYTES_MAX:
            return []
        for number, record in enumerate(records_in(ledger)):
            if number == 0 and origin_of(record) is not None:
                continue
            certified = entry_of(record)
            match certified.entry.value:
                case Commit(snapshot=SnapshotRef(step=step, digest=digest)):
                    signers = sorted(peer_name(each) for each in certified.certificate.voters)
                    found[step] = {"step": step, "digest": digest, "signers": signers}
    except (OSError, P2PTrainError):
        return []
    return [found[step] for step in sorted(found, reverse=True)[:SNAPSHOTS_MAX]]


async def _invitation(control: Path) -> str | None:
    try:
        reply = await ask(control, "invitation")
    except P2PTrainError:
        return None
    found = reply.get("invitation")
    return found[: 16 * 1024] if isinstance(found, str) else None

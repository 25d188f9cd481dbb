"""Where exported weights come from, for the model card, p2ptrain.json and the terminal."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from p2ptrain.errors import counted
from p2ptrain.ids import Digest, PeerId, RunId

Standing = Literal["certified", "replayed", "uncertified"]
"""How far the weights are certified. "certified": the digest of the snapshot is in a ledger entry
that a quorum signed or, for the first weights, in the manifest that the organiser signed.
"replayed": this machine computed the weights from a certified snapshot and certified updates.
"uncertified": there is only the word of this machine."""


@dataclass(frozen=True, slots=True)
class Provenance:
    """The origin of exported weights, which are θ before outer step `step` of a run.

    `tokens` is the number of tokens trained on until then; None if this machine's ledger does not
    show it. `entry_height` is the height of the ledger entry that names `snapshot`; 0 means the
    run's manifest, and None means uncertified. `updates` is the number of updates that were
    replayed on the snapshot.
    """

    run: RunId
    run_name: str
    organiser: PeerId
    step: int
    steps_planned: int
    tokens: int | None
    standing: Standing
    snapshot: Digest
    snapshot_step: int
    updates: int
    entry_height: int | None
    signed_by: tuple[PeerId, ...]
    ledger_height: int
    ledger_head: Digest
    data_index: Digest
    train_blocks: int
    block_tokens: int
    description: str = ""
    licence: str = ""
    contact: str = ""
    """The words of the organiser about the run; see `About` in `run/outside_facts`."""
    contributors: tuple[tuple[PeerId, int], ...] = ()
    """The peers that contributed to these weights, with their certified tokens, most tokens first.
    Empty unless the user wants to name them."""

    @property
    def loudly(self) -> str | None:
        """The warning to show prominently; None if the state is certified."""
        if self.standing == "uncertified":
            return (
                f"NOT CERTIFIED: no ledger entry names the snapshot {self.snapshot}. Only the "
                "machine that exported these weights vouches for them."
            )
        if self.standing == "replayed":
            return (
                "NOT DIRECTLY CERTIFIED: no ledger entry names this state. The exporting "
                "machine computed it from the certified snapshot of outer step "
                f"{self.snapshot_step} and the {counted(self.updates, 'certified update')} after "
                "it; anyone who holds them can repeat this."
            )
        return None

    @property
    def words(self) -> str:
        """One sentence that says who certified the state."""
        if self.standing == "uncertified":
            return "no peer: the weights are not certified"
        what = f"the snapshot of outer step {self.snapshot_step} is named by "
        voters = counted(len(self.signed_by), "voter")
        by = (
            "the run's manifest, signed by its organiser"
            if self.entry_height == 0
            else f"ledger entry {self.entry_height}, signed by {voters}"
        )
        updates = counted(self.updates, "update was", "updates were")
        more = f"; {updates} replayed on it" if self.updates else ""
        return what + by + more

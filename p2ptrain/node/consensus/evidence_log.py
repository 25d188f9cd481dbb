"""Store evidence that a voter signed contradictory statements, and warn the user about it.

Such a voter is evicted. Evidence does not expire: it is stored before the ledger handles the next
event, and passed to the ledger again after each restart, so that the peer stays evicted.
"""

from __future__ import annotations

from p2ptrain.archive.home import Home
from p2ptrain.errors import RemoteProtocolError, StoreError
from p2ptrain.ledger.messages.effects import VotingStopped
from p2ptrain.ledger.messages.events import Accused
from p2ptrain.ledger.messages.evidence import Evidence, decode_evidence, encode_evidence
from p2ptrain.names import label
from p2ptrain.node.state.context import Context
from p2ptrain.node.state.threads import durably
from p2ptrain.observe.cautions import Caution
from p2ptrain.store import RecordLog


def load_evidence(home: Home) -> list[Accused]:
    """Return the evidence stored in `home`, which the ledger checks.

    Raises StoreError: the file is damaged."""
    try:
        return [Accused(decode_evidence(record)) for record in RecordLog(home.evidence)]
    except RemoteProtocolError as exc:
        raise StoreError(
            f"the evidence in {home.evidence} cannot be read: {exc.what}",
            code="LEDGER-BROKEN",
            likely="the file is damaged, or another program wrote to it",
            do=f"move {home.evidence} away: other peers have the same evidence",
        ) from exc


async def record_evidence(context: Context, evidence: Evidence) -> None:
    """Durably write `evidence` to disk, and warn the user."""
    context.journal.write(
        "accused", peer=evidence.peer, height=evidence.height, words=evidence.words
    )
    if evidence.peer == context.me:
        warn_of_duplicate(context, VotingStopped(evidence.words))
    else:
        context.alerts.show(
            f"liar {evidence.peer}",
            Caution(
                "VOTER-LIED",
                f"{label(evidence.peer)} signed two contradictory statements and is evicted",
            ),
        )
    await durably(_append, context.home, encode_evidence(evidence))


def _append(home: Home, record: bytes) -> None:
    log = RecordLog(home.evidence)
    if record not in set(log):
        log.append([record])


def warn_of_duplicate(context: Context, found: VotingStopped) -> None:
    """Warn the user that another process uses this identity. The ledger has stopped voting."""
    context.journal.write("identity-in-use", code="ID-IN-USE", what=found.what)
    context.alerts.show(
        "identity",
        Caution(
            "ID-IN-USE",
            "another node uses this identity, so this node has stopped voting",
            "stop the other node and restart this one, or give this one its own --home",
        ),
    )

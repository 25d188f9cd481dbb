"""Evidence against a lying voter survives a restart of the node that found it. A second process
with our identity is reported to the operator."""

from __future__ import annotations

from pathlib import Path

import pytest
import trio

from p2ptrain.archive.home import Home
from p2ptrain.errors import StoreError
from p2ptrain.identity import Identity
from p2ptrain.ids import Digest, RunId
from p2ptrain.ledger.chain.values import vote_message
from p2ptrain.ledger.messages.effects import VotingStopped
from p2ptrain.ledger.messages.events import Accused
from p2ptrain.ledger.messages.evidence import Evidence, Statement, encode_evidence
from p2ptrain.node.consensus import evidence_log
from p2ptrain.node.consensus.ledger_task import run_ledger
from p2ptrain.store import RecordLog
from tests.node.rig import ANN, NewRig, rig, settled


def twice(liar: Identity, run: RunId) -> Evidence:
    """Return evidence against `liar`: two genuine votes by it in the same round for different
    entries."""
    entries = Digest("a" * 64), Digest("b" * 64)
    votes = [
        Statement(None, 0, entry, liar.sign(vote_message(run, 1, 0, entry))) for entry in entries
    ]
    return Evidence(run, 1, liar.peer, *votes)


async def test_evidence_is_written_once_and_reported(
    tmp_path: Path, new_rig: NewRig, nursery: trio.Nursery
) -> None:
    r = await new_rig(tmp_path, founders=(ANN.peer,))
    evidence = twice(ANN, r.run.id)
    nursery.start_soon(run_ledger, r.context)
    await r.context.ledger.submit(Accused(evidence))
    await settled(lambda: bool(evidence_log.load_evidence(r.context.home)))
    await evidence_log.record_evidence(r.context, evidence)
    assert evidence_log.load_evidence(r.context.home) == [Accused(evidence)]
    (warning,) = r.context.alerts.warnings.values()
    assert (warning.code, "is evicted" in warning.what) == ("VOTER-LIED", True)


async def test_restarted_node_still_knows_the_evidence_against_a_liar(
    tmp_path: Path, new_rig: NewRig, nursery: trio.Nursery
) -> None:
    r = await new_rig(tmp_path, founders=(ANN.peer,))
    RecordLog(r.context.home.evidence).append([encode_evidence(twice(ANN, r.run.id))])
    nursery.start_soon(run_ledger, r.context)
    await settled(lambda: ANN.peer in r.context.ledger.core.reports.accused)


async def test_second_process_with_our_identity_is_reported_with_advice(tmp_path: Path) -> None:
    async with rig(tmp_path) as r:
        evidence_log.warn_of_duplicate(
            r.context, VotingStopped("a vote that this node did not cast")
        )
        said = r.context.alerts.warnings["identity"]
        assert (said.code, said.what[:17]) == ("ID-IN-USE", "another node uses")
        assert [record["what"] for record in r.said("identity-in-use")] == [
            "a vote that this node did not cast"
        ]


def test_unreadable_evidence_is_reported_as_a_disk_error(tmp_path: Path) -> None:
    home = Home(tmp_path)
    RecordLog(home.evidence).append([b"{}"])
    with pytest.raises(StoreError, match="cannot be read") as caught:
        evidence_log.load_evidence(home)
    assert caught.value.code == "LEDGER-BROKEN"

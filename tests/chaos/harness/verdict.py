"""Checks of the nodes' journals and disks that must hold after any fault.

Each function returns the problems in words. If a check had nothing to examine, this is a problem
too: for example, if a node does not have an update that can be checked.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping
from functools import partial

import numpy as np

from p2ptrain import kernels
from p2ptrain.archive.home import Home
from p2ptrain.archive.ledger_on_disk import rules_of
from p2ptrain.errors import P2PTrainError
from p2ptrain.identity import verify
from p2ptrain.ids import Digest
from p2ptrain.ledger.chain.canonical import parse
from p2ptrain.ledger.chain.decode_values import certified_from_plain
from p2ptrain.ledger.chain.values import Certified
from p2ptrain.ledger.chain.verify import replay
from p2ptrain.ledger.messages.messages import MESSAGE_BYTES_MAX
from p2ptrain.run import DataIndex, Run
from p2ptrain.store import RecordLog, Store
from p2ptrain.trainer.formats.shapes import layout_of
from tests.chaos.harness.crew import Crew, Sighting
from tests.chaos.harness.modes import STAND_IN
from tests.node.accounts import ChainCredits, Credits, trained_by, update_fault

CRASHES = ("Traceback (most recent call last)", "error[BUG]")


def disagreements(sightings: Mapping[str, Sighting]) -> list[str]:
    """Return each height with two entries, and each outer step with two heads or two states of θ
    and m.

    The sightings cover all nodes, also before their restarts.
    """
    found: dict[tuple[str, int], dict[str, set[str]]] = defaultdict(lambda: defaultdict(set))
    for name, seen in sightings.items():
        for _, height, entry, _ in seen.decided:
            found["entry", height][entry].add(name)
        for commit in seen.commits.values():
            found["head after step", commit.step][commit.head].add(name)
        for step, digest in seen.snapshots.items():
            found["state at step", step][digest].add(name)
    return [
        f"{what} {number}: {dict(values)}"
        for (what, number), values in sorted(found.items())
        if len(values) > 1
    ]


def crashes(crew: Crew) -> list[str]:
    """Return the troubles in journals, the crashes in output, and the evidence against peers."""
    wrong = [f"{node.name}: {each}" for node in crew.nodes for each in node.seen.troubles]
    for node in crew.nodes:
        wrong += [f"{node.name} printed {mark!r}" for mark in CRASHES if mark in node.output()]
        evidence = Home(node.home).evidence
        if evidence.exists() and list(RecordLog(evidence)):
            wrong.append(f"{node.name} has evidence against a peer, although all peers are honest")
    return wrong


def ledgers(crew: Crew) -> list[str]:
    """Check the ledgers on the disks of stopped nodes.

    Each ledger must verify. All ledgers must agree. Each must have every entry that its node
    reported as decided.
    """
    wrong, chains = [], {}
    for node in crew.nodes:
        try:
            chains[node.name] = chain = chain_of(Home(node.home), crew.run)
        except P2PTrainError as exc:
            wrong.append(f"{node.name}'s ledger: {exc}")
            continue
        known = max((height for _, height, _, _ in node.seen.decided), default=0)
        if known > len(chain):
            wrong.append(f"{node.name} reported {known} entries, but its ledger has {len(chain)}")
    longest = max(chains.values(), key=len, default=[])
    for name, chain in chains.items():
        if any(a.entry != b.entry for a, b in zip(chain, longest, strict=False)):
            wrong.append(f"{name}'s ledger contradicts the longest one")
    return wrong


def chain_of(home: Home, run: Run) -> list[Certified]:
    """Read the chain from a disk and verify it, starting at the manifest. Raises P2PTrainError."""
    log = RecordLog(home.ledger)
    chain = [certified_from_plain(parse(each, bytes_max=MESSAGE_BYTES_MAX)) for each in log]
    replay(rules_of(run), chain, verify)
    return chain


def work(crew: Crew) -> list[str]:
    """Check that every block was committed at most once, and that trainers logged the committed
    work.

    Also check that each update consists of exactly the work that the ledger credits.
    """
    longest = max(crew.nodes, key=lambda node: len(node.seen.decided))
    home, run = Home(longest.home), crew.run
    account = ChainCredits(chain_of(home, run), run).committed()
    blocks = Counter(
        block for _, _, credits in account for each in credits.values() for block in each
    )
    wrong = [f"block {block} was committed {n} times" for block, n in blocks.items() if n > 1]
    journals = [Home(node.home).journal for node in crew.nodes]
    trained = trained_by(chain_of(home, run), run, journals)
    wrong += [fault.words for fault in trained.faults]
    if not trained.checked:
        wrong.append("no journal contains the committed work")
    if run.manifest.sync.fragments > 1 or crew.trainers != STAND_IN:
        # An update of a fragment contains the work of several outer steps, without the work that
        # was lost with killed trainers. The output of a real trainer is not known in advance.
        return wrong
    with Store(home.store, chunk_bytes=run.manifest.policy.chunk_bytes) as store:
        found = {update for _, update, _ in account if store.holds_blob(update)}
        read = partial(_update_fault, store, run, _index(store, run))
        faults = {
            step: read(update, credits) for step, update, credits in account if update in found
        }
    if not found:
        wrong.append(f"{longest.name} does not have an update that can be checked")
    return wrong + [f"step {step}: {fault}" for step, fault in faults.items() if fault]


def _index(store: Store, run: Run) -> DataIndex:
    data = run.manifest.data
    return DataIndex.from_bytes(
        store.read_blob(data.index),
        train_blocks=data.train_blocks,
        validation_blocks=data.validation_blocks,
    )


def _update_fault(
    store: Store, run: Run, index: DataIndex, update: Digest, credits: Credits
) -> str:
    rules = rules_of(run)
    numel = layout_of(run.manifest.model).numel
    found = np.empty(numel, dtype=np.float32)
    codec = kernels.codec(run.manifest.codec.name, run.manifest.codec.block)
    codec.dequantise(store.read_blob(update), found)
    return update_fault(found, credits, lambda block: index.train[rules.data_block(block)])


def at_the_end(crew: Crew) -> list[str]:
    """Return all problems. Call this after all nodes have stopped."""
    crew.look()
    sightings = {node.name: node.seen for node in crew.nodes}
    return [*disagreements(sightings), *crashes(crew), *ledgers(crew), *work(crew)]

"""`p2ptrain ckpt`: list, fetch, verify and pin certified snapshots of θ and m."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from p2ptrain.cli.commands.admission.ways_in import ways_in
from p2ptrain.cli.commands.node_options import (
    BootstrapOption,
    DataListenOption,
    ListenOption,
    NoWaitOption,
)
from p2ptrain.cli.control_client import send_command
from p2ptrain.cli.homes import HomeOption, home_path, open_home, run_of
from p2ptrain.cli.output import JsonOption, examples, progress, result, result_json, result_or_json
from p2ptrain.config.node import DATA_LISTEN, NodeConfig, parse_data_listen
from p2ptrain.errors import ChunkCorrupt, ChunkMissing, P2PTrainError, counted
from p2ptrain.ids import Digest
from p2ptrain.open_files import allow_open_files
from p2ptrain.suggested_command import to_paste

if TYPE_CHECKING:
    from p2ptrain.archive.home import Home
    from p2ptrain.archive.replay import ChainFacts
    from p2ptrain.store import StoreReader

SHOWN_MAX = 20
STATUS_S = 2.0
"""Seconds to wait for the node in this home. The list is useful without its answer."""

app = typer.Typer(
    help="List, fetch, check and keep the certified snapshots of the run.",
    epilog=examples("p2ptrain ckpt ls", "p2ptrain ckpt fetch --bootstrap ADDRESS"),
    no_args_is_help=True,
    rich_markup_mode=None,
)
SnapshotArgument = Annotated[
    str,
    typer.Argument(
        metavar="SNAPSHOT",
        help="newest, genesis, an outer step, or the first characters of a digest.",
    ),
]


@dataclass(frozen=True, slots=True)
class SnapshotRow:
    """One certified snapshot, as `ls --json` prints it. `height` is the height of the entry that
    certifies it; 0 stands for the run's manifest.
    """

    step: int
    digest: Digest
    height: int
    signed_by: tuple[str, ...]
    bytes: int | None
    chunks: int | None
    """Number of its chunks. `bytes` and `chunks` are None if the list of chunks is missing here."""
    chunks_held: int
    updates_held_to: int
    """The outer step up to which this home has the updates that follow this snapshot."""
    pinned: bool
    ended: float | None = None
    """When the outer step before it ended, in Unix seconds, if this node's series knows it."""
    loss: float | None = None
    """Loss of its θ on held-out data, in nats per token, if known."""
    copies: int | None = None
    """Number of members that are up and usually still have it; None if no node runs here, or if
    they have written two newer ones."""

    @property
    def whole(self) -> bool:
        return self.chunks is not None and self.chunks_held == self.chunks


@app.command(
    epilog=examples(
        "p2ptrain ckpt ls --here --last 10",
        "p2ptrain ckpt ls --all",
        "p2ptrain ckpt ls --home /srv/seed --json",
    )
)
def ls(
    home: HomeOption = None,
    all_: Annotated[
        bool, typer.Option("--all/--here", help="Also list snapshots that are not in this home.")
    ] = False,
    last: Annotated[
        int | None,
        typer.Option("--last", metavar="N", min=1, help="List only the newest N snapshots."),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """List certified snapshots, the newest first, and how much of each is in this home.

    Shows the date, the held-out loss and the number of copies of a snapshot if they are known.
    With --json, all snapshots are listed, the oldest first. Works whether or not a node runs in
    the home.
    """
    where = open_home(home, to_write=False)
    account = account_in(where)
    rows = with_history(where, run_of(where).id, list(_rows(where, account)))
    if as_json:
        listed = [{**asdict(row), "whole": row.whole} for row in rows[-last if last else 0 :]]
        result_json({"run": run_of(where).id, "step": account.end, "snapshots": listed})
        return
    shown = [row for row in reversed(rows) if all_ or row.chunks_held]
    for row in shown[:last]:
        result(_line(row))
    if (hidden := len(rows) - len(shown)) and not last:
        progress(
            f"{counted(hidden, 'snapshot is', 'snapshots are')} not here: --all lists them too"
        )


def account_in(where: Home) -> ChainFacts:
    """Read the ledger of a home and check each certificate. Raises StoreError."""
    from p2ptrain.archive.chain_reader import ChainVerifier, records_in
    from p2ptrain.archive.ledger_on_disk import rules_of
    from p2ptrain.archive.replay import chain_facts

    run = run_of(where)
    walk = ChainVerifier(rules_of(run), records_in(where.ledger), where.ledger)
    return chain_facts(run.manifest, walk.begins, (link.certified for link in walk.links()))


def _rows(where: Home, account: ChainFacts) -> Iterator[SnapshotRow]:
    from p2ptrain.archive.replay import reaches
    from p2ptrain.store import LocalDisk, Pins, StoreReader

    store = StoreReader(where.store)
    pins, reached = Pins(where.store, LocalDisk()).load(), reaches(account, store)
    for _, named in sorted(account.snapshots.items()):
        manifest = store.manifest_if_any(named.digest)
        chunks = set() if manifest is None else set(manifest.chunks)
        yield SnapshotRow(
            step=named.step,
            digest=named.digest,
            height=named.source.height,
            signed_by=named.source.signed_by,
            bytes=None if manifest is None else manifest.size,
            chunks=None if manifest is None else len(chunks),
            chunks_held=sum(map(store.has_chunk, chunks)),
            updates_held_to=reached[named.step],
            pinned=named.digest in pins,
        )


def with_history(where: Home, run: str, rows: Sequence[SnapshotRow]) -> list[SnapshotRow]:
    """Add to each row what the series in this home and its running node know about it."""
    from p2ptrain.cli.history import steps_if_any

    ended = {step.step: step for step in steps_if_any(where.root, run)[0] if step.covers == 1}
    copies = _copies(where.root)
    known = []
    for row in rows:
        step = ended.get(row.step)
        facts = (None, None) if step is None else (step.time, step.held_out)
        known.append(
            replace(row, ended=facts[0], loss=facts[1], copies=copies.get(str(row.digest)))
        )
    return known


def _copies(home: Path) -> dict[str, int]:
    """Return the number of copies of snapshots by their digests; {} if no node runs in `home`."""
    try:
        reported = send_command(home, "status", deadline_s=STATUS_S).get("snapshots")
    except P2PTrainError:
        return {}
    found = reported if isinstance(reported, list) else []
    return {str(each.get("digest")): int(each.get("copies", 0)) for each in found}


def _line(row: SnapshotRow) -> str:
    held = (
        "not here" if row.chunks is None else f"{row.chunks_held} of {counted(row.chunks, 'chunk')}"
    )
    held = "whole" if row.whole else held
    size = "" if row.bytes is None else f"{row.bytes / 1e6:,.1f} MB"
    votes = "the run's manifest" if row.height == 0 else counted(len(row.signed_by), "vote")
    pinned = "  pinned" if row.pinned else ""
    return (
        f"step {row.step:>5}  {_history(row)}{row.digest[:12]}…  {size:>12}  {held:<18}  "
        f"entry {row.height:>5}, {votes}{pinned}"
    )


def _history(row: SnapshotRow) -> str:
    """Return the date, the loss and the number of copies, as far as they are known."""
    date = "" if row.ended is None else time.strftime("%Y-%m-%d %H:%M", time.localtime(row.ended))
    loss = "" if row.loss is None else f"loss {row.loss:.3f}"
    copies = "" if row.copies is None else counted(row.copies, "copy", "copies")
    return f"{date:<16}  {loss:<11}  {copies:<9}  " if date or loss or copies else ""


@app.command(
    epilog=examples(
        "p2ptrain ckpt fetch --bootstrap ADDRESS --home ./audit",
        "p2ptrain ckpt fetch 4000 --no-updates --pin",
    )
)
def fetch(
    snapshot: SnapshotArgument = "newest",
    home: HomeOption = None,
    bootstrap: BootstrapOption = None,
    listen: ListenOption = None,
    data_listen: DataListenOption = None,
    updates: Annotated[
        bool,
        typer.Option(
            "--updates/--no-updates", help="Also fetch the updates that follow the snapshot."
        ),
    ] = True,
    pin: Annotated[bool, typer.Option("--pin", help="Keep the snapshot permanently.")] = False,
    run: Annotated[
        str | None, typer.Option("--run", metavar="RUNID", help="Fetch from this run only.")
    ] = None,
    no_wait: NoWaitOption = False,
    as_json: JsonOption = False,
) -> None:
    """Fetch a certified snapshot from peers, without training.

    Joins the network as an observer, checks the ledger, fetches chunks from all peers, checks each
    chunk, and exits. Stop the node in this home first. Unless the run is open, your identity must
    be on its allowlist.
    """
    host, port = parse_data_listen(data_listen or DATA_LISTEN)
    config = NodeConfig(
        home=home_path(home),
        **asdict(ways_in(bootstrap or (), run)),
        listen=tuple(listen) if listen else None,
        data_host=host,
        data_port=port,
        wait_for_approval=not no_wait,
    )
    open_home(config.home, to_make=True)
    allow_open_files()
    from p2ptrain.node.observer import fetch as fetched_by

    fetched = fetched_by(config, snapshot, updates=updates, pin=pin, print_line=progress)
    words = (
        f"fetched the snapshot of outer step {fetched.step}, {fetched.digest}, and the "
        f"{counted(fetched.updates, 'update')} after it: {fetched.bytes_fetched / 1e6:,.1f} MB in "
        f"{fetched.seconds:.0f} s"
    )
    result_or_json(words, asdict(fetched), as_json=as_json)


@app.command(epilog=examples("p2ptrain ckpt verify", "p2ptrain ckpt verify 4000 --json"))
def verify(
    snapshot: SnapshotArgument = "newest", home: HomeOption = None, as_json: JsonOption = False
) -> None:
    """Check every chunk of a snapshot in this home.

    Works whether or not a node runs in the home. To check the whole run, use p2ptrain verify.
    """
    from p2ptrain.archive.replay import snapshot_named
    from p2ptrain.store import StoreReader

    where = open_home(home, to_write=False)
    named = snapshot_named(account_in(where), snapshot)
    store = StoreReader(where.store)
    manifest = store.manifest(named.digest)
    damaged, missing = _examined(store, manifest.chunks)
    if as_json and not damaged and not missing:
        source = {"height": named.source.height, "signed_by": list(named.source.signed_by)}
        found = {"step": named.step, "digest": named.digest, **source}
        result_json({**found, "chunks": len(manifest.chunks), "good": True})
    if damaged:
        raise ChunkCorrupt(
            f"the snapshot of outer step {named.step} has "
            f"{counted(len(damaged), 'damaged chunk')}, of {len(manifest.chunks)} in all",
            evidence=[f"chunk {digest}" for digest in damaged[:SHOWN_MAX]],
            likely="the disk that holds the store is faulty",
            do=to_paste(where.root, "store check --repair"),
        )
    if missing:
        raise ChunkMissing(
            f"the snapshot of outer step {named.step} lacks "
            f"{counted(len(missing), 'chunk')}, of {len(manifest.chunks)} in all",
            evidence=[f"chunk {digest}" for digest in missing[:SHOWN_MAX]],
            likely="the snapshot was never fetched completely",
            do=to_paste(where.root, f"ckpt fetch {named.step}"),
        )
    if not as_json:
        count = len(manifest.chunks)
        chunks = "all " * (count > 1) + counted(count, "chunk matches", "chunks match")
        result(
            f"the snapshot of outer step {named.step} is intact: {chunks} "
            f"what entry {named.source.height} certified"
        )


def _examined(store: StoreReader, chunks: tuple[Digest, ...]) -> tuple[list[Digest], list[Digest]]:
    """Return the damaged and the missing chunks. Only one chunk at a time is in memory."""
    damaged, missing = list[Digest](), list[Digest]()
    for chunk in dict.fromkeys(chunks):
        try:
            store.get_chunk(chunk)
        except ChunkMissing:
            missing.append(chunk)
        except ChunkCorrupt:
            damaged.append(chunk)
    return damaged, missing


@app.command(epilog=examples("p2ptrain ckpt pin", "p2ptrain ckpt pin 4000"))
def pin(
    snapshot: SnapshotArgument = "newest", home: HomeOption = None, as_json: JsonOption = False
) -> None:
    """Keep a certified snapshot permanently.

    To undo this, use p2ptrain store unpin. Works whether or not a node runs in the home.
    """
    from p2ptrain.archive.replay import snapshot_named
    from p2ptrain.store import LocalDisk, Pins

    where = open_home(home)
    named = snapshot_named(account_in(where), snapshot)
    changed = Pins(where.store, LocalDisk()).change(add=named.digest)
    what = "is pinned" if changed else "is already pinned"
    words = f"the snapshot of outer step {named.step} {what}: {named.digest}"
    facts = {"step": named.step, "digest": named.digest, "changed": changed}
    result_or_json(words, facts, as_json=as_json)

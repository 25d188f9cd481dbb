"""`p2ptrain store`: show this node's store, verify it, and collect garbage."""

from __future__ import annotations

import shutil
import time
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer

from p2ptrain.cli.commands.admission.ways_in import ways_in
from p2ptrain.cli.commands.node_options import BootstrapOption
from p2ptrain.cli.control_client import send_command
from p2ptrain.cli.homes import HomeOption, open_home, run_of
from p2ptrain.cli.output import JsonOption, examples, progress, result, result_json, result_or_json
from p2ptrain.config.node import NodeConfig, parse_size, parse_snapshots
from p2ptrain.errors import ChunkCorrupt, ChunkMissing, ConfigError, counted
from p2ptrain.ids import Digest, is_digest
from p2ptrain.suggested_command import to_paste

if TYPE_CHECKING:
    from pathlib import Path

    from p2ptrain.archive.home import Home
    from p2ptrain.ledger.core import Ledger
    from p2ptrain.run import DataIndex, Run
    from p2ptrain.run.manifest import DataSpec
    from p2ptrain.store import Collected, Store, StoreReader

SHOWN_MAX = 20

REPAIR_S = 90.0
LOOK_S = 0.25
"""Seconds between two checks of a running node's repair, which can take up to REPAIR_S."""

app = typer.Typer(
    help="Show, check and clean up what this node keeps on its disk.",
    epilog=examples("p2ptrain store du", "p2ptrain store check --repair"),
    no_args_is_help=True,
    rich_markup_mode=None,
)
DigestArgument = Annotated[
    str,
    typer.Argument(metavar="DIGEST", help="Digest of a blob or chunk: 64 hexadecimal characters."),
]


@app.command(epilog=examples("p2ptrain store du", "p2ptrain store du --home /srv/seed --json"))
def du(home: HomeOption = None, as_json: JsonOption = False) -> None:
    """Show how much disk space each kind of content takes.

    Works whether or not a node runs in the home.
    """
    from p2ptrain.store import LocalDisk, Pins, Survey

    where = _home_of_a_run(home, to_write=False)
    usage = Survey(where.store, LocalDisk()).usage()
    pins = len(Pins(where.store, LocalDisk()).load())
    total_bytes = sum(each.bytes for each in usage.values())
    if as_json:
        kinds = {
            kind: {"blobs": each.blobs, "chunks": each.chunks, "bytes": each.bytes}
            for kind, each in usage.items()
        }
        result_json({"kinds": kinds, "bytes": total_bytes, "pins": pins})
        return
    for kind, each in usage.items():
        blobs = f"{each.blobs:>6}" if each.blobs else " " * 6
        result(f"{kind:<12} {blobs}  {each.chunks:>8} chunks  {each.bytes / 1e6:>12,.1f} MB")
    pinned = f"; {pins} pinned" if pins else ""
    result(f"{'total':<12} {'':>6}  {'':>15}  {total_bytes / 1e6:>12,.1f} MB{pinned}")


@app.command(
    epilog=examples(
        "p2ptrain store check",
        "p2ptrain store check --repair",
        "p2ptrain store check --repair --bootstrap ADDRESS",
    )
)
def check(
    home: HomeOption = None,
    repair: Annotated[
        bool, typer.Option("--repair", help="Fetch damaged chunks again from the run's peers.")
    ] = False,
    bootstrap: BootstrapOption = None,
    as_json: JsonOption = False,
) -> None:
    """Read every chunk and compare it with its digest.

    Changes nothing without --repair. With --repair, damaged chunks are fetched again from peers: by
    the node that runs in this home, or by this command if none runs.
    """
    where = _home_of_a_run(home, to_write=repair)
    looked, bad = _looked_at(where)
    left = _repaired(where, bad, tuple(bootstrap or ())) if repair and bad else bad
    mended = [digest for digest in bad if digest not in set(left)]
    chunks = counted(looked, "chunk")
    if as_json and not left:
        result_json({"chunks": looked, "damaged": bad, "repaired": mended})
    if left:
        raise ChunkCorrupt(
            f"{len(left)} of {chunks} {'is' if len(left) == 1 else 'are'} damaged",
            evidence=[f"chunk {digest}" for digest in left[:SHOWN_MAX]],
            likely="the disk that holds the store is faulty",
            do=(
                "move the home to a healthy disk; if no peer of the run was reached, try again "
                "with --bootstrap; chunks that no peer holds are probably not needed"
            )
            if repair
            else f"{to_paste(where.root, 'store check --repair')}; a running node "
            "repairs chunks by itself; move the home to a healthy disk",
        )
    if as_json:
        return
    if mended:
        were = "was damaged and has" if len(mended) == 1 else "were damaged and have"
        result(f"{len(mended)} of {chunks} {were} been repaired from peers")
    else:
        result(f"{'all ' * (looked > 1)}{counted(looked, 'chunk is', 'chunks are')} intact")


def _looked_at(where: Home) -> tuple[int, list[Digest]]:
    """Return the number of chunks in the store, and the damaged chunks."""
    from p2ptrain.store import LocalDisk, Survey

    looked, bad = 0, list[Digest]()
    for digest, is_damaged in Survey(where.store, LocalDisk()).damaged():
        looked += 1
        bad += [digest] if is_damaged else []
        if looked % 1000 == 0:
            progress(f"{looked} chunks read")
    return looked, bad


def _repaired(where: Home, bad: list[Digest], bootstrap: tuple[str, ...]) -> list[Digest]:
    """Fetch these chunks again, through the node that runs here, or as an observer if none runs.
    Return the chunks that are still damaged.
    """
    from p2ptrain.node.observer import HomeInUse, repair_store

    damaged = counted(len(bad), "chunk is", "chunks are")
    progress(f"{damaged} damaged; asking peers for intact copies")
    config = NodeConfig(home=where.root, **asdict(ways_in(bootstrap)), wait_for_approval=False)
    try:
        mended = set(repair_store(config, bad, progress))
    except HomeInUse:
        progress("the node that runs in this home repairs them")
        send_command(where.root, "scrub")
        return _wait_for(where, bad)
    return [digest for digest in bad if digest not in mended]


def _wait_for(where: Home, bad: list[Digest]) -> list[Digest]:
    """Wait until the node has repaired the chunks; return those still damaged at the deadline."""
    from p2ptrain.store import StoreReader

    reader, give_up_at_s = StoreReader(where.store), time.monotonic() + REPAIR_S
    while bad and time.monotonic() < give_up_at_s:
        time.sleep(LOOK_S)
        bad = [digest for digest in bad if not _is_sound(reader, digest)]
    return bad


def _is_sound(reader: StoreReader, digest: Digest) -> bool:
    try:
        reader.get_chunk(digest)
    except (ChunkMissing, ChunkCorrupt):
        return False
    return True


@app.command(epilog=examples("p2ptrain store gc", "p2ptrain store gc --keep-snapshots 1"))
def gc(
    home: HomeOption = None,
    keep_snapshots: Annotated[
        str,
        typer.Option(
            "--keep-snapshots",
            metavar="N",
            help="Number of newest snapshots to keep, as in p2ptrain node.",
        ),
    ] = "2",
    data_cache: Annotated[
        str,
        typer.Option(
            "--data-cache",
            metavar="SIZE",
            help="Disk space for training data, as in p2ptrain node.",
        ),
    ] = "8GB",
    seed: Annotated[bool, typer.Option("--seed", help="Keep all data, as a seed does.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Remove everything that a node with these options would not keep.

    Stop the node first. A running node removes such content by itself whenever a snapshot is
    certified.
    """
    where = open_home(home)
    snapshots = parse_snapshots(keep_snapshots)
    if snapshots is None:
        raise ConfigError(
            "--keep-snapshots all leaves nothing to remove", do="give a number of snapshots"
        )
    config = NodeConfig(
        home=where.root,
        seed=seed,
        keep_snapshots=snapshots,
        data_cache_bytes=parse_size(data_cache),
    )
    collected = _collected(where, config)
    chunks, freed, left = collected.chunks, collected.bytes_freed, collected.chunks_left
    removed, stay = counted(chunks, "chunk"), counted(left, "chunk is", "chunks are")
    words = f"removed {freed / 1e6:,.1f} MB in {removed}; {stay} left"
    result_or_json(words, {"chunks": chunks, "bytes": freed, "left": left}, as_json=as_json)


@app.command(epilog=examples("p2ptrain store pin DIGEST"))
def pin(digest: DigestArgument, home: HomeOption = None, as_json: JsonOption = False) -> None:
    """Keep a snapshot, an update or a data block permanently.

    Works whether or not a node runs in the home.
    """
    from p2ptrain.store import LocalDisk, Pins

    where = _home_of_a_run(home)
    changed = Pins(where.store, LocalDisk()).change(add=_digest(where, digest))
    words = "pinned" if changed else "it is already pinned"
    result_or_json(words, {"digest": digest, "changed": changed}, as_json=as_json)


@app.command(epilog=examples("p2ptrain store unpin DIGEST"))
def unpin(digest: DigestArgument, home: HomeOption = None, as_json: JsonOption = False) -> None:
    """Remove a pin.

    The snapshot, update or data block stays as long as the run needs it.
    """
    from p2ptrain.store import LocalDisk, Pins

    where = _home_of_a_run(home)
    changed = Pins(where.store, LocalDisk()).change(remove=_digest(where, digest))
    words = "the pin is removed" if changed else "it was not pinned"
    result_or_json(words, {"digest": digest, "changed": changed}, as_json=as_json)


def _home_of_a_run(given: Path | None, *, to_write: bool = True) -> Home:
    """Open a home that has a run. For a mistyped folder, "nothing is damaged" would be misleading.
    Raises ConfigError.
    """
    where = open_home(given, to_write=to_write)
    run_of(where)
    return where


def _digest(where: Home, text: str) -> Digest:
    if not is_digest(text):
        prints = f"{to_paste(where.root, 'ledger show --json')} prints digests"
        raise ConfigError(
            f"{text[:80]!r} is not a digest", do=f"give 64 hexadecimal characters; {prints}"
        )
    return Digest(text)


def _collected(home: Home, config: NodeConfig) -> Collected:
    """Collect garbage as the node does, according to the ledger and the votes on disk."""
    from p2ptrain.archive.home import sole_use
    from p2ptrain.archive.ledger_on_disk import open_ledger
    from p2ptrain.identity import load_or_create
    from p2ptrain.node.consensus.pruning import origin_in
    from p2ptrain.node.outer_state.kept import roots
    from p2ptrain.node.outer_state.snapshot_choice import all_starts, newest_held
    from p2ptrain.store import RootsDamaged, Store

    run = run_of(home)
    with sole_use(home), Store(home.store) as store:
        ledger, log, _ = open_ledger(home, run, load_or_create(home.identity), now=0.0)
        data = _data_index(store, run.manifest.data, must_be_here=config.seed)
        starts = all_starts(store, ledger, origin_in(log), run.manifest.genesis)
        held = newest_held(store, starts)
        history = _history(home, run, store, ledger) if config.seed else ()
        needed = roots(run.manifest, ledger, data, config, held, history)
        try:
            return store.collect_garbage(needed.blobs, keep_chunks=needed.chunks)
        except RootsDamaged as exc:
            exc.do = exc.remedy(home.root)
            raise


def _history(home: Home, run: Run, store: Store, ledger: Ledger) -> tuple[Digest, ...]:
    """Return the blobs that a seed keeps for replays from genesis. If it cannot keep all of them,
    print a warning and return an empty tuple.
    """
    from p2ptrain.archive.full_history import held_history
    from p2ptrain.trainer.formats.shapes import layout_of

    found = held_history(
        store,
        run.manifest,
        ledger.kept,
        disk_free=shutil.disk_usage(home.root).free,
        snapshot_bytes=8 * layout_of(run.manifest.model).numel,
    )
    if found.caution is not None:
        progress(f"warning: {found.caution.words}")
    return found.blobs


def _data_index(store: Store, spec: DataSpec, *, must_be_here: bool) -> DataIndex | None:
    """Return the data index. Return None if it was never fetched, as after `ckpt fetch`: this home
    then has no data either. On a seed, which keeps all data, a missing index is an error.

    Raises StoreError.
    """
    from p2ptrain.run import DataIndex

    if not must_be_here and not store.has_chunk(spec.index):
        return None
    return DataIndex.from_bytes(
        store.read_blob(spec.index),
        train_blocks=spec.train_blocks,
        validation_blocks=spec.validation_blocks,
    )

"""`p2ptrain store`: what this node keeps on its disk, whether it is sound, and what may go."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from p2ptrain.cli.homes import HomeOption, open_home, run_of
from p2ptrain.cli.output import JsonOption, examples, progress, result, result_json
from p2ptrain.config.node import NodeConfig, parse_size, parse_snapshots
from p2ptrain.errors import ChunkCorrupt, ConfigError

if TYPE_CHECKING:
    from p2ptrain.ids import Digest
    from p2ptrain.node.home import Home
    from p2ptrain.store import Collected

SHOWN_MAX = 20

app = typer.Typer(
    help="See, check and clear what this node keeps on its disk.",
    no_args_is_help=True,
    rich_markup_mode=None,
)
DigestArgument = Annotated[
    str, typer.Argument(metavar="DIGEST", help="The 64 hexadecimal characters of a blob or chunk.")
]


@app.command(epilog=examples("p2ptrain store du", "p2ptrain store du --home /srv/seed --json"))
def du(home: HomeOption = None, as_json: JsonOption = False) -> None:
    """Show what takes how much of the disk.

    Works while the node runs, and without one.
    """
    from p2ptrain.store import LocalDisk, Pins, Survey

    where = open_home(home)
    usage = Survey(where.store, LocalDisk()).usage()
    pins = len(Pins(where.store, LocalDisk()).read())
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
    result(f"{'in all':<12} {'':>6}  {'':>15}  {total_bytes / 1e6:>12,.1f} MB{pinned}")


@app.command(epilog=examples("p2ptrain store check"))
def check(home: HomeOption = None, as_json: JsonOption = False) -> None:
    """Read every chunk and compare it with its digest.

    Works while the node runs, and without one. Changes nothing.
    """
    from p2ptrain.store import LocalDisk, Survey

    where = open_home(home)
    looked, bad = 0, list[str]()
    for digest, is_damaged in Survey(where.store, LocalDisk()).damaged():
        looked += 1
        bad += [digest] if is_damaged else []
        if looked % 1000 == 0:
            progress(f"{looked} chunks read")
    if as_json and not bad:
        result_json({"chunks": looked, "damaged": bad})
    if bad:
        raise ChunkCorrupt(
            f"{len(bad)} of {looked} chunks are damaged",
            evidence=[f"chunk {digest}" for digest in bad[:SHOWN_MAX]],
            likely="the disk under the store has a fault",
            do="a node sets them aside and fetches what it needs of them from its peers; move the "
            "home to a sound disk",
        )
    if not as_json:
        result(f"all {looked} chunks are sound")


@app.command(epilog=examples("p2ptrain store gc", "p2ptrain store gc --keep-snapshots 1"))
def gc(
    home: HomeOption = None,
    keep_snapshots: Annotated[
        str, typer.Option("--keep-snapshots", metavar="N", help="As of p2ptrain node.")
    ] = "2",
    data_cache: Annotated[
        str, typer.Option("--data-cache", metavar="SIZE", help="As of p2ptrain node.")
    ] = "8GB",
    seed: Annotated[bool, typer.Option("--seed", help="Keep all data, as a seed does.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Remove what a node with these options would not keep. Needs the node to be stopped.

    A running node does this by itself whenever a snapshot has been certified.
    """
    where = open_home(home)
    snapshots = parse_snapshots(keep_snapshots)
    if snapshots is None:
        raise ConfigError("whoever keeps all snapshots has nothing to remove", do="give a number")
    config = NodeConfig(
        home=where.root,
        seed=seed,
        keep_snapshots=snapshots,
        data_cache_bytes=parse_size(data_cache),
    )
    collected = _collected(where, config)
    if as_json:
        result_json(
            {
                "chunks": collected.chunks,
                "bytes": collected.bytes_freed,
                "left": collected.chunks_left,
            }
        )
    else:
        freed = f"{collected.bytes_freed / 1e6:,.1f} MB in {collected.chunks} chunks"
        result(f"removed {freed}; {collected.chunks_left} chunks are left")


@app.command(epilog=examples("p2ptrain store pin DIGEST"))
def pin(digest: DigestArgument, home: HomeOption = None) -> None:
    """Keep a snapshot, an update or a data block for good, with all that it consists of.

    Works while the node runs, and without one.
    """
    from p2ptrain.store import LocalDisk, Pins

    where = open_home(home)
    changed = Pins(where.store, LocalDisk()).change(add=_digest(digest))
    result("pinned" if changed else "it is pinned already")


@app.command(epilog=examples("p2ptrain store unpin DIGEST"))
def unpin(digest: DigestArgument, home: HomeOption = None) -> None:
    """Let go of what was pinned: it stays as long as the run needs it."""
    from p2ptrain.store import LocalDisk, Pins

    where = open_home(home)
    changed = Pins(where.store, LocalDisk()).change(remove=_digest(digest))
    result("not pinned any more" if changed else "it is not pinned")


def _digest(text: str) -> Digest:
    from p2ptrain.ids import Digest, is_digest

    if not is_digest(text):
        raise ConfigError(
            f"{text[:80]!r} is no digest",
            do="a digest is 64 hexadecimal characters; p2ptrain ledger show --json has them",
        )
    return Digest(text)


def _collected(home: Home, config: NodeConfig) -> Collected:
    """As the node itself does it, by the ledger and the votes that it left on the disk."""
    from p2ptrain.identity import load_or_create
    from p2ptrain.node.chain import open_ledger
    from p2ptrain.node.home import sole_use
    from p2ptrain.node.retention import roots
    from p2ptrain.run import DataIndex
    from p2ptrain.store import Store

    run = run_of(home)
    spec = run.manifest.data
    with sole_use(home), Store(home.store) as store:
        ledger, *_ = open_ledger(home, run, load_or_create(home.identity), now=0.0)
        data = DataIndex.from_bytes(
            store.read_blob(spec.index),
            train_blocks=spec.train_blocks,
            validation_blocks=spec.validation_blocks,
        )
        needed = roots(run.manifest, ledger, data, config)
        return store.collect_garbage(needed.blobs, keep_chunks=needed.chunks)

"""`p2ptrain export`: write a run's weights, with their provenance, for other programs."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterator
from dataclasses import asdict, replace
from enum import StrEnum
from itertools import takewhile
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from p2ptrain.cli.homes import HomeOption, open_home, run_of
from p2ptrain.cli.output import JsonOption, examples, progress, result, result_json
from p2ptrain.cli.outside import outside
from p2ptrain.errors import ConfigError, counted

if TYPE_CHECKING:
    from p2ptrain.archive.chain_reader import ChainVerifier
    from p2ptrain.archive.home import Home
    from p2ptrain.export.choosing import ChainContents
    from p2ptrain.export.folder import Exported
    from p2ptrain.export.parity import Parity
    from p2ptrain.export.provenance import Provenance
    from p2ptrain.export.tokens import Tokenizer
    from p2ptrain.ledger.chain.values import Certified, LineId
    from p2ptrain.run import Run
    from p2ptrain.store import StoreReader

EXAMPLES = examples(
    "p2ptrain export --to hf ./weights",
    "p2ptrain export --to hf ./weights --snapshot 4000 --dtype bf16 --home ./fetched",
    "p2ptrain export --to hf ./weights --snapshot head --force",
)


class ExportTarget(StrEnum):
    HF = "hf"


class NumberFormat(StrEnum):
    FP32 = "fp32"
    BF16 = "bf16"


SnapshotOption = Annotated[
    str,
    typer.Option(
        "--snapshot",
        metavar="WHICH",
        help=(
            "newest, genesis, an outer step, or the first characters of a digest. head is the "
            "newest snapshot with all later updates applied, which takes memory for θ and m."
        ),
    ),
]
DtypeOption = Annotated[
    NumberFormat,
    typer.Option(
        "--dtype", help="Number format; bf16 halves the size and rounds the certified weights."
    ),
]
ShardOption = Annotated[
    int,
    typer.Option(
        "--shard-mb", min=1, metavar="MB", help="Maximum size of each weights file, in MB."
    ),
]
ParityOption = Annotated[
    bool | None,
    typer.Option(
        "--parity/--no-parity",
        help="Compare the logits with those of transformers.",
        show_default="if transformers is installed",
    ),
]
NamesOption = Annotated[
    bool,
    typer.Option(
        "--names",
        help="Name the contributors on the model card, if the run lets strangers see names.",
    ),
]


def export(
    folder: Annotated[
        Path, typer.Argument(metavar="DIR", help="Folder to create.", show_default=False)
    ],
    to: Annotated[ExportTarget, typer.Option("--to", help="Format to write.")] = ExportTarget.HF,
    snapshot: SnapshotOption = "newest",
    dtype: DtypeOption = NumberFormat.FP32,
    shard_mb: ShardOption = 5000,
    force: Annotated[
        bool, typer.Option("--force", help="Replace an earlier export in DIR.")
    ] = False,
    parity: ParityOption = None,
    names: NamesOption = False,
    home: HomeOption = None,
    as_json: JsonOption = False,
) -> None:
    """Write the run's weights as a Hugging Face folder.

    The folder contains safetensors, a tokenizer and a model card. Works whether or not a node runs
    in the home, and after p2ptrain ckpt fetch. Every chunk is checked against its certified digest,
    and the folder is created completely or not at all.
    """
    from p2ptrain.export.atomic_folder import clear_away
    from p2ptrain.export.choosing import find
    from p2ptrain.export.folder import ExportPlan, check_target, export
    from p2ptrain.export.parity import hindrance, is_wanted
    from p2ptrain.store import StoreReader
    from p2ptrain.trainer.formats.shapes import parameter_count

    assert to is ExportTarget.HF, "hf is the only format"
    folder = folder.expanduser().absolute()
    for left in clear_away(folder):
        progress(f"removed {left}, the remains of an export that was killed")
    check_target(folder, force=force)
    where = open_home(home, to_write=False)
    run, store = run_of(where), StoreReader(where.store)
    parameters = parameter_count(run.manifest.model)
    installed = outside().is_installed("transformers")
    compared = is_wanted(parity, parameters, installed=installed)
    found = find(run, _chain(where, run), store, snapshot, progress)
    tokenizer = _tokenizer(run, store)
    origin = _with_names(where, run, found.origin) if names else found.origin
    what = run.manifest.model, origin, tokenizer
    plan = ExportPlan(*what, dtype.value, shard_mb * 1_000_000, found.certificate)
    seen: list[Parity] = []
    check_folder, free = _parity_check(compared, seen), outside().disk_free_bytes
    exported = export(plan, found.theta, folder, force=force, check_folder=check_folder, free=free)
    if as_json:
        more = {"dtype": plan.dtype, "updates_after": found.updates_after}
        result_json(_facts(origin, exported, seen) | more)
    else:
        lacking = hindrance(parameters, installed=installed) if parity is None else "--no-parity"
        for line in _lines(origin, exported, seen, lacking):
            result(line)
    if found.updates_after:
        progress(
            f"{counted(found.updates_after, 'outer step')} ended after that snapshot; "
            "--snapshot head applies the updates that this home holds"
        )


def _with_names(where: Home, run: Run, origin: Provenance) -> Provenance:
    """Return `origin` with the peers that contributed until its outer step.

    Raises ConfigError: the run does not let strangers see names, or the ledger here begins later.
    """
    from p2ptrain.archive.chain_reader import ChainVerifier, records_in
    from p2ptrain.archive.contributions import contributions
    from p2ptrain.archive.ledger_on_disk import rules_of

    if not run.manifest.public.names:
        raise ConfigError(
            f"run {run.manifest.name!r} does not let strangers see the names of its peers",
            likely="its run file does not say names = true under [public]",
            do="leave out --names",
        )
    walk = ChainVerifier(rules_of(run), records_in(where.ledger), where.ledger)
    if walk.begins.step > origin.step:
        raise ConfigError(
            f"the ledger here begins after outer step {origin.step}, so it does not show who "
            "contributed to these weights",
            do="leave out --names, or choose a later snapshot",
        )
    until = takewhile(lambda link: link.after.step <= origin.step, walk.links())
    links = ((link.before, link.after, link.certified.entry) for link in until)
    ranked = contributions(walk.begins, links).ranked()
    named = ((peer, theirs.tokens) for peer, theirs in ranked if theirs.tokens)
    return replace(origin, contributors=tuple(named))


def _parity_check(compared: bool, seen: list[Parity]) -> Callable[[Path], None]:
    """Return a function that checks an exported folder. If `compared`, the function compares the
    logits of the folder with those of transformers, and appends the result to `seen`.
    """
    from p2ptrain.export.parity import compare

    def check_folder(written: Path) -> None:
        if compared:
            seen.append(compare(written, outside().python))

    return check_folder


def export_newest(home: Path, folder: Path) -> Path:
    """Export the newest certified snapshot in `home` to `folder`, and return that folder."""
    from p2ptrain.export.choosing import find
    from p2ptrain.export.folder import ExportPlan, export
    from p2ptrain.store import StoreReader

    where = open_home(home, to_write=False)
    run, store = run_of(where), StoreReader(where.store)
    found = find(run, _chain(where, run), store, "newest", progress)
    tokenizer = _tokenizer(run, store)
    progress(f"the newest snapshot held here is that of outer step {found.origin.step}")
    plan = ExportPlan(run.manifest.model, found.origin, tokenizer, certificate=found.certificate)
    return export(plan, found.theta, folder, free=outside().disk_free_bytes).folder


def _tokenizer(run: Run, store: StoreReader) -> Tokenizer:
    """Read the run's tokenizer from the store. Raises StoreError."""
    from p2ptrain.export.tokens import Tokenizer

    manifest = run.manifest
    return Tokenizer.of(store.read_blob(manifest.tokenizer), manifest.data.document_token)


def _chain(where: Home, run: Run) -> ChainContents:
    """Read the ledger in the home and check each certificate. Raises StoreError."""
    from p2ptrain.archive.amendments import Amendments
    from p2ptrain.archive.chain_reader import ChainVerifier, records_in
    from p2ptrain.archive.ledger_on_disk import rules_of
    from p2ptrain.archive.replay import chain_facts
    from p2ptrain.export.choosing import ChainContents

    walk = ChainVerifier(rules_of(run), records_in(where.ledger), where.ledger)
    tokens_before = {walk.begins.step: walk.begins.tokens}
    naming: dict[int, tuple[LineId, Certified]] = {}
    account = chain_facts(run.manifest, walk.begins, _counted(walk, tokens_before, naming))
    amendments = Amendments.of(where, run)
    state = walk.state
    return ChainContents(account, tokens_before, state.height, state.head, amendments, naming)


def _counted(
    walk: ChainVerifier,
    tokens_before: dict[int, int],
    naming: dict[int, tuple[LineId, Certified]],
) -> Iterator[Certified]:
    """Yield the entries. Record the tokens before each outer step, and the entries that name a
    snapshot."""
    from p2ptrain.ledger.chain.values import Commit

    for link in walk.links():
        tokens_before[link.after.step] = link.after.tokens
        entry = link.certified.entry
        if isinstance(entry.value, Commit) and entry.value.snapshot is not None:
            naming[entry.height] = (link.before.line, link.certified)
        yield link.certified


def _facts(origin: Provenance, exported: Exported, seen: list[Parity]) -> dict[str, object]:
    return {
        **asdict(origin),
        "folder": str(exported.folder),
        "files": list(exported.files),
        "bytes": exported.bytes,
        "theta": exported.theta,
        "parity": asdict(seen[0]) if seen else None,
    }


def _lines(
    origin: Provenance, exported: Exported, seen: list[Parity], lacking: str
) -> Iterator[str]:
    """Yield the lines to print. If `seen` is empty, `lacking` says why no logits were compared."""
    yield from described(origin, exported)
    for parity in seen:
        yield parity.words
    if not seen:
        yield f"the logits were not compared with transformers: {lacking}"
    yield chat_command(exported)


def described(origin: Provenance, exported: Exported) -> Iterator[str]:
    """Yield lines that say what was exported, and who certified it."""
    from p2ptrain.observe.states import size

    if origin.loudly is not None:
        yield origin.loudly
    tokens = "" if origin.tokens is None else f", after {origin.tokens:,} tokens"
    yield f"{exported.folder}: {origin.run_name} before outer step {origin.step}{tokens}"
    yield f"{origin.words}; θ {exported.theta}"
    yield f"{counted(len(exported.files), 'file')}, {size(exported.bytes)}"


def chat_command(exported: Exported) -> str:
    return f"p2ptrain chat {shlex.quote(str(exported.folder))}"

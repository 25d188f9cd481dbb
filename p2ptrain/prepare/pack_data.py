"""Pack the data source of a run file into blocks in a store, for `run publish` and `data pack`.

`data pack` creates a folder that a run file can use as its source:

    DIR/data.json   facts about the data: counts, sizes, digests
    DIR/store/      the blocks, their index, the tokenizer

The folder is created as DIR.partial/whole and renamed when it is complete.
"""

from __future__ import annotations

import dataclasses
import json
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path

from p2ptrain.config.run_file import DataSection, RunFile
from p2ptrain.data.pack import PackSpec, pack_stream
from p2ptrain.data.sources import DataSource, find_source
from p2ptrain.data.tokenizer_file import read_tokenizer
from p2ptrain.data.vocabulary import (
    READS_SAMPLE_CHARACTERS_MAX,
    SAMPLE_CHARACTERS_MAX,
    Vocabulary,
    learn_reads,
    learn_text,
    marked,
    sample,
)
from p2ptrain.errors import ChunkCorrupt, ChunkMissing, ConfigError, ManifestInvalid, counted
from p2ptrain.ids import Digest, is_digest
from p2ptrain.observe.states import size
from p2ptrain.run import DataIndex, data_index
from p2ptrain.store import Store, StoreReader

TOKENIZER_KIND = "tokenizer"
FACTS_FILE = "data.json"
FACTS_BYTES_MAX = 64 * 1024

PrintLine = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class PackedData:
    """Facts about packed data, with the digests of what was put into the store.

    `sequence` and `block_sequences` are the run's context length and inner batch. The token `begin`
    precedes each document. `document_token` is the same token, or None if attention may cross the
    borders of documents. `documents` counts each text file as one document.
    """

    index: Digest
    tokenizer: Digest
    train_blocks: int
    validation_blocks: int
    vocab: int
    sequence: int
    block_sequences: int
    begin: int
    document_token: int | None
    documents: int
    text_bytes: int
    tokens: int
    entropy_nats: float

    @property
    def words(self) -> str:
        per_token = self.text_bytes / max(1, self.tokens)
        return (
            f"{counted(self.train_blocks, 'training block')} of "
            f"{self.block_sequences * self.sequence} tokens, "
            f"{counted(self.validation_blocks, 'validation block')}: "
            f"{counted(self.documents, 'document')}, "
            f"{size(self.text_bytes)}, {per_token:.2f} bytes per token; a model that knows only "
            f"token frequencies has a loss of {self.entropy_nats:.4f} nats"
        )


def make_data(
    run_file: RunFile, beside: Path, store: Store, scratch: Path, print_line: PrintLine
) -> PackedData:
    """Put the data of this run file into `store`: pack them, or copy them from a folder that `data
    pack` has created. Relative paths in the run file start from the folder `beside`. `scratch` is a
    folder for temporary files.

    Raises:
        ConfigError: the source is damaged or too small, or was packed for other sizes.
        StoreError: the disk is full.
    """
    folder = beside / Path(run_file.data.source).expanduser()
    if (folder / FACTS_FILE).is_file():
        print_line(f"using the packed data in {folder}")
        made = _taken_from(folder, beside, run_file, store)
        _warn_of_ignored_settings(run_file.data, made, print_line)
    else:
        with _empty_folder(scratch):
            made = _packed(run_file, beside, store, scratch, print_line)
    return made


def _warn_of_ignored_settings(
    section: DataSection, made: PackedData, print_line: PrintLine
) -> None:
    """Warn about settings in the run file that have no effect on data that are already packed."""
    asked, wanted = section.model_fields_set, section.validation_blocks
    if "validation_blocks" in asked and wanted != made.validation_blocks:
        print_line(
            f"data.validation_blocks is {wanted}, but {made.validation_blocks} were packed "
            "and are used; to change that, pack the data again"
        )
    if settled := sorted(asked & {"field", "limit_mb", "seed"}):
        names = ", ".join(f"data.{name}" for name in settled)
        print_line(f"{names}: the packed data's values are used, not those of the run file")


def pack_folder(run_file: RunFile, beside: Path, out: Path, print_line: PrintLine) -> PackedData:
    """Pack the data into a new folder `out`, which appears only when it is complete.

    Raises ConfigError as `make_data` does, or if `out` already exists.
    """
    if out.exists():
        raise ConfigError(f"{out} already exists", do="choose another folder with --out")
    partial_out = out.with_name(out.name + ".partial")
    with _empty_folder(partial_out):
        whole = partial_out / "whole"
        whole.mkdir()
        with Store(whole / "store") as store:
            made = make_data(run_file, beside, store, partial_out / "scratch", print_line)
        (whole / FACTS_FILE).write_text(json.dumps(asdict(made), indent=1) + "\n")
        whole.rename(out)
    return made


@contextmanager
def _empty_folder(folder: Path) -> Iterator[None]:
    """Create `folder` without content, and delete it at the end, also after an exception."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    try:
        yield
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _packed(
    run_file: RunFile, beside: Path, store: Store, scratch: Path, print_line: PrintLine
) -> PackedData:
    spec = PackSpec(
        vocab=run_file.model.vocab,
        sequence=run_file.model.sequence,
        block_sequences=run_file.inner.batch_sequences,
        validation_blocks=run_file.data.validation_blocks,
        seed=run_file.data.seed,
    )
    section = run_file.data
    limit_bytes = int(section.limit_mb * 1e6)
    source = find_source(
        section.source, field=section.field, limit_bytes=limit_bytes, beside=beside
    )
    kind = "reads" if source.holds_reads else "text"
    print_line(f"packing {section.source} as {kind}, at most {size(limit_bytes)}")
    vocabulary = _vocabulary(section, source, spec, beside)
    keep = partial(store.put_chunk, durable=False)
    packed = pack_stream(source.pieces(), vocabulary, spec, scratch, keep)
    store.make_durable()
    index = DataIndex(packed.train, packed.validation)
    masked = section.mask_documents
    apart = source.holds_records if masked is None else masked
    return PackedData(
        store.put_blob(data_index.KIND, [index.to_bytes()], {}),
        store.put_blob(TOKENIZER_KIND, [packed.tokenizer_json], {}),
        len(packed.train),
        len(packed.validation),
        vocab=vocabulary.size,
        sequence=spec.sequence,
        block_sequences=spec.block_sequences,
        begin=packed.begin,
        document_token=packed.begin if apart else None,
        documents=packed.documents,
        text_bytes=packed.text_bytes,
        tokens=packed.tokens,
        entropy_nats=packed.entropy_nats,
    )


def _vocabulary(
    section: DataSection, source: DataSource, spec: PackSpec, beside: Path
) -> Vocabulary:
    """Return the tokenizer that the run file names. If it names none, learn one from the source."""
    if section.tokenizer is not None:
        return _named(section, section.tokenizer, beside)
    texts = (piece.text for piece in source.pieces())
    if source.holds_reads:
        return learn_reads(sample(texts, spec.seed, READS_SAMPLE_CHARACTERS_MAX), spec.vocab)
    return learn_text(sample(texts, spec.seed, SAMPLE_CHARACTERS_MAX), spec.vocab)


def _named(section: DataSection, path: str, beside: Path) -> Vocabulary:
    tokenizer = read_tokenizer(beside / Path(path).expanduser())
    return marked(tokenizer, section.begin, section.end)


# ── a folder that was packed earlier ─────────────────────────────────────────────────────────────


def _taken_from(folder: Path, beside: Path, run_file: RunFile, store: Store) -> PackedData:
    made, batch = _facts(folder), run_file.inner.batch_sequences
    if made.sequence != run_file.model.sequence:
        raise _made_for("model.sequence", run_file.model.sequence, str(made.sequence), folder)
    if made.block_sequences != batch:
        raise _made_for("inner.batch_sequences", batch, str(made.block_sequences), folder)
    if made.vocab > run_file.model.vocab:
        raise _made_for("model.vocab", run_file.model.vocab, f"{made.vocab} or more", folder)
    try:
        theirs = StoreReader(folder / "store")
        _require_tokenizer(run_file.data, beside, folder, made, theirs.read_blob(made.tokenizer))
        _copy(theirs, store, made)
    except (ChunkMissing, ChunkCorrupt, ManifestInvalid) as exc:
        raise ConfigError(
            f"data.source: {folder} is damaged: {exc.what}",
            code="DATA-SOURCE",
            do="pack the data again with p2ptrain data pack",
        ) from exc
    masked = run_file.data.mask_documents
    if masked is None:
        return made
    return dataclasses.replace(made, document_token=made.begin if masked else None)


def _require_tokenizer(
    section: DataSection, beside: Path, folder: Path, made: PackedData, packed: bytes
) -> None:
    """If the run file names a tokenizer, check that the data were packed with this tokenizer.
    `packed` is the JSON of the tokenizer with which they were packed."""
    if section.tokenizer is None:
        return
    named = _named(section, section.tokenizer, beside)
    if (named.to_json(), named.begin) != (packed, made.begin):
        raise ConfigError(
            f"data.tokenizer is {section.tokenizer}, but {folder} was packed with a different "
            "tokenizer or different marks",
            do="leave data.tokenizer out, or pack the data again for this run file",
        )


def _copy(theirs: StoreReader, store: Store, made: PackedData) -> None:
    """Copy every chunk. `get_chunk` verifies each chunk against its digest."""
    index = DataIndex.from_bytes(
        theirs.read_blob(made.index),
        train_blocks=made.train_blocks,
        validation_blocks=made.validation_blocks,
    )
    blobs = (made.index, made.tokenizer)
    pieces = [chunk for blob in blobs for chunk in (*theirs.manifest(blob).chunks, blob)]
    for digest in (*index.train, *index.validation, *pieces):
        store.put_chunk(theirs.get_chunk(digest), expected=digest, durable=False)
    store.make_durable()


def _facts(folder: Path) -> PackedData:
    path = folder / FACTS_FILE
    try:
        with path.open("rb") as file:
            made = PackedData(**json.loads(file.read(FACTS_BYTES_MAX)))
        counts = (made.train_blocks, made.validation_blocks, made.documents, made.tokens)
        good = all(type(count) is int and count >= 0 for count in counts)
        good = good and is_digest(made.index) and is_digest(made.tokenizer)
        good = good and type(made.begin) is int and made.document_token in (None, made.begin)
    except (OSError, ValueError, TypeError, RecursionError):
        good = False
    if not good:
        raise ConfigError(
            f"data.source: {path} was not written by p2ptrain data pack",
            code="DATA-SOURCE",
            do="pack the data again with p2ptrain data pack",
        )
    return made


def _made_for(field: str, wanted: int, found: str, folder: Path) -> ConfigError:
    return ConfigError(
        f"{field} is {wanted}, but {folder} was packed for {found}",
        do=f"set {field} to {found}, or pack the data again for this run file",
    )

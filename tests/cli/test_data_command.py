"""A run has the same data whether they were packed before its publication or during it. An error
says which setting of the run does not fit the packed data."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from p2ptrain.archive.home import Home
from p2ptrain.data.blocks import decode_block
from p2ptrain.data.vocabulary import learn_text
from p2ptrain.run import DataIndex, Run, load_run
from p2ptrain.store import Store
from tests.cli.conftest import RUN_TOML, Command, Outcome

TEXTS = [{"body": f"{n} times {n} is {n * n}. " * 4} for n in range(600)]


@pytest.fixture
def here(tmp_path: Path) -> Path:
    (tmp_path / "texts.jsonl").write_text("".join(json.dumps(text) + "\n" for text in TEXTS))
    return tmp_path


def run_file(here: Path, source: str, *changes: tuple[str, str]) -> Path:
    text = RUN_TOML.replace('"stdlib"', f'"{source}"')
    for old, new in changes:
        assert old in text
        text = text.replace(old, new)
    (here / "run.toml").write_text(text)
    return here / "run.toml"


FIELD = ("seed = 1\n\n[inner]", 'seed = 1\nfield = "body"\n\n[inner]')


def publish(p2ptrain: Command, file: Path, home: str) -> tuple[Outcome, Run | None]:
    where = file.parent / home
    outcome = p2ptrain("run", "publish", file, "--home", where)
    return outcome, load_run(Home(where).manifest)


def test_data_packed_before_or_at_publication_give_the_same_run(
    p2ptrain: Command, here: Path
) -> None:
    file = run_file(here, "texts.jsonl", FIELD)
    done = p2ptrain("data", "pack", "--run", file, "--out", here / "packed", "--json")
    assert done.code == 0, done.err
    assert sorted(item.name for item in here.iterdir()) == ["packed", "run.toml", "texts.jsonl"]
    _, at_once = publish(p2ptrain, file, "one")
    outcome, from_folder = publish(p2ptrain, run_file(here, "packed"), "two")
    assert at_once is not None, outcome.err
    assert from_folder is not None, outcome.err
    assert from_folder.manifest.data == at_once.manifest.data
    assert from_folder.manifest.tokenizer == at_once.manifest.tokenizer
    assert at_once.manifest.data.document_token == 0
    assert done.json["index"] == at_once.manifest.data.index
    assert 2 < done.json["entropy_nats"] < np.log(512)
    assert f"has a loss of {done.json['entropy_nats']:.4f} nats" in outcome.err


def test_packed_folder_is_not_modified_so_two_runs_can_use_it_at_once(
    p2ptrain: Command, here: Path
) -> None:
    file = run_file(here, "texts.jsonl", FIELD)
    assert p2ptrain("data", "pack", "--run", file, "--out", here / "packed").code == 0
    file, packed = run_file(here, "packed"), here / "packed" / "store"
    (packed / "lock").unlink()
    before = {path: path.stat().st_mtime_ns for path in packed.rglob("*")}
    outcome, run = publish(p2ptrain, file, "one")
    assert run is not None, outcome.err
    assert {path: path.stat().st_mtime_ns for path in packed.rglob("*")} == before
    with Store(packed):
        outcome, other = publish(p2ptrain, file, "two")
    assert other is not None, outcome.err
    assert other.manifest.data == run.manifest.data


def test_run_file_cannot_change_the_number_of_held_out_blocks(
    p2ptrain: Command, here: Path
) -> None:
    file = run_file(here, "texts.jsonl", FIELD)
    assert p2ptrain("data", "pack", "--run", file, "--out", here / "packed").code == 0
    same, _ = publish(p2ptrain, run_file(here, "packed"), "same")
    assert "validation_blocks" not in same.err
    more = ("validation_blocks = 2", "validation_blocks = 3")
    told, run = publish(p2ptrain, run_file(here, "packed", more), "more")
    assert "data.validation_blocks is 3, but 2 were packed and are used" in told.err
    assert run is not None
    assert run.manifest.data.validation_blocks == 2


def test_dna_reads_are_packed_with_begin_tokens_and_published(
    p2ptrain: Command, here: Path
) -> None:
    reads = here / "reads.fastq.gz"
    assert p2ptrain("data", "synthesise", reads, "--reads", 800, "--read-bases", 90).code == 0
    outcome, run = publish(p2ptrain, run_file(here, "reads.fastq.gz"), "home")
    assert run is not None, outcome.err
    data = run.manifest.data
    assert data.document_token == 4
    with Store(here / "home" / "store") as store:
        index = DataIndex.from_bytes(
            store.read_blob(data.index),
            train_blocks=data.train_blocks,
            validation_blocks=data.validation_blocks,
        )
        rows = decode_block(store.get_chunk(index.train[0]), vocab=512, sequence=32)
    assert (rows == 4).any(axis=1).sum() > 0


def test_run_file_can_mask_plain_text_documents(p2ptrain: Command, here: Path) -> None:
    mark = ("seed = 1\n\n[inner]", "seed = 1\nmask_documents = true\n\n[inner]")
    outcome, run = publish(p2ptrain, run_file(here, "stdlib", mark), "home")
    assert run is not None, outcome.err
    assert run.manifest.data.document_token == 0


def test_given_tokenizer_is_used_for_the_run(p2ptrain: Command, here: Path) -> None:
    known = learn_text([text["body"] for text in TEXTS], 300)
    (here / "mine.json").write_bytes(known.to_json())
    given = (
        FIELD[0],
        FIELD[1].replace("\n\n", '\nmask_documents = false\ntokenizer = "mine.json"\n\n'),
    )
    outcome, run = publish(p2ptrain, run_file(here, "texts.jsonl", given), "home")
    assert run is not None, outcome.err
    assert run.manifest.data.document_token is None
    with Store(here / "home" / "store") as store:
        assert store.read_blob(run.manifest.tokenizer) == known.to_json()
    (here / "mine.json").write_text("{}")
    outcome, run = publish(p2ptrain, here / "run.toml", "other")
    assert (outcome.code, run) == (2, None)
    assert "data.tokenizer: " in outcome.err


def test_packed_folder_that_contradicts_the_run_file_is_refused(
    p2ptrain: Command, here: Path
) -> None:
    for name, size in (("mine", 300), ("other", 310)):
        known = learn_text([text["body"] for text in TEXTS], size)
        (here / f"{name}.json").write_bytes(known.to_json())

    def named(tokenizer: str) -> tuple[str, str]:
        return FIELD[0], FIELD[1].replace("\n\n", f'\ntokenizer = "{tokenizer}.json"\n\n')

    file = run_file(here, "texts.jsonl", named("mine"))
    assert p2ptrain("data", "pack", "--run", file, "--out", here / "packed").code == 0
    same, run = publish(p2ptrain, run_file(here, "packed", named("mine")), "same")
    assert run is not None, same.err
    assert "data.field, data.limit_mb, data.seed: the packed data's values are used" in same.err
    for tokenizer, said in (("other", "was packed with a different"), ("none", "cannot be read")):
        outcome, run = publish(p2ptrain, run_file(here, "packed", named(tokenizer)), tokenizer)
        assert (outcome.code, run) == (2, None)
        assert said in outcome.err


def spoil(here: Path) -> None:
    block = max((here / "packed" / "store").rglob("*"), key=lambda path: len(path.name))
    block.write_bytes(b"x" * block.stat().st_size)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (("sequence = 32", "sequence = 16"), "model.sequence is 16, but "),
        (("batch_sequences = 4", "batch_sequences = 8"), "inner.batch_sequences is 8, but "),
        (("vocab = 512", "vocab = 300"), "set model.vocab to 512 or more"),
        (None, "is damaged: "),
        ({"tokens": -1}, "was not written by p2ptrain data pack"),
        ({"more": 1}, "was not written by p2ptrain data pack"),
    ],
    ids=str,
)
def test_damaged_folder_or_one_packed_for_a_different_run_is_refused(
    p2ptrain: Command, here: Path, change: object, said: str
) -> None:
    pack = ("data", "pack", here / "texts.jsonl", "--field", "body", "--out", here / "packed")
    assert p2ptrain(*pack, "--run", run_file(here, "stdlib")).code == 0
    changes = []
    match change:
        case tuple():
            changes = [change]
        case dict():
            facts = here / "packed" / "data.json"
            facts.write_text(json.dumps(json.loads(facts.read_text()) | change))
        case _:
            spoil(here)
    outcome, run = publish(p2ptrain, run_file(here, "packed", *changes), "home")
    assert (outcome.code, run) == (2, None)
    assert said in outcome.err


def test_packing_prints_its_result_once(p2ptrain: Command, here: Path) -> None:
    assert p2ptrain("data", "synthesise", here / "reads.fas", "--reads", 9).code == 2
    assert p2ptrain("data", "synthesise", here / "reads.fa", "--reads", 300).code == 0
    (here / "reads.fa").rename(here / "reads.fas")
    for source, kind in (("reads.fas", "reads"), ("texts.jsonl", "text")):
        file = run_file(here, source, FIELD)
        outcome = p2ptrain("data", "pack", "--run", file, "--out", here / kind)
        assert (outcome.code, outcome.out.count("\n")) == (0, 1)
        assert f"packing {source} as {kind}, at most " in outcome.err
        assert outcome.out.strip() not in outcome.err


def test_failed_packing_creates_nothing(p2ptrain: Command, here: Path) -> None:
    (here / "mine").mkdir()
    (here / "texts.jsonl").write_text('{"text": "good"}\n{"text"\n')
    file = run_file(here, "texts.jsonl")
    for out, said in (
        ("mine", "mine already exists"),
        ("new", "texts.jsonl, line 2: it is not JSON"),
    ):
        outcome = p2ptrain("data", "pack", "--run", file, "--out", here / out)
        assert outcome.code == 2
        assert said in outcome.err
    assert sorted(item.name for item in here.iterdir()) == ["mine", "run.toml", "texts.jsonl"]

"""An organiser creates a run with `run new`, `run publish` and `run show`."""

from __future__ import annotations

import dataclasses
import tomllib
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from p2ptrain.archive.home import Home
from p2ptrain.config.samples import sample
from p2ptrain.data.blocks import decode_block
from p2ptrain.errors import StoreError
from p2ptrain.identity import Identity, load_or_create
from p2ptrain.prepare import machine_check
from p2ptrain.prepare.publish import publish_run
from p2ptrain.run import DataIndex, load_allowlist, load_run
from p2ptrain.store import Store, StoreReader
from p2ptrain.trainer.formats.shapes import layout_of
from tests.cli.conftest import RUN_TOML, Command

PEERS = [Identity.from_seed(bytes([number]) * 32).peer for number in range(1, 4)]


def test_new_run_file_is_valid(p2ptrain: Command, tmp_path: Path) -> None:
    out = tmp_path / "my.toml"
    outcome = p2ptrain("run", "new", "--out", out)
    assert (outcome.code, outcome.out) == (0, "")
    assert out.read_text() == sample("demo")
    assert f"p2ptrain run publish {out}" in outcome.err


def test_new_run_file_does_not_overwrite_a_file(p2ptrain: Command, tmp_path: Path) -> None:
    out = tmp_path / "my.toml"
    out.write_text("mine")
    assert p2ptrain("run", "new", "--out", out).code == 2
    assert out.read_text() == "mine"
    assert p2ptrain("run", "new", "--out", tmp_path / "x.toml", "--size", "huge").code == 2


def test_unwritable_run_file_is_reported(p2ptrain: Command, tmp_path: Path) -> None:
    outcome = p2ptrain("run", "new", "--out", tmp_path / "none" / "run.toml")
    assert outcome.code == 2
    assert "run.toml cannot be written: No such file or directory" in outcome.err
    assert "choose another place with --out" in outcome.err
    made = p2ptrain("run", "new", "--out", tmp_path / "run.toml", "--json")
    assert made.json["file"] == str(tmp_path / "run.toml")


def test_published_run_is_complete(organiser_home: Path) -> None:
    """Everything that the manifest references is in the store with the right contents."""
    home = Home(organiser_home)
    run = load_run(home.manifest)
    assert run is not None
    manifest = run.manifest
    layout = layout_of(manifest.model)
    assert manifest.layout == layout.digest
    with Store(home.store) as store:
        index = DataIndex.from_bytes(
            store.read_blob(manifest.data.index),
            train_blocks=manifest.data.train_blocks,
            validation_blocks=manifest.data.validation_blocks,
        )
        for block in (*index.train, *index.validation):
            tokens = decode_block(store.get_chunk(block), vocab=512, sequence=32)
            assert tokens[:, 1:].size == manifest.data.block_tokens
        genesis = np.frombuffer(store.read_blob(manifest.genesis), dtype="<f4")
        assert genesis.shape == (2 * layout.numel,)
        assert np.isfinite(genesis).all()
        assert genesis[: layout.numel].any()
        assert not genesis[layout.numel :].any()
        assert b"endoftext" in store.read_blob(manifest.tokenizer)


def test_organiser_is_founder_and_allowed_by_default(
    organiser_home: Path,
) -> None:
    home = Home(organiser_home)
    run = load_run(home.manifest)
    assert run is not None
    me = load_or_create(home.identity).peer
    held = load_allowlist(home.allowlist, run)
    assert held is not None
    assert (run.manifest.organiser, run.manifest.founders) == (me, (me,))
    assert (held.allowlist.sequence, held.allowlist.peers) == (1, (me,))


def test_founders_and_allowed_peers_are_as_requested(p2ptrain: Command, tmp_path: Path) -> None:
    (tmp_path / "run.toml").write_text(RUN_TOML)
    outcome = p2ptrain(
        *("run", "publish", tmp_path / "run.toml", "--home", tmp_path / "home", "--json"),
        *("--founder", PEERS[1], "--founder", f"/ip4/1.2.3.4/tcp/1/p2p/{PEERS[0]}"),
        *("--founder", PEERS[1], "--allow", PEERS[2]),
    )
    assert outcome.code == 0
    assert outcome.json["founders"] == [PEERS[1], PEERS[0]]
    home = Home(tmp_path / "home")
    run = load_run(home.manifest)
    assert run is not None
    assert outcome.json["run"] == run.id
    held = load_allowlist(home.allowlist, run)
    assert held is not None
    assert held.allowlist.peers == tuple(sorted([*PEERS, run.manifest.organiser]))


def test_publishing_the_same_file_twice_gives_identical_data(
    organiser_home: Path, tmp_path: Path
) -> None:
    (tmp_path / "run.toml").write_text((organiser_home / "run.toml").read_text())
    said: list[str] = []
    again = publish_run(
        tmp_path / "run.toml",
        Home(tmp_path / "home"),
        founders=[],
        allowed=[],
        print_line=said.append,
    )
    first = load_run(Home(organiser_home).manifest)
    assert first is not None
    ours = dataclasses.replace(
        again.manifest,
        organiser=first.manifest.organiser,
        founders=first.manifest.founders,
        created_unix=first.manifest.created_unix,
    )
    assert ours == first.manifest
    assert said[0].startswith("packing ")


def test_second_run_is_not_published_in_the_same_home(
    p2ptrain: Command, organiser_home: Path
) -> None:
    before = (organiser_home / "run" / "manifest.signed").read_bytes()
    outcome = p2ptrain("run", "publish", organiser_home / "run.toml", "--home", organiser_home)
    assert outcome.code == 2
    assert outcome.err.startswith("error[RUN-EXISTS]")
    assert (organiser_home / "run" / "manifest.signed").read_bytes() == before


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("width = 32", "width = 33", "width 33 must be an even multiple"),
        ('source = "stdlib"', 'source = "none.txt"', "none.txt: it cannot be read: No such file"),
        ('source = "stdlib"', 'source = "raw.bin"', "raw.bin, line 1: it is not UTF-8"),
        ('source = "stdlib"', 'source = "empty"', "it does not contain any files"),
        ('source = "stdlib"', 'source = "void.txt"', "does not contain text"),
        ("limit_mb = 0.06", "limit_mb = 0.001", "tokens are not enough"),
    ],
)
def test_failed_publication_leaves_nothing_behind(
    old: str, new: str, said: str, p2ptrain: Command, tmp_path: Path
) -> None:
    (tmp_path / "raw.bin").write_bytes(b"\xff\xfe\xfd")
    (tmp_path / "empty").mkdir()
    (tmp_path / "void.txt").touch()
    assert old in RUN_TOML
    (tmp_path / "run.toml").write_text(RUN_TOML.replace(old, new))
    outcome = p2ptrain("run", "publish", tmp_path / "run.toml", "--home", tmp_path / "home")
    assert outcome.code == 2
    assert said in outcome.err
    assert outcome.out == ""
    assert not (tmp_path / "home" / "run" / "manifest.signed").exists()
    assert not (tmp_path / "home" / "packing").exists()


@pytest.mark.parametrize("source", ["story.txt", "stories"])
def test_run_with_the_organisers_own_text_can_be_published(
    source: str, p2ptrain: Command, tmp_path: Path
) -> None:
    text = "".join(f"{number} times {number} is {number * number}.\n" for number in range(4000))
    (tmp_path / "stories").mkdir()
    for name in ("story.txt", "stories/a.txt", "stories/b.txt"):
        (tmp_path / name).write_text(text)
    (tmp_path / "run.toml").write_text(RUN_TOML.replace('"stdlib"', f'"{source}"'))
    outcome = p2ptrain("run", "publish", tmp_path / "run.toml", "--home", tmp_path / "h", "--json")
    assert outcome.code == 0
    assert outcome.json["train_blocks"] > 50


@pytest.mark.parametrize(
    ("lacks", "code"),
    [
        ({"memory": 39_584 * 4 - 1}, "MEM-HOST"),
        ({"disk_free": 39_584 * 4 - 1}, "DISK-LOW"),
    ],
)
def test_data_are_not_packed_if_the_first_weights_cannot_be_made(
    lacks: dict[str, Any],
    code: str,
    p2ptrain: Command,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    machine = dataclasses.replace(machine_check.machine_of(Home(tmp_path)), **lacks)
    monkeypatch.setattr(machine_check, "machine_of", lambda home: machine)
    (tmp_path / "run.toml").write_text(RUN_TOML)
    outcome = p2ptrain("run", "publish", tmp_path / "run.toml", "--home", tmp_path / "home")
    assert outcome.code == 4
    assert outcome.err.startswith(f"error[{code}]")
    assert list(StoreReader(tmp_path / "home" / "store").listed()) == []


def test_first_weights_take_the_predicted_disk_space(
    organiser_home: Path,
) -> None:
    """The momentum takes hardly any space: it is all zeros, and equal chunks are stored once."""
    home = Home(organiser_home)
    run = load_run(home.manifest)
    assert run is not None
    store = StoreReader(home.store)
    manifest = store.manifest(run.manifest.genesis)
    stored = sum(len(store.get_chunk(chunk)) for chunk in set(manifest.chunks))
    theta = layout_of(run.manifest.model).numel * 4
    assert theta <= stored <= theta + 2 * manifest.chunk_bytes


def test_publication_does_not_write_to_a_store_in_use(organiser_home: Path) -> None:
    home = Home(organiser_home)
    home.manifest.unlink()
    with Store(home.store), pytest.raises(StoreError) as caught:
        publish_run(
            organiser_home / "run.toml", home, founders=[], allowed=[], print_line=lambda text: None
        )
    assert caught.value.code == "STORE-BUSY"


def test_run_is_shown_in_words_and_as_json(p2ptrain: Command, organiser_home: Path) -> None:
    lines = p2ptrain("run", "show", "--home", organiser_home).out.splitlines()
    value = p2ptrain("run", "show", "--home", organiser_home, "--json").json
    file = tomllib.loads(RUN_TOML)
    assert lines[0] == f"run       tiny ({value['run']})"
    assert value["schema"] == 1
    assert value["outer_steps"] == file["outer"]["steps"]
    assert any("2 layers of width 32" in line for line in lines)
    assert any("about 80.4 kB up and down" in line for line in lines)


def test_missing_run_and_forged_run_have_different_error_codes(
    p2ptrain: Command, organiser_home: Path, tmp_path: Path
) -> None:
    assert "error[RUN-NONE]" in p2ptrain("run", "show", "--home", tmp_path / "empty").err
    path = organiser_home / "run" / "manifest.signed"
    path.write_bytes(path.read_bytes().replace(b"tiny", b"evil"))
    outcome = p2ptrain("run", "show", "--home", organiser_home)
    assert outcome.code == 2
    assert "error[RUN-FILE]" in outcome.err
    assert "the signature of this manifest is wrong" in outcome.err


def test_identity_is_created_only_once(p2ptrain: Command, tmp_path: Path) -> None:
    first = p2ptrain("id", "--home", tmp_path / "h")
    again = p2ptrain("id", "--home", tmp_path / "h", "--json")
    assert (
        first.out.strip() == again.json["peer"] == load_or_create(tmp_path / "h/identity.key").peer
    )
    assert set(again.json) == {"schema", "peer", "peer_name"}

"""Errors in options and run files name the field, its value, and the allowed values."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.faults.conftest import RUN_TOML, TEXT, Here

OPTIONS: list[tuple[list[str], str, str, str]] = [
    (["--limit-up", "8"], "CONFIG", "'8'", "8Mbit"),
    (["--limit-up", "-3Mbit"], "CONFIG", "'-3Mbit'", "8Mbit"),
    (["--limit-up", "1bit"], "CONFIG", "--limit-up", "8kbit"),
    (["--data-listen", "4202"], "CONFIG", "'4202'", "0.0.0.0:4202"),
    (["--data-listen", "0.0.0.0:99999"], "CONFIG", "99999", "0.0.0.0:4202"),
    (["--listen", "0.0.0.0:4201"], "ADDR-SYNTAX", "0.0.0.0:4201", "/ip4/"),
    (["--listen", "/dns4/a.example/tcp/1"], "ADDR-LISTEN", "a.example", "/ip4/0.0.0.0"),
    (["--listen", "/ip4/203.0.113.7/tcp/4201"], "ADDR-LISTEN", "203.0.113.7", "/ip4/0.0.0.0"),
    (["--announce", "seed.example"], "ADDR-SYNTAX", "seed.example", "/ip4/"),
    (["--ranks", "0"], "CONFIG", "--ranks", "1 to 64"),
    (["--threads", "-1"], "CONFIG", "--threads", "1 or more"),
    (["--device", "tpu"], "CONFIG", "'tpu'", "cuda"),
    (["--run", "demo"], "CONFIG", "'demo'", "64"),
]


@pytest.mark.parametrize(
    ("words", "code", "what", "do"), OPTIONS, ids=[" ".join(row[0]) for row in OPTIONS]
)
def test_wrong_option_is_explained(
    words: list[str], code: str, what: str, do: str, node_here: Here
) -> None:
    screen = node_here(*words)
    screen.is_error(code, 2)
    assert what in screen.what
    assert do in screen.do


@pytest.mark.parametrize("where", ["203.0.113.7:0", "no-such-host.invalid:0"])
def test_unusable_data_address_is_explained(where: str, organiser: Path, here: Here) -> None:
    screen = here(
        *("node", "--seed", "--home", organiser, "--listen", "/ip4/127.0.0.1/tcp/0"),
        *("--data-listen", where),
    )
    screen.is_error("ADDR-LISTEN", 2)
    assert where in screen.what
    assert "--data-listen" in screen.do


FIELDS: list[tuple[str, str, list[str]]] = [
    ("vocab = 300", 'vocab = "300"', ["model.vocab is '300'", "integer"]),
    ("vocab = 300", "vocab = 1", ["model.vocab is 1", "257"]),
    ("heads = 2", "heads = 3", ["width 16", "heads 3"]),
    ("width = 16", "widht = 16", ["model.widht is not a setting; did you mean width?"]),
    ("steps = 100_000 }", "steps = 100_000, lr = nan }", ["outer.lr is nan"]),
    ('name = "faults"', 'name = "My run"', ["run.name is 'My run'", "a-z"]),
    ("validation_blocks = 2", "validation_blocks = 2000", ["tokens are not enough", "2000"]),
    ('source = "text.txt"', 'source = "nothing.txt"', ["data.source", "nothing.txt"]),
    ('source = "text.txt"', 'source = "noise.bin"', ["data.source", "UTF-8"]),
    ('source = "text.txt"', 'source = "empty.txt"', ["data.source", "does not contain text"]),
    ("run = {", "run = ", ["not TOML", "line 2"]),
    ("outer = { steps = 100_000 }", "", ["outer is missing"]),
    ("steps = 2,", "steps = 9_999,", ["inner.steps", "9999"]),
]


@pytest.mark.parametrize(("right", "wrong", "says"), FIELDS, ids=[row[1] for row in FIELDS])
def test_wrong_run_file_is_explained(
    right: str, wrong: str, says: list[str], here: Here, tmp_path: Path
) -> None:
    assert right in RUN_TOML
    (tmp_path / "text.txt").write_text(TEXT)
    (tmp_path / "noise.bin").write_bytes(bytes(range(256)))
    (tmp_path / "empty.txt").touch()
    path, home = tmp_path / "run.toml", tmp_path / "home"
    path.write_text(RUN_TOML.replace(right, wrong))
    screen = here("run", "publish", path, "--home", home)
    screen.is_error(screen.code, 2)
    assert screen.code in ("CONFIG", "DATA-SOURCE")
    assert [text for text in says if text not in screen.what + screen.evidence] == []
    assert not (home / "run" / "manifest.signed").exists()


def test_missing_run_file_is_explained(here: Here, tmp_path: Path) -> None:
    screen = here("run", "publish", tmp_path / "run.toml", "--home", tmp_path / "home")
    screen.is_error("CONFIG", 2)
    assert "run new" in screen.do

"""`Speller` turns text into tokens, and tokens into text as soon as the text is complete."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

from p2ptrain.data.text_tokens import Speller
from p2ptrain.data.vocabulary import learn_reads, learn_text
from p2ptrain.errors import ConfigError


@pytest.fixture
def speller(tmp_path: Path) -> Speller:
    learnt = learn_text(["plain words only, " * 9], 270)
    (tmp_path / "t.json").write_bytes(learnt.to_json())
    return Speller(tmp_path / "t.json")


def test_character_of_several_tokens_is_shown_when_it_is_complete(speller: Speller) -> None:
    text = "words: é, 漢, 🦦."
    shown = [speller.decoded(token) for token in speller.encoded(text)]
    assert "".join(shown) == text
    assert all("\ufffd" not in each for each in shown)
    assert "🦦" in shown
    assert shown.count("") == 1 + 2 + 3


@pytest.fixture
def pieces(tmp_path: Path) -> Speller:
    """Return a tokenizer like Llama 2's: the token of a word includes the space before the word,
    although the decoded text does not start with a space."""
    tokenizer = Tokenizer(models.BPE(unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    spaces = decoders.Replace("▁", " "), decoders.Fuse(), decoders.Strip(" ", 1, 0)
    tokenizer.decoder = decoders.Sequence(list(spaces))
    trainer = trainers.BpeTrainer(
        vocab_size=90, special_tokens=["<unk>", "<s>"], show_progress=False
    )
    tokenizer.train_from_iterator(["the lazy dog, the dog"] * 9, trainer)
    tokenizer.save(str(tmp_path / "pieces.json"))
    return Speller(tmp_path / "pieces.json")


@pytest.mark.parametrize(("tokens_before", "text_before"), [(0, ""), (1, ""), (2, "the")])
def test_words_are_separated_whatever_was_shown_before(
    pieces: Speller, tokens_before: int, text_before: str
) -> None:
    text = "the dog, the lazy dog, the lazy lazy dog, the dog"
    tokens = [1, *pieces.encoded(text)]
    assert len(tokens) > 8 + tokens_before
    pieces.begin(tokens[:tokens_before])
    shown = "".join(map(pieces.decoded, tokens[tokens_before:]))
    assert text_before + shown == text


def test_unknown_tokens_of_a_text_are_counted(tmp_path: Path, speller: Speller) -> None:
    reads = learn_reads(["ACGTTGCA" * 9], 30)
    (tmp_path / "reads.json").write_bytes(reads.to_json())
    of_reads = Speller(tmp_path / "reads.json")
    counted = [of_reads.unknown(of_reads.encoded(text)) for text in ("ACGTN", "acgt", "ACxGT", "")]
    assert counted == [0, 4, 1, 0]
    assert speller.unknown(speller.encoded("漢")) == 0


def test_invalid_utf8_is_not_held_back_for_ever(speller: Speller) -> None:
    broken = speller.encoded("🦦")[0]
    shown = [speller.decoded(broken) for _ in range(20)]
    assert any(shown)
    assert speller.decoded(speller.encoded("w")[0]).count("w") == 1
    speller.begin()
    assert speller.decoded(speller.encoded("w")[0]) == "w"


def test_name_of_a_special_token_is_ordinary_text(speller: Speller) -> None:
    tokens = speller.encoded("<|endoftext|>")
    assert len(tokens) > 1
    assert "".join(map(speller.decoded, tokens)) == "<|endoftext|>"


def respelt(speller: Speller, path: Path, **changes: object) -> Speller:
    """Return the tokenizer of `speller` with changed settings in its file."""
    tree = json.loads((path / "t.json").read_text())
    (path / "other.json").write_text(json.dumps(tree | changes))
    return Speller(path / "other.json")


def test_truncation_and_padding_in_the_tokenizer_file_are_ignored(
    speller: Speller, tmp_path: Path
) -> None:
    cut = {"direction": "Right", "max_length": 2, "strategy": "LongestFirst", "stride": 0}
    fill: dict[str, object] = {
        "strategy": {"Fixed": 99},
        "direction": "Right",
        "pad_to_multiple_of": None,
    }
    fill |= {"pad_id": 10**6, "pad_type_id": 0, "pad_token": "x"}
    other = respelt(speller, tmp_path, truncation=cut, padding=fill)
    assert other.encoded("plain words only") == speller.encoded("plain words only")


def test_size_of_a_tokenizer_with_gaps_follows_from_its_largest_token_id(
    speller: Speller, tmp_path: Path
) -> None:
    tree = json.loads((tmp_path / "t.json").read_text())
    vocab = {name: 7000 if name == "w" else token for name, token in tree["model"]["vocab"].items()}
    model = tree["model"] | {"vocab": vocab, "merges": []}
    assert respelt(speller, tmp_path, model=model).size == 7001
    assert speller.size == 270


CANNOT = {
    "a pattern that takes exponential time": {
        "pre_tokenizer": {
            "type": "Split",
            "pattern": {"Regex": "(a+)+$"},
            "behavior": "Isolated",
            "invert": False,
        }
    },
    "no token for unknown characters": {
        "model": {"type": "Unigram", "unk_id": None, "vocab": [["a", -1.0]], "byte_fallback": False}
    },
}


@pytest.mark.parametrize("changes", CANNOT.values(), ids=CANNOT)
def test_tokenizer_that_fails_on_first_use_is_reported(
    changes: dict[str, object], speller: Speller, tmp_path: Path
) -> None:
    other = respelt(speller, tmp_path, **changes)
    with pytest.raises(ConfigError) as caught:
        other.encoded("a" * 40 + "b")
    assert caught.value.code == "MODEL-FOREIGN"


def test_tokenizer_that_makes_its_library_panic_is_refused(
    speller: Speller, tmp_path: Path
) -> None:
    normalizer = {"type": "Precompiled", "precompiled_charsmap": "AAAA"}
    with pytest.raises(ConfigError) as caught:
        respelt(speller, tmp_path, normalizer=normalizer)
    assert caught.value.code == "MODEL-FOLDER"


@pytest.mark.parametrize("content", [None, "", "{}", "[1]"])
def test_invalid_tokenizer_is_refused(content: str | None, tmp_path: Path) -> None:
    path = tmp_path / "tokenizer.json"
    if content is not None:
        path.write_text(content)
    with pytest.raises(ConfigError) as caught:
        Speller(path)
    assert caught.value.code == "MODEL-FOLDER"

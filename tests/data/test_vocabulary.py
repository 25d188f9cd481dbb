"""Begin and end tokens (marks) are placed correctly, samples are fair, and long texts are encoded
in parts."""

from __future__ import annotations

import pytest
from tokenizers import AddedToken, Tokenizer, models

from p2ptrain.data import vocabulary
from p2ptrain.data.piece import Piece
from p2ptrain.data.vocabulary import learn_reads, learn_text, marked, parts, sample
from p2ptrain.errors import ConfigError


def test_reads_decode_to_exactly_the_original() -> None:
    known = learn_reads(["ACGTACGTNNAC" * 5] * 9, 32)
    (tokens,) = known.encode([Piece("ACGTNACG")])
    assert (tokens[0], tokens[-1]) == (4, 5)
    assert known.tokenizer.decode(tokens.tolist()) == "ACGTNACG"


@pytest.mark.parametrize("text", ["", "short", "a b " * 30_000, "x" * 200_000, "λ\n" * 70_000])
def test_parts_are_short_and_together_equal_the_text(text: str) -> None:
    found = parts(text)
    assert "".join(found) == text
    assert max(map(len, found)) <= vocabulary.PART_CHARACTERS


def test_sample_is_spread_over_the_source_and_keeps_its_order() -> None:
    documents = [f"{number:08d}" for number in range(10_000)]
    few = sample(iter(documents), 0, 8 * 1000)
    assert 400 < len(few) <= 1000
    assert few == sorted(few)
    assert few == sample(iter(documents), 0, 8 * 1000)
    assert few != sample(iter(documents), 1, 8 * 1000)
    assert 0.3 < sum(int(text) < 5000 for text in few) / len(few) < 0.7
    assert sample(iter(documents), 0, 10**6) == documents


def tokenizer_with(*names: str) -> Tokenizer:
    """Return a tokenizer with "a" as token 0 and these special tokens as tokens 1, 2, …"""
    tokenizer = Tokenizer(models.BPE({"a": 0}, []))
    tokenizer.add_special_tokens(list(names))
    tokenizer.enable_truncation(1)
    return tokenizer


@pytest.mark.parametrize(
    ("names", "begin", "end", "marks"),
    [
        (("<s>", "</s>"), None, None, (1, 2)),
        (("<|endoftext|>",), None, None, (1, None)),
        (("<s>", "</s>", "<x>"), "<x>", None, (3, None)),
        (("<s>", "</s>", "<x>"), "<x>", "<s>", (3, 1)),
    ],
)
def test_marks_are_usual_special_tokens_unless_the_run_names_others(
    names: tuple[str, ...], begin: str | None, end: str | None, marks: tuple[int, int | None]
) -> None:
    known = marked(tokenizer_with(*names), begin, end)
    assert (known.begin, known.end) == marks
    tail = [] if marks[1] is None else [marks[1]]
    assert known.encode([Piece("aaa")])[0].tolist() == [marks[0], 0, 0, 0, *tail]


@pytest.mark.parametrize(
    ("begin", "complaint"),
    [(None, "usual tokens for the start of a document"), ("<s>", "no token '<s>'")],
)
def test_tokenizer_without_the_usual_or_named_begin_token_is_refused(
    begin: str | None, complaint: str
) -> None:
    with pytest.raises(ConfigError, match=complaint) as caught:
        marked(tokenizer_with("<y>"), begin, None)
    assert "data.begin" in caught.value.do


def test_document_cannot_create_special_tokens_by_spelling_them() -> None:
    """Text like "<bos>" in a document is not encoded as the token <bos>. A tokenizer may also have
    HTML tags such as "<s>" as ordinary tokens: these are not used as marks."""
    tokenizer = Tokenizer(models.BPE({each: number for number, each in enumerate("<s>/ab")}, []))
    tokenizer.add_tokens([AddedToken("<s>", special=False), AddedToken("</s>", special=False)])
    tokenizer.add_special_tokens(["<bos>", "<eos>"])
    known = marked(tokenizer, None, None)
    names = [tokenizer.id_to_token(mark) for mark in (known.begin, known.end) if mark is not None]
    assert names == ["<bos>", "<eos>"]
    (tokens,) = known.encode([Piece("a<s>b</s><bos>")])
    assert [known.begin, known.end] == [tokens[0], tokens[-1]]
    assert not {known.begin, known.end} & set(tokens[1:-1])
    for begin, end in (("<s>", None), ("<bos>", "</s>")):
        with pytest.raises(ConfigError, match="is not a special token"):
            marked(tokenizer, begin, end)


def test_saved_tokenizer_adds_the_same_begin_token_as_training() -> None:
    for known, text in (
        (learn_text(["some text"], 300), "some"),
        (learn_reads(["ACGT"], 20), "AC"),
    ):
        elsewhere = Tokenizer.from_str(known.to_json().decode())
        (taught,) = known.encode([Piece(text)])
        assert elsewhere.encode(text).ids == [each for each in taught if each != known.end]


def test_vocabulary_that_is_too_small_is_refused() -> None:
    with pytest.raises(ConfigError, match="vocab is 10"):
        learn_reads(["ACGT"], 10)
    with pytest.raises(ConfigError, match="vocab is 256"):
        learn_text(["text"], 256)

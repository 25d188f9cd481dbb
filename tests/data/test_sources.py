"""Any source returns its documents, or an error that names the faulty line and says what to do."""

from __future__ import annotations

import gzip
import json
import os
import sys
from collections.abc import Callable
from pathlib import Path

import pyarrow as arrow
import pytest
from pyarrow import parquet

from p2ptrain.data.documents import text_pieces
from p2ptrain.data.lines import LINE_BYTES_MAX
from p2ptrain.data.piece import Piece
from p2ptrain.data.reads import fasta_pieces, fastq_pieces
from p2ptrain.data.sources import find_source, within
from p2ptrain.errors import ConfigError
from p2ptrain.extras import install

LINES = "".join(json.dumps({"id": n, "text": f"text {n}"}) + "\n" for n in range(3))
PATH_BYTES_MAX = 4096
FASTQ = "@r1\nACGTN\n+\nIIIII\n@r2\nacguR\n+r2\nIIIII\n"


def pieces(path: Path, *, field: str = "text", limit_bytes: int = 10**6) -> list[Piece]:
    source = find_source(path.name, field=field, limit_bytes=limit_bytes, beside=path.parent)
    return list(source.pieces())


def documents(path: Path, *, field: str = "text", limit_bytes: int = 10**6) -> list[str]:
    """Return the texts of a source in which each document is one piece."""
    found = pieces(path, field=field, limit_bytes=limit_bytes)
    assert all(piece.begins and piece.ends for piece in found)
    return [piece.text for piece in found]


def table(path: Path, **columns: object) -> None:
    parquet.write_table(arrow.table(columns), path)


@pytest.mark.parametrize(
    ("name", "content", "found"),
    [
        ("a.txt", "one\r\ntwo", ["one\ntwo\n"]),
        ("a.txt", "\ufeffone\n\ufefftwo", ["one\n\ufefftwo\n"]),
        ("a.fa", "\ufeff>r1\nAC", ["AC"]),
        ("a.jsonl", LINES + "\n", ["text 0", "text 1", "text 2"]),
        ("a.NDJSON", '{"text": ""}\n{"text": "ä"}', ["ä"]),
        ("a.fa", ">r1 x\nAC\nGT\n\n>r2\n>r3\nnn-"[:-1], ["ACGT", "NN"]),
        ("a.FAS", ">r1\r\nac\r\ngt", ["ACGT"]),
        ("a.fastq", FASTQ, ["ACGTN", "ACGTN"]),
        ("a.fq", "\n" + FASTQ.replace("\n", "\r\n"), ["ACGTN", "ACGTN"]),
    ],
)
@pytest.mark.parametrize("packed", [False, True])
def test_documents_of_every_format_are_read_with_or_without_gzip(
    tmp_path: Path, name: str, content: str, found: list[str], packed: bool
) -> None:
    path = tmp_path / (name + ".gz" if packed else name)
    data = content.encode()
    path.write_bytes(gzip.compress(data) if packed else data)
    assert documents(path) == found


def test_parquet_column_is_read_as_documents(tmp_path: Path) -> None:
    texts = [f"text {number}" for number in range(600)]
    table(tmp_path / "a.parquet", text=texts, n=range(600))
    assert documents(tmp_path / "a.parquet") == texts


def test_long_records_are_split_into_pieces_that_mark_begin_and_end(
    tmp_path: Path,
) -> None:
    (tmp_path / "a.fa").write_text(">r\nACGTAC\nGTA\n>s\nAC\nGT\n>t\nACGTACGT")
    (tmp_path / "a.fq").write_text("@r\nACGTAC\n+\nIIIIII\n@s\nACGT\n+\nIIII\n")
    two = [Piece("ACGT", ends=False), Piece("ACGT", begins=False)]
    middle = Piece("ACGT", begins=False, ends=False)
    assert list(fasta_pieces(tmp_path / "a.fa", bases_max=4)) == [
        *(two[0], middle, Piece("A", begins=False)),
        *(Piece("ACGT"), *two),
    ]
    assert list(fastq_pieces(tmp_path / "a.fq", bases_max=4)) == [
        *(two[0], Piece("AC", begins=False)),
        Piece("ACGT"),
    ]


def test_text_file_is_one_document_split_between_lines(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("one\ntwo\nthree\nfour\nfive")
    found = list(text_pieces(tmp_path / "a.txt", characters=6))
    assert found == [
        Piece("one\ntwo\n", ends=False),
        Piece("three\n", begins=False, ends=False),
        Piece("four\nfive\n", begins=False),
    ]
    assert list(within(15, found, "a.txt")) == found[:2]


def test_each_text_file_of_a_folder_is_a_document(tmp_path: Path) -> None:
    (tmp_path / "all").mkdir()
    (tmp_path / "all" / "a.txt").write_text("one\ntwo")
    (tmp_path / "all" / "b.txt").write_text("one\n")
    assert pieces(tmp_path / "all") == [Piece("one\ntwo\n"), Piece("one\n")]


def test_folder_is_read_in_the_order_of_the_paths(tmp_path: Path) -> None:
    (tmp_path / "all" / "b").mkdir(parents=True)
    (tmp_path / "all" / "c.txt").write_text("three")
    (tmp_path / "all" / "a.txt").write_text("one")
    (tmp_path / "all" / "b" / "x.jsonl").write_text('{"text": "two"}')
    assert documents(tmp_path / "all") == ["one\n", "two", "three\n"]


def test_unreadable_folder_is_an_error(tmp_path: Path) -> None:
    """Root can read a folder of any mode, but no user can read a folder whose path is too long."""
    (tmp_path / "all").mkdir()
    (tmp_path / "all" / "a.txt").write_text("one")
    at = os.open(tmp_path / "all", os.O_DIRECTORY)
    for _ in range(PATH_BYTES_MAX // 200 + 1):
        os.mkdir("x" * 200, dir_fd=at)
        inner = os.open("x" * 200, os.O_DIRECTORY, dir_fd=at)
        os.close(at)
        at = inner
    os.close(at)
    with pytest.raises(ConfigError, match="x: it cannot be read: File name too long"):
        documents(tmp_path / "all")


def test_limit_stops_a_source_between_documents(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text(LINES)
    assert documents(tmp_path / "a.jsonl", limit_bytes=13) == ["text 0", "text 1"[:6]]
    with pytest.raises(ConfigError) as caught:
        documents(tmp_path / "a.jsonl", limit_bytes=5)
    assert "the first document of " in caught.value.what
    assert caught.value.what.endswith("has 6 bytes, more than data.limit_mb = 5e-06 allows")


@pytest.mark.parametrize(
    ("name", "content", "complaint"),
    [
        ("a.txt", b"good\n\xff\xfe", "line 2: it is not UTF-8"),
        ("a.txt", "one\ntwo".encode("utf-16-le"), "line 1: it is not UTF-8"),
        ("a.txt.gz", b"", "it is not a complete gzip file: it is empty"),
        pytest.param(
            *("a.txt", b"x" * (LINE_BYTES_MAX + 1)),
            f"line 1: it is longer than {LINE_BYTES_MAX} bytes",
            id="long line",
        ),
        ("a.jsonl", b'{"text": "a"}\n{"text"', "line 2: it is not JSON"),
        ("a.jsonl", b"[" * 60, "line 1: it is not JSON"),
        ("a.jsonl", b"[1]", "line 1: expected a JSON object, not list"),
        ("a.jsonl", b'{"title": 1}', "there is no field 'text'; the fields are 'title'"),
        ("a.jsonl", b'{"text": null}', '"text" is null, not text'),
        ("a.jsonl", b'{"text": 7}', '"text" is int, not text'),
        ("a.jsonl", b'{"text": "\\ud800"}', 'line 1: "text" contains an incomplete character'),
        ("a.jsonl", b'{"text": "\xff"}', "line 1: it is not JSON"),
        ("a.fa", b"ACGT", "line 1: a FASTA record must begin with '>'"),
        (
            "a.fa",
            b">p1\nACGT\nMEEP",
            "line 3: record 'p1' contains 'E', which is not a nucleotide; is it",
        ),
        ("a.fa", b">r\nAC GT", "line 2: record 'r' contains ' '"),
        ("a.fq", b"@r\nACGT\n+\nIII", "line 4: record 'r' has 4 bases and 3 qualities"),
        ("a.fq", b"@r\nACGT\n+\n", "line 3: the last record has only 3 of four lines: 'r'"),
        ("a.fq", b">r\nACGT\n+\nIIII", "line 1: a FASTQ record must begin with '@'"),
        (
            "a.fq",
            b"@r\nACGT\nACGT\nIIII",
            "line 3: the third line of record 'r' does not begin with '+'",
        ),
        ("a.fq.gz", gzip.compress(FASTQ.encode())[:-9], "it is not a complete gzip file"),
        ("a.fq.gz", b"@r\nACGT\n+\nIIII", "it is not a complete gzip file"),
        ("a.parquet", b"PAR1 and more PAR1", "the parquet file is damaged or incomplete"),
        ("a.txt", b"", "a.txt does not contain text"),
        ("a.fas", b"", "a.fas does not contain text"),
    ],
)
def test_broken_source_is_reported_with_its_place_and_advice(
    tmp_path: Path, name: str, content: bytes, complaint: str
) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(ConfigError) as caught:
        documents(tmp_path / name)
    assert complaint in caught.value.what
    assert name in caught.value.what
    assert "data.limit_mb" not in caught.value.what
    assert (caught.value.code, bool(caught.value.do)) == ("DATA-SOURCE", True)


@pytest.mark.parametrize(
    ("columns", "complaint"),
    [
        ({"body": ["x"]}, "there is no field 'text'; the fields are 'body'"),
        ({"text": ["x", None]}, "row 2 of column 'text' is null"),
        ({"text": [1]}, "row 1 of column 'text' is int"),
        ({"text": [b"x"]}, "row 1 of column 'text' is bytes"),
    ],
)
def test_parquet_error_names_the_missing_field_or_the_row(
    tmp_path: Path, columns: dict[str, object], complaint: str
) -> None:
    table(tmp_path / "a.parquet", **columns)
    with pytest.raises(ConfigError) as caught:
        documents(tmp_path / "a.parquet")
    assert complaint in caught.value.what


def cut(path: Path) -> None:
    table(path, text=["some text"] * 1000)
    data = bytearray(path.read_bytes())
    data[8:40] = bytes(32)
    path.write_bytes(data)


def nothing(path: Path) -> None:
    pass


def mixed(path: Path) -> None:
    path.mkdir()
    (path / "a.fq").write_text(FASTQ)
    (path / "b.txt").write_text("text")


@pytest.mark.parametrize(
    ("make", "complaint"),
    [
        (cut, "the parquet file is damaged or incomplete"),
        (nothing, "No such file"),
        (Path.mkdir, "it does not contain any files"),
        (mixed, "it contains both reads and text"),
    ],
)
def test_invalid_source_is_refused(
    tmp_path: Path, make: Callable[[Path], object], complaint: str
) -> None:
    make(tmp_path / "a.parquet")
    with pytest.raises(ConfigError, match=complaint) as caught:
        documents(tmp_path / "a.parquet")
    assert caught.value.do


def test_without_pyarrow_the_error_names_the_command_that_installs_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table(tmp_path / "a.parquet", text=["x"])
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(ConfigError) as caught:
        documents(tmp_path / "a.parquet")
    assert (caught.value.code, caught.value.do) == ("EXTRA-MISSING", install("pyarrow"))

"""Artificial reads are the same on every machine for the same seed. They contain repeats, and are
written in the file formats of real reads."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from blake3 import blake3

from p2ptrain.data.sources import find_source
from p2ptrain.data.splitmix import below, draws
from p2ptrain.data.synthesis import SynthesisSpec, genome, other_strand, reads, write_reads
from p2ptrain.errors import ConfigError

SPEC = SynthesisSpec(reads=500, genomes=2, genome_bases=4000, read_bases=60, seed=3)


def splitmix64(state: int, count: int) -> list[int]:
    """Return `count` numbers of splitmix64, computed as its authors published it, with Python's
    unbounded integers."""
    found, mask = [], 2**64 - 1
    for _ in range(count):
        state = (state + 0x9E3779B97F4A7C15) & mask
        z = ((state ^ (state >> 30)) * 0xBF58476D1CE4E5B9) & mask
        z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & mask
        found.append(z ^ (z >> 31))
    return found


def test_draws_match_splitmix64_from_any_start_position() -> None:
    whole = draws(7, "x", 0, 100)
    np.testing.assert_array_equal(whole[40:], draws(7, "x", 40, 60))
    assert whole.tolist() == splitmix64(int.from_bytes(blake3(b"7 x").digest()[:8], "little"), 100)
    assert not set(whole.tolist()) & set(draws(7, "y", 0, 100).tolist())
    assert set(below(whole, 4).tolist()) == {0, 1, 2, 3}


@pytest.mark.parametrize("name", ["a.fasta", "a.fq.gz"])
def test_seed_gives_the_same_reads_everywhere(tmp_path: Path, name: str) -> None:
    write_reads(tmp_path / name, SPEC)
    source = find_source(name, field="", limit_bytes=10**6, beside=tmp_path)
    found = [piece.text for piece in source.pieces()]
    assert source.holds_reads
    assert [len(read) for read in found] == [60] * 500
    assert blake3("".join(found).encode()).hexdigest()[:16] == "f493bba5ad1702d5"
    assert [item.name for item in tmp_path.iterdir()] == [name]


def test_genome_has_repeats_on_both_strands_only_if_requested() -> None:
    def repeated(repeats: float) -> int:
        spec = SynthesisSpec(reads=1, repeats=repeats, change_rate=0.0)
        bases = genome(spec, 0)
        both = [bases, other_strand(bases)]
        words = Counter(each[i : i + 24].tobytes() for each in both for i in range(49_900))
        return sum(count for count in words.values() if count > 1)

    assert repeated(0.0) == 0
    assert repeated(0.5) > 30_000


def test_reads_match_their_genomes_except_for_errors() -> None:
    texts = [genome(SPEC, number) for number in range(2)]
    whole = b"|".join(each.tobytes() for text in texts for each in (text, other_strand(text)))
    exact = [read.tobytes() in whole for read in reads(SPEC)]
    # The probability of 60 bases without an error is 0.998^60.
    assert 0.8 < sum(exact) / len(exact) < 0.95


@pytest.mark.parametrize(
    ("field", "value", "fix"),
    [
        ("reads", 0, "set reads to 1 or more, up to 4294967296"),
        ("reads", 2**33, "set reads to 1 or more, up to 4294967296"),
        ("repeats", 1.5, "a fraction from 0 to 1"),
        ("read_bases", 4001, "at most genome_bases (4000)"),
        ("genome_bases", 300, "set genome_bases to 400 or more"),
    ],
)
def test_invalid_settings_of_reads_are_refused(field: str, value: float, fix: str) -> None:
    with pytest.raises(ConfigError, match=f"{field} is {value}") as caught:
        SynthesisSpec(**{"reads": 1, "genome_bases": 4000, field: value})  # type: ignore[arg-type]
    assert fix in caught.value.do


def test_existing_files_and_unknown_endings_are_refused(tmp_path: Path) -> None:
    (tmp_path / "a.fasta").write_text("mine")
    for name, complaint in (("a.fasta", "already"), ("a.txt", "does not end in .fasta or .fastq")):
        with pytest.raises(ConfigError, match=complaint):
            write_reads(tmp_path / name, SPEC)
    assert (tmp_path / "a.fasta").read_text() == "mine"

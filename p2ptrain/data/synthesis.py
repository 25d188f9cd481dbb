"""Synthesise reads of artificial genomes, for training without real data.

A genome consists of random letters with repeats: elements of a few hundred bases that occur often,
on either strand, each copy with a few letters changed. Reads start anywhere, on either strand, with
occasional errors. So a model can learn at every length scale: first the elements, and later the
genomes themselves, if they are short enough to memorise.

The same seed gives the same reads on every machine.
"""

from __future__ import annotations

import gzip
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO

import numpy as np
from numpy.typing import NDArray

from p2ptrain.data.splitmix import below, draws
from p2ptrain.errors import ConfigError

LETTERS = np.frombuffer(b"ACGT", dtype=np.uint8)
Bases = NDArray[np.uint8]
"""Bases encoded as 0 to 3, so that 3 - base is the base on the other strand."""

READS_AT_ONCE = 4096
QUALITY = b"I"
"""The quality of every base in a FASTQ file: Phred 40, since there are no measured qualities."""

PARTS_PER_MILLION = 10**6


@dataclass(frozen=True, slots=True)
class SynthesisSpec:
    """The reads to synthesise. `repeats` is the fraction of a genome that consists of elements.
    `change_rate` and `error_rate` are probabilities per base: that a copy of an element differs
    from it, and that a read differs from its genome.
    """

    reads: int
    genomes: int = 4
    genome_bases: int = 50_000
    read_bases: int = 150
    elements: int = 8
    element_bases: int = 400
    repeats: float = 0.5
    change_rate: float = 0.02
    error_rate: float = 0.002
    seed: int = 0

    def __post_init__(self) -> None:
        for name in ("reads", "genomes", "genome_bases", "read_bases", "elements", "element_bases"):
            value = getattr(self, name)
            _require(0 < value <= 2**32, name, value, f"set {name} to 1 or more, up to {2**32}")
        for name in ("repeats", "change_rate", "error_rate"):
            value = getattr(self, name)
            _require(0 <= value <= 1, name, value, "choose a fraction from 0 to 1")
        genome, element = self.genome_bases, self.element_bases
        fix = f"choose at most genome_bases ({genome})"
        _require(self.read_bases <= genome, "read_bases", self.read_bases, fix)
        fix = f"set genome_bases to {element} or more, the length of a repeated element"
        _require(element <= genome, "genome_bases", genome, fix)


def _require(holds: bool, name: str, value: object, fix: str) -> None:
    if not holds:
        raise ConfigError(f"{name} is {value}", do=fix)


def write_reads(path: Path, spec: SynthesisSpec) -> None:
    """Write a FASTA or FASTQ file, depending on its name, compressed with gzip if it ends in .gz.

    Raises ConfigError: the file name has a different ending, or `path` already exists.
    """
    plain = path.with_suffix("") if path.suffix == ".gz" else path
    if plain.suffix not in (".fasta", ".fa", ".fastq", ".fq"):
        fix = "end the name in .fasta or .fastq, with .gz after it for a compressed file"
        raise ConfigError(f"the name {path} does not end in .fasta or .fastq", do=fix)
    if path.exists():
        raise ConfigError(f"{path} already exists", do="choose another name")
    unfinished = path.with_name(path.name + ".partial")
    try:
        with unfinished.open("wb") as file:
            if path.suffix == ".gz":
                # Write no file name and no time, so that equal reads give equal bytes.
                with gzip.GzipFile("", "wb", 6, file, mtime=0) as packed:
                    _write(packed, spec, with_qualities="q" in plain.suffix)
            else:
                _write(file, spec, with_qualities="q" in plain.suffix)
        unfinished.rename(path)
    finally:
        unfinished.unlink(missing_ok=True)


def _write(file: IO[bytes] | gzip.GzipFile, spec: SynthesisSpec, *, with_qualities: bool) -> None:
    for number, read in enumerate(reads(spec)):
        letters = LETTERS[read].tobytes()
        if with_qualities:
            file.write(b"@read%d\n%b\n+\n%b\n" % (number, letters, QUALITY * len(letters)))
        else:
            file.write(b">read%d\n%b\n" % (number, letters))


def reads(spec: SynthesisSpec) -> Iterator[Bases]:
    """Yield the reads one by one."""
    made = [genome(spec, number) for number in range(spec.genomes)]
    for start in range(0, spec.reads, READS_AT_ONCE):
        count = min(READS_AT_ONCE, spec.reads - start)
        whose = below(draws(spec.seed, "read genome", start, count), spec.genomes)
        starts = below(
            draws(spec.seed, "read start", start, count), spec.genome_bases - spec.read_bases + 1
        )
        strands = below(draws(spec.seed, "read strand", start, count), 2)
        for index in range(count):
            begin = int(starts[index])
            read = made[int(whose[index])][begin : begin + spec.read_bases]
            if strands[index]:
                read = other_strand(read)
            place = (start + index) * spec.read_bases
            yield _changed(read, spec.error_rate, spec.seed, "errors", place)


def genome(spec: SynthesisSpec, number: int) -> Bases:
    """Return genome `number`: random letters, overwritten with copies of the elements."""
    bases = _random(spec.seed, f"genome {number}", spec.genome_bases)
    copies = round(spec.repeats * spec.genome_bases / spec.element_bases)
    use = f"copies in {number}"
    room = spec.genome_bases - spec.element_bases + 1
    places = below(draws(spec.seed, f"{use}: place", 0, copies), room)
    which = below(draws(spec.seed, f"{use}: element", 0, copies), spec.elements)
    strands = below(draws(spec.seed, f"{use}: strand", 0, copies), 2)
    for index in range(copies):
        copy = _random(spec.seed, f"element {which[index]}", spec.element_bases)
        copy = _changed(
            copy, spec.change_rate, spec.seed, f"{use}: changes", index * spec.element_bases
        )
        place = int(places[index])
        bases[place : place + spec.element_bases] = other_strand(copy) if strands[index] else copy
    return bases


def other_strand(bases: Bases) -> Bases:
    """Return the reverse complement: A and T exchanged, C and G exchanged, in reverse order."""
    return np.ascontiguousarray(3 - bases[::-1], dtype=np.uint8)


def _random(seed: int, use: str, count: int) -> Bases:
    return below(draws(seed, use, 0, count), 4).astype(np.uint8)


def _changed(bases: Bases, rate: float, seed: int, use: str, start: int) -> Bases:
    """Return `bases` with each letter replaced by a different one with probability `rate`."""
    drawn = draws(seed, use, start, len(bases))
    hit = below(drawn, PARTS_PER_MILLION) < round(rate * PARTS_PER_MILLION)
    # The lower half of the draw, which `below` did not use, chooses the new letter.
    step = 1 + below(drawn << np.uint64(32), 3)
    return np.where(hit, (bases + step) % 4, bases).astype(np.uint8)

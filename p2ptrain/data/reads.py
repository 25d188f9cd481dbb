"""Read nucleotide sequences from FASTA and FASTQ files, one at a time, as A, C, G, T and N.

A read is a document, because its neighbours in the file come from other places in a genome. Upper
and lower case are accepted. U (RNA) becomes T, and every IUPAC letter for "one of several" becomes
N. Any other letter is an error; otherwise protein sequences or tables of numbers would be accepted.
The quality line of a FASTQ record is ignored, except that its length must match.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from p2ptrain.data.lines import numbered_lines, refused
from p2ptrain.data.piece import Piece
from p2ptrain.errors import ConfigError

READ_BASES_MAX = 2**16
"""Maximum length of a piece in bases. A longer record (a contig, a chromosome) is divided into
several pieces, so that memory stays bounded."""

NAME_CHARACTERS_SHOWN = 40

_TAKEN = b"ACGTNURYKMSWBDHV"
_MEANT = b"ACGTNTNNNNNNNNNN"
_LETTERS = _TAKEN + _TAKEN.lower()
_TABLE = bytes.maketrans(_LETTERS, _MEANT * 2)


def fasta_pieces(
    path: Path, field: str = "", *, bases_max: int = READ_BASES_MAX
) -> Iterator[Piece]:
    """Yield the sequence of each record, with its lines joined, in pieces of at most `bases_max`.
    `field` is not used."""
    name, held = "", bytearray()
    seen, begins = False, True
    for number, line in numbered_lines(path):
        if line.startswith(b">"):
            if held:
                yield Piece(held.decode(), begins)
            name, held, seen, begins = _shown(line), bytearray(), True, True
        elif line.strip():
            if not seen:
                raise _broken(path, number, "a FASTA record must begin with '>'")
            held += _bases(line.strip(), path, number, name)
        while len(held) > bases_max:  # Keep the rest: it may be the record's last piece.
            yield Piece(held[:bases_max].decode(), begins, ends=False)
            del held[:bases_max]
            begins = False
    if held:
        yield Piece(held.decode(), begins)


def fastq_pieces(
    path: Path, field: str = "", *, bases_max: int = READ_BASES_MAX
) -> Iterator[Piece]:
    """Yield the sequence of each four-line record, in pieces of at most `bases_max`. `field` is not
    used."""
    record: list[bytes] = []
    number = 0
    for number, line in numbered_lines(path):
        if not record and not line.strip():
            continue
        record.append(line)
        if len(record) == 4:
            yield from _fastq_record(record, path, number, bases_max)
            record = []
    if record:
        reason = f"the last record has only {len(record)} of four lines: {_shown(record[0])}"
        raise _broken(path, number, reason)


def _fastq_record(record: list[bytes], path: Path, number: int, bases_max: int) -> Iterator[Piece]:
    head, sequence, plus, qualities = record
    name = _shown(head)
    if not head.startswith(b"@"):
        raise _broken(path, number - 3, f"a FASTQ record must begin with '@', not {name}")
    if not plus.startswith(b"+"):
        raise _broken(path, number - 1, f"the third line of record {name} does not begin with '+'")
    sequence = sequence.strip()
    if len(qualities.strip()) != len(sequence):
        reason = f"record {name} has {len(sequence)} bases and {len(qualities.strip())} qualities"
        raise _broken(path, number, reason)
    bases = _bases(sequence, path, number - 2, name).decode()
    for start in range(0, len(bases), bases_max):
        end = start + bases_max
        yield Piece(bases[start:end], begins=start == 0, ends=end >= len(bases))


def _bases(line: bytes, path: Path, number: int, name: str) -> bytes:
    if strange := line.translate(None, _LETTERS):
        letter = chr(strange[0])
        reason = f"record {name} contains {letter!r}, which is not a nucleotide"
        likely = "; is it a protein?" if letter in "EFILPQXZ*" else ""
        raise _broken(path, number, reason + likely)
    return line.translate(_TABLE)


def _shown(line: bytes) -> str:
    """Return a record's name for error messages."""
    return repr(line[1 : 1 + NAME_CHARACTERS_SHOWN].decode(errors="replace"))


def _broken(path: Path, number: int, reason: str) -> ConfigError:
    do = "correct or remove the record; a FASTQ record has four lines"
    return refused(path, reason, do=do, line=number)

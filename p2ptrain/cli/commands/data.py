"""`p2ptrain data`: an organiser prepares the training data of a run."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from p2ptrain.cli.output import JsonOption, examples, progress, result_or_json
from p2ptrain.errors import counted

app = typer.Typer(
    help="Prepare the data of a run.",
    epilog=examples(
        "p2ptrain data pack texts.jsonl.gz --run run.toml --out packed",
        "p2ptrain data synthesise reads.fastq.gz --reads 100000",
    ),
    no_args_is_help=True,
    rich_markup_mode=None,
)


@app.command(
    epilog=examples(
        "p2ptrain data pack texts.jsonl.gz --run run.toml --out packed",
        "p2ptrain data pack reads.fastq.gz --run run.toml --out packed",
        "p2ptrain data pack corpus/ --run run.toml --field content --limit-mb 2000 --out packed",
    )
)
def pack(
    source: Annotated[
        str | None,
        typer.Argument(
            metavar="SOURCE",
            help="A file or folder of text, JSON lines, parquet, FASTA or FASTQ.",
            show_default="data.source of the run file",
        ),
    ] = None,
    run_file: Annotated[
        Path,
        typer.Option(
            "--run", metavar="RUN.TOML", help="Run file that sets the size of the blocks."
        ),
    ] = Path("run.toml"),
    out: Annotated[Path, typer.Option("--out", metavar="DIR", help="Folder to create.")] = Path(
        "packed"
    ),
    field: Annotated[
        str | None,
        typer.Option("--field", help="Field or column that holds the text.", show_default="text"),
    ] = None,
    limit_mb: Annotated[
        float | None,
        typer.Option(
            "--limit-mb", help="Maximum amount of text to use, in MB.", show_default="data.limit_mb"
        ),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Turn text or DNA sequencing reads into blocks of tokens for a run.

    The blocks are shuffled and hashed. If data.source in the run file names the created folder,
    `run publish` uses these blocks unchanged.
    """
    from p2ptrain.config.run_file import load_run_file, with_data
    from p2ptrain.prepare.pack_data import pack_folder

    if source is not None and source != "stdlib":
        source = str(Path(source).expanduser().absolute())
    given = {"source": source, "field": field, "limit_mb": limit_mb}
    made = pack_folder(with_data(load_run_file(run_file), given), run_file.parent, out, progress)
    result_or_json(made.words, {"folder": str(out), **asdict(made)}, as_json=as_json)
    progress(f'set data.source = "{out.absolute()}" in {run_file}, then run: p2ptrain run publish')


@app.command(
    epilog=examples(
        "p2ptrain data synthesise reads.fastq.gz --reads 100000",
        "p2ptrain data synthesise reads.fasta --reads 20000 --genomes 2 --genome-bases 20000",
    )
)
def synthesise(
    out: Annotated[
        Path,
        typer.Argument(
            metavar="FILE", help="File to write: .fasta or .fastq; add .gz to compress it."
        ),
    ],
    reads: Annotated[int, typer.Option("--reads", min=1, help="Number of reads.")] = 100_000,
    read_bases: Annotated[
        int, typer.Option("--read-bases", min=1, help="Length of a read in bases.")
    ] = 150,
    genomes: Annotated[int, typer.Option("--genomes", min=1, help="Number of genomes.")] = 4,
    genome_bases: Annotated[
        int, typer.Option("--genome-bases", min=1, help="Length of a genome in bases.")
    ] = 50_000,
    repeats: Annotated[
        float,
        typer.Option(
            "--repeats", min=0, max=1, help="Fraction of a genome that consists of repeats."
        ),
    ] = 0.5,
    seed: Annotated[int, typer.Option("--seed", min=0, help="Seed of all random choices.")] = 0,
    as_json: JsonOption = False,
) -> None:
    """Write artificial DNA sequencing reads.

    Use these reads to try out a run without real data.
    """
    from p2ptrain.data.synthesis import SynthesisSpec, write_reads

    spec = SynthesisSpec(
        reads=reads,
        read_bases=read_bases,
        genomes=genomes,
        genome_bases=genome_bases,
        repeats=repeats,
        seed=seed,
    )
    write_reads(out, spec)
    of, origin = counted(read_bases, "base"), counted(genomes, "genome")
    words = f"{out}: {counted(reads, 'read')} of {of} from {origin}"
    result_or_json(words, {"file": str(out), **asdict(spec)}, as_json=as_json)

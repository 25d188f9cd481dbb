"""`p2ptrain chat`: generate text with the trained model."""

from __future__ import annotations

import io
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from p2ptrain.cli.chat_model import ChatModel, open_chat_model
from p2ptrain.cli.commands.proving.proof_writer import ProofWriter
from p2ptrain.cli.output import JsonOption, examples, progress, result_json
from p2ptrain.cli.outside import outside
from p2ptrain.cli.rendering import coloured
from p2ptrain.errors import ConfigError

if TYPE_CHECKING:
    from p2ptrain.trainer.tools.generating import Sampling

EXAMPLES = examples(
    'p2ptrain chat ./weights "Once upon a time"',
    "p2ptrain chat ./weights --temperature 0 --tokens 50",
    'p2ptrain chat ~/.local/share/p2ptrain "import os" --json',
    'p2ptrain chat ./weights "Once upon a time" --prove story.proof',
)
DIM, PLAIN = "\033[2m", "\033[0m"
PROMPT_CHARACTERS_MAX = 1_000_000
SEED_MAX = 2**63 - 1


ProveOption = Annotated[
    Path | None,
    typer.Option(
        "--prove",
        metavar="FILE",
        help="Write a proof that these weights generated the text; see p2ptrain proof check.",
        show_default=False,
    ),
]
SeedOption = Annotated[
    int,
    typer.Option(
        "--seed",
        min=0,
        max=SEED_MAX,
        help="Seed of the sampling; the same seed gives the same text.",
    ),
]


def chat(
    folder: Annotated[
        Path,
        typer.Argument(
            metavar="DIR", help="Exported weights or a node's home.", show_default=False
        ),
    ],
    prompt: Annotated[
        str | None,
        typer.Argument(metavar="TEXT", help="Text that the model continues.", show_default=False),
    ] = None,
    temperature: Annotated[
        float,
        typer.Option(
            "--temperature", help="Sampling temperature; 0 takes the likeliest token each time."
        ),
    ] = 0.8,
    top_p: Annotated[
        float,
        typer.Option(
            "--top-p", help="Sample from the likeliest tokens whose probabilities add up to this."
        ),
    ] = 0.95,
    seed: SeedOption = 0,
    tokens: Annotated[
        int, typer.Option("--tokens", min=1, help="Maximum length of the continuation, in tokens.")
    ] = 200,
    prove: ProveOption = None,
    as_json: JsonOption = False,
) -> None:
    """Continue a text with the run's model.

    If DIR is a node's home, the newest snapshot in it is used. Without TEXT, the command prompts
    for texts on a terminal, or reads one text from stdin. A model trained on plain text continues a
    text; it does not answer questions.
    """
    writer = None if prove is None else ProofWriter.to(prove.expanduser())
    with open_chat_model(folder.expanduser().absolute()) as speaker:
        from p2ptrain.trainer.tools.generating import Sampling

        sampling = Sampling(temperature, top_p, seed)
        talk = ChatSession(speaker, sampling, tokens, as_json, writer)
        if prompt is not None:
            talk.print_continuation(_text(prompt))
            return
        typed = outside().typed
        if isinstance(typed, io.TextIOWrapper):
            typed.reconfigure(errors="surrogateescape")
        if typed.isatty() and not as_json:
            if writer is not None:
                raise ConfigError("--prove proves one text", do="pass the text: chat DIR TEXT")
            _converse(talk)
        else:
            talk.print_continuation(_text(typed.read(PROMPT_CHARACTERS_MAX)))


def _text(typed: str) -> str:
    """Return `typed` with a � for each byte that is not part of a character."""
    return typed.encode("utf-8", "surrogateescape").decode("utf-8", "replace")


@dataclass(frozen=True, slots=True)
class ChatSession:
    """A conversation with a model: the settings, and the functions that print its texts. With a
    `writer`, the text is proved as well."""

    speaker: ChatModel
    sampling: Sampling
    tokens_max: int
    as_json: bool
    writer: ProofWriter | None = None

    def print_continuation(self, prompt: str) -> None:
        """Show the continuation of `prompt` token by token, or the complete text as JSON."""
        started_s, said, tokens = time.monotonic(), list[str](), list[int]()
        ended, text = "length", self._encoded(prompt)
        certificate = None if self.writer is None else self.writer.certificate_of(self.speaker)
        for token in self._tokens(text):
            if token in self.speaker.ends:
                ended = "end-of-text"
                break
            tokens.append(token)
            said.append(visible(self.speaker.speller.decoded(token)))
            if not self.as_json:
                print(said[-1], end="", flush=True)
        seconds = max(1e-9, time.monotonic() - started_s)
        if not self.as_json:
            print()
        if self.writer is not None and certificate is not None:
            self.writer.write(self.speaker.model, certificate, text, tokens)
        if not self.as_json:
            return
        result_json(
            {
                "prompt": prompt,
                "text": "".join(said),
                "tokens": len(tokens),
                "tokens_per_s": round(len(tokens) / seconds, 2),
                "ended": ended,
                **asdict(self.sampling),
                **({} if self.writer is None else {"proof": str(self.writer.file)}),
            }
        )

    def _encoded(self, prompt: str) -> list[int]:
        """Return the tokens of `prompt`, after the begin token if the model has one."""
        speaker = self.speaker
        begun = [] if speaker.begin is None else [speaker.begin]
        text = begun + speaker.speller.encoded(prompt)
        if unknown := speaker.speller.unknown(text):
            progress(
                f"the model does not know {unknown} of the {len(text)} tokens of this text; "
                "it may know only some letters, such as A, C, G, T and N"
            )
        if not text:
            raise ConfigError("there is no text to continue", do="pass a text: chat DIR TEXT")
        speaker.speller.begin(text)
        return text

    def _tokens(self, text: Sequence[int]) -> Iterator[int]:
        from itertools import islice

        from p2ptrain.trainer.tools.generating import generate

        model, most = self.speaker.model, self.tokens_max
        if self.writer is not None:
            most = min(most, self.writer.room_for(text, model))
        return islice(generate(model, text, self.sampling), most)


def _converse(talk: ChatSession) -> None:
    """Ask for texts and continue them, until Ctrl-D. Ctrl-C stops the text that is being printed;
    at the prompt, it ends the program.
    """
    progress("type a text and press Enter; Ctrl-C stops the answer, Ctrl-D exits")
    try:
        while True:
            _answer(talk, _text(outside().ask("> ")))
    except (EOFError, KeyboardInterrupt):
        print()


def _answer(talk: ChatSession, prompt: str) -> None:
    if not prompt:
        return
    try:
        shown = f"{DIM}{prompt}{PLAIN}" if coloured(sys.stdout) else prompt
        print(shown, end="", flush=True)
        talk.print_continuation(prompt)
    except KeyboardInterrupt:
        print(" …")


def visible(text: str) -> str:
    """Return `text` with a · for each unprintable character except line ends and tabs."""
    return "".join(each if each.isprintable() or each in "\n\t" else "·" for each in text)

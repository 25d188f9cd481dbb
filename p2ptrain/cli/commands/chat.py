"""`p2ptrain chat`: generate text with the trained model."""

from __future__ import annotations

import io
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Annotated, Any

import typer

from p2ptrain.cli.output import JsonOption, examples, progress, result_json
from p2ptrain.cli.outside import outside
from p2ptrain.cli.rendering import coloured
from p2ptrain.errors import ConfigError, MachineUnfit, StoreFull
from p2ptrain.observe.states import size
from p2ptrain.suggested_command import to_paste

if TYPE_CHECKING:
    from p2ptrain.data.text_tokens import Speller
    from p2ptrain.trainer.rank.model import Llama
    from p2ptrain.trainer.tools.generating import Sampling

EXAMPLES = examples(
    'p2ptrain chat ./weights "Once upon a time"',
    "p2ptrain chat ./weights --temperature 0 --tokens 50",
    'p2ptrain chat ~/.local/share/p2ptrain "import os" --json',
)
DIM, PLAIN = "\033[2m", "\033[0m"
PROMPT_CHARACTERS_MAX = 1_000_000
SEED_MAX = 2**63 - 1


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
    seed: Annotated[
        int,
        typer.Option(
            "--seed",
            min=0,
            max=SEED_MAX,
            help="Seed of the sampling; the same seed gives the same text.",
        ),
    ] = 0,
    tokens: Annotated[
        int, typer.Option("--tokens", min=1, help="Maximum length of the continuation, in tokens.")
    ] = 200,
    as_json: JsonOption = False,
) -> None:
    """Continue a text with the run's model.

    If DIR is a node's home, the newest snapshot in it is used. Without TEXT, the command prompts
    for texts on a terminal, or reads one text from stdin. A model trained on plain text continues a
    text; it does not answer questions.
    """
    with _load_chat_model(folder.expanduser().absolute()) as speaker:
        from p2ptrain.trainer.tools.generating import Sampling

        talk = ChatSession(speaker, Sampling(temperature, top_p, seed), tokens, as_json)
        if prompt is not None:
            talk.print_continuation(_text(prompt))
            return
        typed = outside().typed
        if isinstance(typed, io.TextIOWrapper):
            typed.reconfigure(errors="surrogateescape")
        if typed.isatty() and not as_json:
            _converse(talk)
        else:
            talk.print_continuation(_text(typed.read(PROMPT_CHARACTERS_MAX)))


def _text(typed: str) -> str:
    """Return `typed` with a � for each byte that is not part of a character."""
    return typed.encode("utf-8", "surrogateescape").decode("utf-8", "replace")


@dataclass(frozen=True, slots=True)
class ChatModel:
    """A model and its tokenizer. `begin` precedes each text; any token in `ends` ends the text."""

    model: Llama
    speller: Speller
    begin: int | None
    ends: frozenset[int]


@contextmanager
def _load_chat_model(folder: Path) -> Iterator[ChatModel]:
    """Load the model. Raises ConfigError: the folder has no model that can run here."""
    if not (folder / "run" / "manifest.signed").exists():
        yield _loaded(folder)
        return
    with TemporaryDirectory(prefix="p2ptrain-chat-") as place:
        yield _loaded(_exported(folder, Path(place) / "weights"))


def _exported(home: Path, folder: Path) -> Path:
    from p2ptrain.cli.commands.export import export_newest

    try:
        return export_newest(home, folder)
    except StoreFull as exc:
        exc.do = (
            "set TMPDIR to a folder on another disk; or "
            f"{to_paste(home, 'export --to hf DIR')}, and then p2ptrain chat DIR"
        )
        raise


def _loaded(folder: Path) -> ChatModel:
    if not (folder / "config.json").exists():
        from p2ptrain.trainer.formats.huggingface import lacks

        raise lacks(folder / "config.json")  # Checked before torch is loaded, which takes seconds.
    if not outside().is_installed("torch"):
        raise ConfigError(
            "torch is not installed, and the model cannot run without it",
            code="EXTRA-MISSING",
            do="run scripts/setup without P2PTRAIN_TORCH, which installs torch",
        )
    progress("loading the model …")
    from p2ptrain.data.text_tokens import Speller
    from p2ptrain.trainer.tools.exported import best_device, load_model, read_json

    speller = Speller(folder / "tokenizer.json")
    device = best_device()
    if device.type == "cpu":
        _check_memory(folder)
    model = load_model(folder, device)
    config = read_json(folder / "config.json")
    assert isinstance(config, dict)
    begins = _numbers(config.get("bos_token_id"))[:1]
    if (most := max([speller.size - 1, *begins])) >= model.spec.vocab:
        raise ConfigError(
            f"the tokenizer uses token ids up to {most}, but the model knows only ids up to "
            f"{model.spec.vocab - 1}",
            code="MODEL-FOREIGN",
        )
    # A begin token starts another document, so it ends this text. Some runs have no end token.
    ends = frozenset([*_numbers(config.get("eos_token_id")), *begins])
    return ChatModel(model, speller, next(iter(begins), None), ends)


def _check_memory(folder: Path) -> None:
    """Raise MachineUnfit (MEM-HOST) if the model does not fit into the free memory. Otherwise Linux
    might kill a node that trains here.
    """
    from p2ptrain.trainer.formats.shapes import parameter_count
    from p2ptrain.trainer.tools.exported import load_spec

    needed, free = 4 * parameter_count(load_spec(folder)), outside().memory_free_bytes()
    if needed > free:
        raise MachineUnfit(
            f"the model takes {size(needed)} of memory, and this machine has {size(free)} free",
            code="MEM-HOST",
            do="close other programs, or use a machine with more memory or a GPU",
        )


def _numbers(value: Any) -> list[int]:
    """Return the ids in a field that holds one token id or several."""
    values = value if isinstance(value, list) else [value]
    return [each for each in values if type(each) is int and each >= 0]


@dataclass(frozen=True, slots=True)
class ChatSession:
    """A conversation with a model: the settings, and the functions that print its texts."""

    speaker: ChatModel
    sampling: Sampling
    tokens_max: int
    as_json: bool

    def print_continuation(self, prompt: str) -> None:
        """Show the continuation of `prompt` token by token, or the complete text as JSON."""
        started_s, said, count = time.monotonic(), list[str](), 0
        ended = "length"
        for token in self._tokens(prompt):
            if token in self.speaker.ends:
                ended = "end-of-text"
                break
            count += 1
            said.append(visible(self.speaker.speller.decoded(token)))
            if not self.as_json:
                print(said[-1], end="", flush=True)
        seconds = max(1e-9, time.monotonic() - started_s)
        if not self.as_json:
            print()
            return
        result_json(
            {
                "prompt": prompt,
                "text": "".join(said),
                "tokens": count,
                "tokens_per_s": round(count / seconds, 2),
                "ended": ended,
                **asdict(self.sampling),
            }
        )

    def _tokens(self, prompt: str) -> Iterator[int]:
        from itertools import islice

        from p2ptrain.trainer.tools.generating import generate

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
        return islice(generate(speaker.model, text, self.sampling), self.tokens_max)


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

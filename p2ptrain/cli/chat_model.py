"""Load a model and its tokenizer for `p2ptrain chat` and `p2ptrain proof check`."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

from p2ptrain.cli.output import progress
from p2ptrain.cli.outside import outside
from p2ptrain.errors import ConfigError, MachineUnfit, StoreFull
from p2ptrain.observe.states import size
from p2ptrain.suggested_command import to_paste

if TYPE_CHECKING:
    from p2ptrain.data.text_tokens import Speller
    from p2ptrain.trainer.rank.model import Llama


@dataclass(frozen=True, slots=True)
class ChatModel:
    """A model and its tokenizer, from `folder`. `begin` precedes each text; any token in `ends`
    ends the text."""

    folder: Path
    model: Llama
    speller: Speller
    begin: int | None
    ends: frozenset[int]


@contextmanager
def open_chat_model(folder: Path) -> Iterator[ChatModel]:
    """Load the model in an exported folder, or the newest snapshot in a home. Raises ConfigError:
    the folder has no model that can run here."""
    if not (folder / "run" / "manifest.signed").exists():
        yield load_chat_model(folder)
        return
    with TemporaryDirectory(prefix="p2ptrain-chat-") as place:
        yield load_chat_model(_exported(folder, Path(place) / "weights"))


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


def load_chat_model(folder: Path, *, in_fp32: bool = False) -> ChatModel:
    """Load the model in an exported folder for inference on the best device. With `in_fp32`, load
    it on the CPU with the exact weights. Raises ConfigError or MachineUnfit."""
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
    from p2ptrain.trainer.tools.exported import (
        best_device,
        exact_device,
        load_model,
        read_json,
    )

    speller = Speller(folder / "tokenizer.json")
    device = exact_device() if in_fp32 else best_device()
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
    return ChatModel(folder, model, speller, next(iter(begins), None), ends)


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

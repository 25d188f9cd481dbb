"""`p2ptrain chat` continues a text with the model in a folder or home, or says why it cannot."""

from __future__ import annotations

import io
import json
from pathlib import Path

import pytest

from p2ptrain.cli.commands import chat
from p2ptrain.cli.commands.chat import visible
from p2ptrain.cli.outside import Outside
from tests.cli.conftest import Command

TEXT = "def f(x):\n"


@pytest.fixture
def weights(p2ptrain: Command, organiser_home: Path, tmp_path: Path) -> Path:
    done = p2ptrain("export", tmp_path / "w", "--no-parity", "--home", organiser_home)
    assert done.code == 0
    return tmp_path / "w"


@pytest.mark.needs_torch
def test_folder_and_the_home_it_came_from_give_the_same_text(
    p2ptrain: Command, weights: Path, organiser_home: Path, tmp_path: Path
) -> None:
    words = (TEXT, "--tokens", 5, "--seed", 3, "--json")
    told = [p2ptrain("chat", place, *words) for place in (weights, organiser_home)]
    assert [each.code for each in told] == [0, 0]
    first, second = (each.json for each in told)
    assert (first["tokens"], first["prompt"], first["ended"]) == (5, TEXT, "length")
    assert first["tokens_per_s"] > 0
    assert first["text"] == second["text"] != ""
    other = p2ptrain("chat", weights, TEXT, "--tokens", 5, "--seed", 4, "--json").json
    assert other["text"] != first["text"]


@pytest.mark.needs_torch
def test_generated_text_stops_at_the_models_end_token(p2ptrain: Command, weights: Path) -> None:
    """In this model every token ends the text, even the first one."""
    config = json.loads((weights / "config.json").read_text())
    config["eos_token_id"] = list(range(512))
    (weights / "config.json").write_text(json.dumps(config))
    told = p2ptrain("chat", weights, TEXT, "--json").json
    assert (told["ended"], told["text"], told["tokens"]) == ("end-of-text", "", 0)


@pytest.mark.needs_torch
def test_generated_text_stops_at_a_begin_token_if_there_is_no_end_token(
    p2ptrain: Command, weights: Path
) -> None:
    """With the first weights, the likeliest next token is the previous token. For an empty prompt,
    that is the begin token."""
    config = json.loads((weights / "config.json").read_text())
    del config["eos_token_id"]
    (weights / "config.json").write_text(json.dumps(config))
    told = p2ptrain("chat", weights, "", "--temperature", 0, "--tokens", 3, "--json").json
    assert (told["ended"], told["text"], told["tokens"]) == ("end-of-text", "", 0)


def test_too_small_disk_for_the_weights_suggests_another_folder(
    p2ptrain: Command, organiser_home: Path
) -> None:
    full = Outside(disk_free_bytes=lambda folder: 1000)
    done = p2ptrain("chat", organiser_home, TEXT, around=full)
    assert (done.code, "TMPDIR" in done.err, "--to hf" in done.err) == (4, True, True)


@pytest.mark.needs_torch
def test_model_larger_than_the_free_memory_is_not_loaded(p2ptrain: Command, weights: Path) -> None:
    done = p2ptrain("chat", weights, TEXT, around=Outside(memory_free_bytes=lambda: 100_000))
    assert (done.code, done.out) == (4, "")
    assert done.err.startswith("loading the model …\nerror[MEM-HOST] the model takes ")
    assert "this machine has 100.0 kB free" in done.err


def test_chat_without_torch_names_the_missing_package(p2ptrain: Command, weights: Path) -> None:
    bare = Outside(is_installed=lambda package: False)
    done = p2ptrain("chat", weights, TEXT, "--json", around=bare)
    assert (done.code, done.json["error"]["code"]) == (2, "EXTRA-MISSING")


@pytest.mark.needs_torch
def test_invalid_model_is_refused_with_its_code(
    p2ptrain: Command, weights: Path, tmp_path: Path
) -> None:
    done = p2ptrain("chat", tmp_path / "nowhere", TEXT)
    assert (done.code, "MODEL-FOLDER" in done.err, done.out) == (2, True, "")
    (weights / "tokenizer.json").rename(tmp_path / "tokenizer.json")
    assert "MODEL-FOLDER" in p2ptrain("chat", weights, TEXT).err
    (tmp_path / "tokenizer.json").rename(weights / "tokenizer.json")
    config = json.loads((weights / "config.json").read_text())
    (weights / "config.json").write_text(json.dumps(config | {"model_type": "gpt2"}))
    assert "MODEL-FOREIGN" in p2ptrain("chat", weights, TEXT).err
    assert p2ptrain("chat", weights, TEXT, "--top-p", "2").code == 2


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


class User:
    """A simulated user at a terminal, who types each line. An exception in `lines` is raised
    instead, as for Ctrl-C."""

    def __init__(self, *lines: str | BaseException) -> None:
        self.lines = list(lines)

    def __call__(self, prompt: str) -> str:
        line = self.lines.pop(0)
        if isinstance(line, BaseException):
            raise line
        return line

    @property
    def terminal(self) -> Outside:
        return Outside(stdin=Terminal(), ask=self)


@pytest.mark.needs_torch
def test_terminal_session_continues_several_texts_in_turn(p2ptrain: Command, weights: Path) -> None:
    user = User("def ", "", "import ", EOFError())
    done = p2ptrain("chat", weights, "--tokens", 3, around=user.terminal)
    assert (done.code, user.lines) == (0, [])
    first, second = done.out.index("def "), done.out.index("import ")
    assert first < second
    assert "\033" not in done.out, "colours are only for terminals"


@pytest.mark.needs_torch
def test_first_ctrl_c_stops_the_text_and_the_second_one_the_program(
    p2ptrain: Command,
    weights: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def interrupted(talk: object, prompt: str) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(chat.ChatSession, "print_continuation", interrupted)
    user = User("def ", KeyboardInterrupt())
    done = p2ptrain("chat", weights, around=user.terminal)
    assert (done.code, user.lines) == (0, [])
    assert done.out == "def  …\n\n"


@pytest.mark.needs_torch
def test_prompt_can_come_from_a_pipe(p2ptrain: Command, weights: Path) -> None:
    pipe = Outside(stdin=io.StringIO(TEXT))
    piped = p2ptrain("chat", weights, "--tokens", 4, around=pipe)
    given = p2ptrain("chat", weights, TEXT, "--tokens", 4, "--json")
    assert piped.out == given.json["text"] + "\n"


@pytest.mark.needs_torch
def test_undecodable_input_gets_replacement_characters(p2ptrain: Command, weights: Path) -> None:
    words = ("chat", weights, "--tokens", 2, "--json")
    assert p2ptrain(*words, "\udcffdef").json["prompt"] == "\ufffddef"
    pipe = Outside(stdin=io.TextIOWrapper(io.BytesIO(b"\xffdef"), "utf-8"))
    assert p2ptrain(*words, around=pipe).json["prompt"] == "\ufffddef"


@pytest.mark.needs_torch
def test_special_token_missing_from_the_model_is_refused(p2ptrain: Command, weights: Path) -> None:
    config = json.loads((weights / "config.json").read_text())
    (weights / "config.json").write_text(json.dumps(config | {"bos_token_id": 512}))
    done = p2ptrain("chat", weights, TEXT)
    assert (done.code, "MODEL-FOREIGN" in done.err) == (2, True)


def test_output_of_a_model_cannot_control_the_terminal() -> None:
    assert visible("a\033[2Jb\n\tc\x07\x9bd é漢") == "a·[2Jb\n\tc··d é漢"

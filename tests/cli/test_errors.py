"""Every failure ends with a code, a sentence and an exit status, never with a traceback."""

from __future__ import annotations

import io
import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import IO

import pytest

from p2ptrain import errors
from p2ptrain.cli.error_codes import CODES
from p2ptrain.cli.main import main, translated
from p2ptrain.cli.outside import Outside
from p2ptrain.cli.rendering import error_lines, printable, show_error
from p2ptrain.config import samples
from p2ptrain.config.node import NodeConfig
from tests.architecture.test_language import endless, headless, sentences
from tests.cli.conftest import Command

REFUSED = errors.NetworkUnreachable(
    "none of the 2 bootstrap addresses answered",
    code="NET-REFUSED",
    evidence=["tried   /ip4/203.0.113.7/tcp/4201   refused after 31 ms", "the clock is right"],
    likely="the organiser's seed is down. This is not your machine's fault.",
    do="wait, or ask for a fresh invite",
)


def test_error_says_what_happened_why_and_what_to_do() -> None:
    assert error_lines(REFUSED) == [
        "error[NET-REFUSED] none of the 2 bootstrap addresses answered",
        "  tried   /ip4/203.0.113.7/tcp/4201   refused after 31 ms",
        "  seen    the clock is right",
        "  likely  the organiser's seed is down. This is not your machine's fault.",
        "  do      wait, or ask for a fresh invite",
        "  more    p2ptrain explain NET-REFUSED",
    ]


def test_text_from_a_peer_cannot_control_the_terminal() -> None:
    hostile = errors.RemoteProtocolError("said \x1b[2Jhello\r\nerror[OK] all is well " + "x" * 9999)
    lines = error_lines(hostile)
    assert lines[0].startswith("error[PEER-PROTOCOL] said ·[2Jhello··error[OK] all is well xxx")
    assert all(line.isprintable() and len(line) < 500 for line in lines)
    assert printable("Ünïcode – fine") == "Ünïcode – fine"


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_colour_is_only_for_terminals_that_want_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("TERM", "xterm")
    plain, coloured, declined = io.StringIO(), Terminal(), Terminal()
    show_error(REFUSED, plain)
    show_error(REFUSED, coloured)
    monkeypatch.setenv("NO_COLOR", "1")
    show_error(REFUSED, declined)
    assert "\033" not in plain.getvalue() + declined.getvalue()
    assert coloured.getvalue().startswith("\033[1;31merror[NET-REFUSED]\033[0m none")


FAULTS: list[tuple[BaseException, str, int]] = [
    (errors.ConfigError("x"), "CONFIG", 2),
    (errors.RunMismatch("x"), "RUN-MISMATCH", 3),
    (errors.MachineUnfit("x"), "MACHINE-UNFIT", 4),
    (errors.StoreFull("x"), "DISK-LOW", 4),
    (errors.TrainerExited(-9, "killed"), "TRAINER-EXITED", 4),
    (REFUSED, "NET-REFUSED", 5),
    (errors.NotAuthorised("x"), "AUTH-DENIED", 6),
    (errors.VersionMismatch("x"), "RUN-VERSION", 7),
    (errors.IdentityInUse("x"), "ID-IN-USE", 8),
    (errors.TryLater("x"), "TRY-LATER", 75),
    (PermissionError(13, "Permission denied", "/root/x"), "OS", 4),
    (ZeroDivisionError("x"), "BUG", 1),
    (ExceptionGroup("g", [ValueError("x"), ExceptionGroup("h", [REFUSED])]), "NET-REFUSED", 5),
    (ExceptionGroup("g", [ValueError("x")]), "BUG", 1),
]


@pytest.mark.parametrize(("fault", "code", "status"), FAULTS, ids=[c for _, c, _ in FAULTS])
def test_every_fault_has_its_code_and_status(
    fault: BaseException,
    code: str,
    status: int,
    p2ptrain: Command,
    tmp_path: Path,
) -> None:
    def fail(config: NodeConfig) -> int:
        raise fault

    outcome = p2ptrain("node", "--home", tmp_path, around=Outside(run_node=fail))
    assert outcome.code == status
    assert outcome.err.startswith(f"error[{code}] ")
    assert "Traceback" not in outcome.err
    assert outcome.out == ""
    assert code in CODES


@pytest.mark.parametrize(
    "fault", [KeyboardInterrupt(), BaseExceptionGroup("g", [KeyboardInterrupt()])]
)
def test_ctrl_c_is_not_an_error(fault: BaseException, p2ptrain: Command, tmp_path: Path) -> None:
    def fail(config: NodeConfig) -> int:
        raise fault

    outcome = p2ptrain("node", "--home", tmp_path, around=Outside(run_node=fail))
    assert (outcome.code, outcome.out, outcome.err.strip()) == (130, "", "")


def test_traceback_is_shown_on_request(p2ptrain: Command, tmp_path: Path) -> None:
    def fail(config: NodeConfig) -> int:
        raise ZeroDivisionError("x")

    outcome = p2ptrain("node", "--home", tmp_path, "-v", around=Outside(run_node=fail))
    assert "Traceback" in outcome.err
    assert "error[BUG] ZeroDivisionError: x" in outcome.err


def test_every_command_accepts_v_to_show_tracebacks(
    p2ptrain: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(size: str) -> str:
        raise ZeroDivisionError("x")

    monkeypatch.setattr(samples, "sample", fail)
    outcome = p2ptrain("run", "new", "--out", tmp_path / "run.toml", "-v")
    assert (outcome.code, "Traceback" in outcome.err) == (1, True)
    assert "error[BUG] ZeroDivisionError: x" in outcome.err
    assert p2ptrain("run", "new", "--", "-v").code == 2, "after --, -v is an ordinary argument"
    assert "Traceback" in p2ptrain("-v", "run", "new", "--out", tmp_path / "run.toml").err


def command(*words: str, stdout: int | IO[bytes], **settings: str) -> tuple[int, str]:
    """Return exit code and stderr of a process that runs this command. Unless `settings` say
    otherwise, Python buffers the output of the process."""
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}
    done = subprocess.run(
        [sys.executable, "-m", "p2ptrain.cli", *words],
        stdout=stdout,
        stderr=subprocess.PIPE,
        env=environment | settings,
        check=False,
    )
    return done.returncode, done.stderr.decode()


@pytest.mark.parametrize("unbuffered", ["", "1"])
def test_closed_output_pipe_is_not_an_error(unbuffered: str) -> None:
    """A program such as `head` may close the pipe early; here it is closed from the start."""
    reader, writer = os.pipe()
    os.close(reader)
    ended = command("explain", stdout=writer, PYTHONUNBUFFERED=unbuffered)
    os.close(writer)
    assert ended == (0, "")


@pytest.mark.parametrize("unbuffered", ["", "1"])
def test_failed_write_to_stdout_is_an_error_with_a_code(unbuffered: str, tmp_path: Path) -> None:
    words = ("id", "--json", "--home", str(tmp_path))
    with open("/dev/full", "wb") as full:
        code, said = command(*words, stdout=full, PYTHONUNBUFFERED=unbuffered)
    assert code == 4
    assert said.startswith("error[DISK-LOW] No space left on device\n")
    assert "Traceback" not in said
    assert "Exception" not in said


FULL_STDERR = """
import sys
from pathlib import Path
from p2ptrain.cli.main import main
from p2ptrain.errors import StoreFull
from p2ptrain.node import main as node
from p2ptrain.node.control.live_line import open_live_line

def full(*_, **__):
    for _ in range(2000):
        open_live_line(quiet=False).write_line("a line of the log")
    raise StoreFull("No space left on device")

node.run_node = full
home = Path(sys.argv[1])
sys.exit(main(["node", "--seed", "--home", str(home), *sys.argv[2:]]))
"""


@pytest.mark.parametrize("verbose", [[], ["-v"]])
def test_node_that_cannot_log_to_a_full_disk_keeps_its_exit_status(
    verbose: list[str], tmp_path: Path
) -> None:
    with open("/dev/full", "wb") as full:
        code = subprocess.run(
            [sys.executable, "-c", FULL_STDERR, str(tmp_path), *verbose], stderr=full, check=False
        ).returncode
    assert code == 4


@pytest.mark.parametrize(
    ("words", "status"), [(["status", "--home", "nowhere"], 75), (["statu"], 2)]
)
@pytest.mark.parametrize("redirection", ["2>/dev/full", "2>&-"])
def test_error_that_cannot_be_printed_keeps_its_exit_status(
    words: list[str], status: int, redirection: str, tmp_path: Path
) -> None:
    line = f'exec "$0" -m p2ptrain.cli "$@" {redirection}'
    done = subprocess.run(["sh", "-c", line, sys.executable, *words], check=False, cwd=tmp_path)
    assert done.returncode == status


def test_protocol_error_of_a_peer_counts_as_a_network_failure() -> None:
    assert errors.RemoteProtocolError.exit_code == 5
    assert errors.LocalProtocolError.exit_code == 1


def test_characters_that_the_terminal_cannot_show_are_escaped(tmp_path: Path) -> None:
    run_file = tmp_path / "run.toml"
    run_file.write_text(samples.sample("tiny"))
    with (tmp_path / "shown").open("wb") as shown:
        ended = command("run", "check", str(run_file), stdout=shown, PYTHONIOENCODING="latin-1")
    assert ended == (0, "")
    assert b"node      \\u03b8 158.3 kB" in (tmp_path / "shown").read_bytes()


ENDED_BY = """
import os, signal, sys
from p2ptrain.cli.main import main
from p2ptrain.config import samples

def ended(size):
    try:
        os.kill(os.getpid(), {number})
    finally:
        print("cleaned up")

signal.signal({number}, signal.SIG_DFL)  # A test run under nohup ignores SIGHUP.
if {deaf}:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
samples.sample = ended
sys.exit(main(["run", "new"]))
"""


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
@pytest.mark.parametrize("deaf", [False, True])
def test_terminated_command_cleans_up_as_after_ctrl_c(number: signal.Signals, deaf: bool) -> None:
    """If `deaf`, the process ignores SIGINT, like one that a shell script starts with `&`."""
    program = ENDED_BY.format(number=int(number), deaf=deaf)
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (130, b"cleaned up\n", b"")


def test_bug_report_names_the_place_in_the_code() -> None:
    try:
        raise ZeroDivisionError("x")
    except ZeroDivisionError as exc:
        error = translated(exc)
    assert error is not None
    assert "in test_bug_report_names_the_place_in_the_code" in error.evidence[-1]
    assert error.exit_code == 1


def test_json_option_prints_the_error_as_json(
    tmp_path: object, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["status", "--json", "--home", str(tmp_path)]) == 75
    written = capsys.readouterr()
    value = json.loads(written.out)
    assert value["schema"] == 1
    assert value["error"]["code"] == "NO-NODE"
    assert value["error"]["what"] == f"no node is running in {tmp_path}"
    assert set(value["error"]) == {"code", "what", "evidence", "likely", "do"}
    assert written.err.startswith("error[NO-NODE]")


@pytest.mark.parametrize("code", ["NET-REFUSED", "net-refused", "BUG"])
def test_explain_describes_a_code(code: str, p2ptrain: Command) -> None:
    outcome = p2ptrain("explain", code)
    assert outcome.code == 0
    assert outcome.out == f"{code.upper()}: {CODES[code.upper()]}\n"


def test_all_codes_are_listed_one_per_line(p2ptrain: Command) -> None:
    lines = p2ptrain("explain").out.splitlines()
    assert [line.split()[0] for line in lines] == sorted(CODES)
    assert all(line.endswith(".") for line in lines)


def test_explanations_follow_the_rules_of_test_language() -> None:
    explained = [sentence for text in CODES.values() for sentence in sentences(text)]
    assert [each for each in explained if headless(each) or endless(each)] == []


def test_unknown_code_is_answered_with_similar_ones(p2ptrain: Command) -> None:
    outcome = p2ptrain("explain", "NET-REFUSE")
    assert outcome.code == 2
    assert "did you mean NET-REFUSED" in outcome.err
    assert p2ptrain("explain", "\x1b[2J").code == 2

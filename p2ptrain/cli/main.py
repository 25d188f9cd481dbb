"""The command `p2ptrain`: its table of commands, and the translation of errors to exit codes."""

from __future__ import annotations

import errno
import io
import os
import signal
import sys
import threading
import traceback
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress

import typer
from typer.exceptions import TyperException

from p2ptrain import __version__
from p2ptrain.cli.command_table import COMMANDS, add_commands
from p2ptrain.cli.output import examples, result, result_json
from p2ptrain.cli.outside import USUAL, Outside, placed_in
from p2ptrain.cli.plain_calls import run_plainly
from p2ptrain.cli.rendering import error_json, show_error
from p2ptrain.cli.system_errors import refusal
from p2ptrain.errors import ConfigError, P2PTrainError
from p2ptrain.standard_error import disk_may_be_full, give_up_unwritten

INTERRUPTED = 130
"""The exit status that a shell reports for a command ended by Ctrl-C."""

VERBOSE = ("--verbose", "-v", "-vv")
"""The options that show the traceback of an error. Every command accepts them anywhere before
`--`."""

ABOUT = "Train one large model together with people you do not know, without a central server."

NODE_COMMANDS = {"node", "join"}
"""The commands that run a node until it is stopped."""


def _show_version(wanted: bool) -> None:
    if wanted:
        result(f"p2ptrain {__version__}")
        raise typer.Exit


def _options(
    version: bool = typer.Option(
        False, "--version", callback=_show_version, is_eager=True, help="Show the version."
    ),
    verbose: bool = typer.Option(
        False, "--verbose", "-v", help="Show tracebacks of errors; also works after any command."
    ),
) -> None:
    """`verbose` is only here to appear in the help: `main` removes it from the arguments."""


def app_for(called: str | None = None) -> typer.Typer:
    """Return the parser of all commands. With `called`, only the command of this name can run; the
    others are known by their lines in the help."""
    app = typer.Typer(
        name="p2ptrain",
        help=ABOUT,
        epilog=examples(
            "p2ptrain join INVITE                  take part in a run",
            "p2ptrain run new                      make a run of your own",
            "p2ptrain status                       show what the node here is doing",
        ),
        no_args_is_help=True,
        add_completion=False,
        rich_markup_mode=None,
        pretty_exceptions_enable=False,
        context_settings={"help_option_names": ["-h", "--help"]},
    )
    app.callback()(_options)
    add_commands(app, called=called)
    return app


def main(arguments: Sequence[str] | None = None, around: Outside = USUAL) -> int:
    """Run one command and return its exit code. Show errors to the user instead of raising them."""
    try:
        with placed_in(around):
            return _exit_code(arguments)
    finally:
        give_up_unwritten()


def _exit_code(arguments: Sequence[str] | None) -> int:
    words = list(sys.argv[1:] if arguments is None else arguments)
    if isinstance(sys.stdout, io.TextIOWrapper):
        # A stdout that cannot encode θ gets \u03b8 instead.
        sys.stdout.reconfigure(errors="backslashreplace")
    try:
        with _ended_as_by_ctrl_c(words):
            code = _run(_for_the_parser(words))
        _flush()
        return code if isinstance(code, int) else 0
    except TyperException as exc:
        return _usage(exc, words)
    except (KeyboardInterrupt, typer.Abort):
        return INTERRUPTED
    except (BrokenPipeError, SystemExit):
        # The program that reads our output has closed the pipe. If typer notices the closed pipe
        # before Python does, it raises SystemExit(1).
        _forget_output()
        return 0
    except (Exception, BaseExceptionGroup) as exc:
        return _report(exc, words)


def _run(words: Sequence[str]) -> object:
    """Run the command in `words`, and return its exit code, if it has one."""
    if run_plainly(words):
        return 0
    called = next((word for word in words if not word.startswith("-")), "")
    app = app_for(called if called in {each.name for each in COMMANDS} else "")
    return app(words, prog_name="p2ptrain", standalone_mode=False)


@contextmanager
def _ended_as_by_ctrl_c(words: Sequence[str]) -> Iterator[None]:
    """Let SIGTERM, and SIGHUP of a closed terminal, end a command as Ctrl-C does, so that it
    removes its temporary files (half an export, a model in /tmp). A node handles these signals
    itself.
    """
    ours = (
        not set(words[:1]) & NODE_COMMANDS and threading.current_thread() is threading.main_thread()
    )
    numbers = (signal.SIGTERM, signal.SIGHUP) if ours else ()
    usual = [number for number in numbers if signal.getsignal(number) is signal.SIG_DFL]
    for number in usual:
        signal.signal(number, _interrupt)
    try:
        yield
    finally:
        for number in usual:
            signal.signal(number, signal.SIG_DFL)


def _interrupt(number: int, frame: object) -> None:
    """Raise SIGINT, because trio has its own handler for it. If SIGINT is ignored, as in a process
    that a shell script starts with `&`, raise KeyboardInterrupt instead.
    """
    if callable(signal.getsignal(signal.SIGINT)):
        signal.raise_signal(signal.SIGINT)
    else:
        raise KeyboardInterrupt


def _for_the_parser(words: Sequence[str]) -> list[str]:
    """Return `words` without the VERBOSE options, which `main` handles. The commands that run a
    node have such an option themselves."""
    end = words.index("--") if "--" in words else len(words)
    kept = [word for word in words[:end] if word not in VERBOSE]
    if len(kept) < end and kept[:1] and kept[0] in NODE_COMMANDS:
        kept.insert(1, "--verbose")
    return kept + list(words[end:])


def _flush() -> None:
    """Flush stdout while an error can still be reported. Raises OSError."""
    try:
        if sys.stdout is not None:
            sys.stdout.flush()
    except OSError:
        _forget_output()
        raise


def _forget_output() -> None:
    """Drop unwritten output. Python would otherwise try to write it at exit, and print an error."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _usage(exc: TyperException, words: Sequence[str]) -> int:
    """Report a wrong option or argument, with the parser's message."""
    show = getattr(exc, "show", None)
    with disk_may_be_full():
        if show is not None:
            show()
        else:
            print(exc, file=sys.stderr)
    if "--json" in words:
        told = getattr(exc, "format_message", exc.__str__)()
        error = ConfigError(told, code="USAGE", do="run the same command with --help")
        _print_error_json(error)
    return int(exc.exit_code)


def _print_error_json(error: P2PTrainError) -> None:
    """Print the error as JSON on stdout, for `--json`."""
    with suppress(OSError):  # The error may be that stdout has failed.
        result_json(error_json(error))
        _flush()


def _report(exc: BaseException, words: Sequence[str]) -> int:
    """Show the error that ended a command, as text and, with `--json`, also as JSON."""
    error = translated(exc)
    if error is None:
        return INTERRUPTED
    if any(word in VERBOSE for word in words):
        with disk_may_be_full():
            traceback.print_exception(exc)
    show_error(error)
    if "--json" in words:
        _print_error_json(error)
    return int(error.exit_code)


def translated(exc: BaseException) -> P2PTrainError | None:
    """Return the error to show for `exc`: itself, the first P2PTrainError of its group, a system
    error in words, or a BUG error.

    Return None for Ctrl-C, alone or in a group.
    """
    leaves = list(_leaves(exc))
    for leaf in leaves:
        if isinstance(leaf, P2PTrainError):
            return leaf
    if any(isinstance(leaf, KeyboardInterrupt) for leaf in leaves):
        return None
    leaf = leaves[0]
    if isinstance(leaf, OSError):
        return refusal(leaf)
    if isinstance(leaf, MemoryError):
        return refusal(OSError(errno.ENOMEM, "memory ran out"))
    frames = traceback.extract_tb(leaf.__traceback__)
    where = [f"{frame.filename}:{frame.lineno} in {frame.name}" for frame in frames[-3:]]
    return P2PTrainError(
        f"{type(leaf).__name__}: {leaf}",
        code="BUG",
        evidence=where,
        likely="this is a bug in p2ptrain; you did nothing wrong",
        do="run the same command with -v, and report what it prints",
    )


def _leaves(exc: BaseException) -> Iterator[BaseException]:
    if isinstance(exc, BaseExceptionGroup):
        for inner in exc.exceptions:
            yield from _leaves(inner)
    else:
        yield exc

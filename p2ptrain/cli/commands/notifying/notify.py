"""`p2ptrain notify`: choose where the node sends messages to its owner."""

from __future__ import annotations

import secrets
import socket
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from p2ptrain.cli.homes import HomeOption, open_home
from p2ptrain.cli.output import JsonOption, examples, progress, result, result_json, result_or_json
from p2ptrain.cli.rendering import printable
from p2ptrain.errors import ConfigError, TryLater, counted
from p2ptrain.suggested_command import to_paste

if TYPE_CHECKING:
    from p2ptrain.notify.targets import Target

ADD_EXAMPLES = examples(
    "p2ptrain notify add ntfy:my-secret-topic",
    "p2ptrain notify add https://example.org/hook --on stalled,ended --secret ./key",
    "p2ptrain notify add cmd:/usr/local/bin/say-it --on disk --name say",
)
TEST_EXAMPLES = examples("p2ptrain notify test", "p2ptrain notify test say")
RM_EXAMPLES = examples("p2ptrain notify rm say", "p2ptrain notify rm ntfy --home /srv/node")
LS_EXAMPLES = examples("p2ptrain notify ls", "p2ptrain notify ls --json")

app = typer.Typer(
    help="Choose where the node sends messages to you.",
    no_args_is_help=True,
    epilog=examples("p2ptrain notify add ntfy:my-secret-topic", "p2ptrain notify test"),
)

NameArgument = Annotated[str, typer.Argument(metavar="NAME", help="Name of the target.")]


@app.command("add", epilog=ADD_EXAMPLES)
def add(
    to: Annotated[
        str,
        typer.Argument(metavar="TARGET", help="A URL, ntfy:TOPIC, or cmd:PROGRAM."),
    ],
    on: Annotated[
        str,
        typer.Option(
            "--on",
            metavar="CAUSES",
            help="Some of stalled,pending,ended,dropped,disk,loss-spike.",
            show_default="all",
        ),
    ] = "",
    secret: Annotated[
        Path | None,
        typer.Option("--secret", metavar="FILE", help="File with the key that signs web hooks."),
    ] = None,
    name: Annotated[
        str | None,
        typer.Option("--name", metavar="NAME", help="Name of the target.", show_default="made"),
    ] = None,
    home: HomeOption = None,
    as_json: JsonOption = False,
) -> None:
    """Send messages to a URL, to a topic of ntfy.sh, or to a program.

    There is at most one message for each cause in ten minutes. A URL gets a POST with JSON. With
    --secret, the header X-P2PTrain-Signature has the HMAC-SHA256 of the body. A program gets the
    text on its standard input, and no words. Anybody who knows a topic of ntfy.sh can read it.

    A running node notices the change within seconds. "dropped" means that an exchange left out this
    node, and "pending" that a peer asks to take part.
    """
    from p2ptrain.notify.targets import (
        CAUSES,
        Target,
        changing,
        free_name,
        load_targets,
        resolved,
        save_targets,
    )

    where = open_home(home)
    place, key = resolved(to), _secret_in(secret)
    causes = tuple(word.strip() for word in on.split(",") if word.strip()) if on else CAUSES
    with changing(where.root):
        known = load_targets(where.notify)
        taken = [target.name for target in known]
        if name in taken:
            raise _refusal(f"there is a target {name!r} already", "choose another --name")
        target = Target(name or free_name(place, taken), place, causes, key)
        save_targets(where.notify, [*known, target])
    words = f"{target.name}: {printable(target.shown)} on {','.join(causes)}"
    facts = {"name": target.name, "to": target.shown, "on": list(causes), "signed": bool(key)}
    result_or_json(words, facts, as_json=as_json)
    progress(f"try it: {to_paste(where.root, f'notify test {target.name}')}")


@app.command("test", epilog=TEST_EXAMPLES)
def try_out(
    name: Annotated[
        str | None,
        typer.Argument(metavar="NAME", help="Name of the target.", show_default="all"),
    ] = None,
    home: HomeOption = None,
    as_json: JsonOption = False,
) -> None:
    """Send a message to one target, or to all, and say whether they accept it.

    Works whether or not a node runs in the home.
    """
    from p2ptrain.notify.messages import Message, inert
    from p2ptrain.notify.sending import send

    where = open_home(home, to_write=False)
    targets = _chosen(_targets(where.notify), name)
    machine, failed = inert(socket.gethostname())[:64], list[str]()
    for target in targets:
        text = "This is a test of p2ptrain notify."
        message = Message(secrets.token_hex(8), time.time(), "test", text)
        fault = send(target, message, machine=machine, run="")
        failed += [f"tried {target.name}: {fault}"] if fault else []
        words = f"{target.name}: {printable(fault) or 'accepted'}"
        result_or_json(words, {"name": target.name, "fault": fault}, as_json=as_json)
    if failed:
        raise TryLater(
            f"{counted(len(failed), 'target')} did not accept the message",
            code="NOTIFY",
            evidence=failed,
            do=f"repair the target, or remove it: {to_paste(where.root, 'notify rm NAME')}",
        )


@app.command("rm", epilog=RM_EXAMPLES)
def rm(name: NameArgument, home: HomeOption = None) -> None:
    """Send no more messages to a target."""
    from p2ptrain.notify.targets import changing, load_targets, save_targets

    where = open_home(home)
    with changing(where.root):
        known = load_targets(where.notify)
        _chosen(known, name)
        save_targets(where.notify, [target for target in known if target.name != name])
    result(f"removed {printable(name)}")


@app.command("ls", epilog=LS_EXAMPLES)
def ls(home: HomeOption = None, as_json: JsonOption = False) -> None:
    """List the targets, how many messages they got, and how many were left out."""
    from p2ptrain.notify.notifier import kept_state, outboxes_in
    from p2ptrain.notify.outbox import Outbox

    where = open_home(home, to_write=False)
    targets = _targets(where.notify)
    kept = outboxes_in(kept_state(where.notify_state))
    for target in targets:
        box = Outbox.from_json(kept.get(target.name))
        facts = {"name": target.name, "to": target.shown, "on": list(target.on)}
        counts = {"sent": box.sent, "limited": box.limited, "dropped": box.dropped}
        if as_json:
            result_json({**facts, **counts, "signed": bool(target.secret), "fault": box.fault})
            continue
        result(f"{target.name}: {printable(target.shown)} on {','.join(target.on)}")
        result(f"  sent {box.sent}, too many {box.limited}, dropped {box.dropped}")
        if box.fault:
            result(f"  the last try failed: {printable(box.fault)}")
    if not targets:
        progress(f"there is no target; add one: {to_paste(where.root, 'notify add TARGET')}")


def _targets(path: Path) -> tuple[Target, ...]:
    from p2ptrain.notify.targets import load_targets

    return load_targets(path)


def _chosen(targets: Sequence[Target], name: str | None) -> Sequence[Target]:
    """Return the target of this name, or all. Raises ConfigError: there is none."""
    found = [target for target in targets if name in (None, target.name)]
    if not found:
        what = "there is no target" if name is None else f"there is no target {name[:40]!r}"
        names = ", ".join(target.name for target in targets)
        raise _refusal(what, f"the targets are {names}" if names else "add one: notify add TARGET")
    return found


def _secret_in(path: Path | None) -> str:
    """Return the secret in the file; "" without a file. Raises ConfigError: it has none."""
    from p2ptrain.notify.targets import SECRET_BYTES_MAX
    from p2ptrain.private_file import read_private_file

    if path is None:
        return ""
    try:
        data = read_private_file(path, SECRET_BYTES_MAX + 2, what="the secret", code="NOTIFY")
        found = data.decode().strip()
    except OSError as exc:
        raise _refusal(f"{path} cannot be read: {exc.strerror or exc}", "name a file") from exc
    except UnicodeDecodeError as exc:
        raise _refusal(f"{path} is not text", "write the secret in hexadecimal digits") from exc
    if not found:
        raise _refusal(f"{path} is empty", "write the secret into it")
    return found


def _refusal(what: str, do: str) -> ConfigError:
    return ConfigError(what, code="NOTIFY", do=do)

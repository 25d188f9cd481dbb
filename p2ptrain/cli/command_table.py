"""The commands of `p2ptrain`: where each is defined, and its line in the help.

Importing all commands takes 0.1 s of processor time. So only the module of the command that is
called is imported. The others appear in the help with the lines below; a test compares these lines
with the help of the commands.
"""

from __future__ import annotations

from dataclasses import dataclass
from importlib import import_module

import typer

PACKAGE = "p2ptrain.cli.commands"


@dataclass(frozen=True, slots=True)
class Command:
    """One command. It is the function `function` of `module`; the module has the help's examples
    under the name `examples`."""

    name: str
    module: str
    line: str
    function: str
    examples: str = "EXAMPLES"

    def add_to(self, app: typer.Typer) -> None:
        module = import_module(f"{PACKAGE}.{self.module}")
        epilog = getattr(module, self.examples)
        app.command(self.name, epilog=epilog)(getattr(module, self.function))

    def add_line_to(self, app: typer.Typer) -> None:
        app.command(self.name, help=self.line)(_not_loaded)


@dataclass(frozen=True, slots=True)
class Group:
    """A group of commands, the `app` of `module`."""

    name: str
    module: str
    line: str
    hidden: bool = False

    def add_to(self, app: typer.Typer) -> None:
        module = import_module(f"{PACKAGE}.{self.module}")
        app.add_typer(module.app, name=self.name, hidden=self.hidden)

    def add_line_to(self, app: typer.Typer) -> None:
        app.add_typer(typer.Typer(help=self.line), name=self.name, hidden=self.hidden)


COMMANDS: tuple[Command | Group, ...] = (
    Command("node", "node", "Take part in a run, or serve one.", "node"),
    Command("join", "admission.join", "Take part in the run that an invitation names.", "join"),
    Command("invite", "admission.invite", "Print an invitation to the run in this home.", "invite"),
    Command(
        "status",
        "status",
        "Show what the node is doing, and the run's progress.",
        "status",
        "STATUS_EXAMPLES",
    ),
    Command("top", "watching.top", "Show the run while it goes on: progress, loss, peers.", "top"),
    Command(
        "events", "watching.events", "Show what happened in the run, the oldest first.", "events"
    ),
    Command("me", "watching.me", "Show what this node has contributed to the run.", "me"),
    Command(
        "track",
        "watching.track",
        "Copy the run's history to JSON lines, or to files of TensorBoard, wandb or aim.",
        "track",
    ),
    Command("open", "page.open_page", "Show the node's page in a browser.", "open_page"),
    Command("watch", "watching.watch", "Follow a run without taking part in it.", "watch"),
    Command(
        "report",
        "watching.report",
        "Write the run's page as files that any web host can serve.",
        "report",
    ),
    Command(
        "pause",
        "control.pause",
        "Stop training for a while; the device is free, and the node stays a member.",
        "pause",
        "PAUSE_EXAMPLES",
    ),
    Command("resume", "control.pause", "Train again after a pause.", "resume", "RESUME_EXAMPLES"),
    Command(
        "finish",
        "control.pause",
        "Leave the run after the next committed contribution, so that no work is lost.",
        "finish",
        "FINISH_EXAMPLES",
    ),
    Command("limit", "control.limit", "Limit how much of this machine the node uses.", "limit"),
    Command("schedule", "control.schedule", "Choose the hours in which to train.", "schedule"),
    Group("service", "control.service", "Start the node with this machine, without a terminal."),
    Group("notify", "notifying.notify", "Choose where the node sends messages to you."),
    Command(
        "doctor",
        "doctor",
        "Check whether this machine can take part, and say how to repair each fault.",
        "doctor",
    ),
    Command("id", "status", "Show this node's peer id.", "identity", "ID_EXAMPLES"),
    Group("run", "admission.run_group", "Make, check, publish, amend and show a run."),
    Group("data", "data", "Prepare the data of a run."),
    Group(
        "peers",
        "admission.peers_group",
        "See who asks to join your run, and decide who may take part.",
    ),
    Group(
        "allow",
        "admission.allow",
        "Old names of `p2ptrain peers approve`, `peers revoke` and `peers ls`.",
        hidden=True,
    ),
    Group("ledger", "ledger_group", "Show and check what the members of the run have agreed on."),
    Group("store", "store", "Show, check and clean up what this node keeps on its disk."),
    Group("ckpt", "ckpt", "List, fetch, check and keep the certified snapshots of the run."),
    Command("verify", "verify", "Replay the run in this home and check everything.", "verify"),
    Command("export", "export", "Write the run's weights as a Hugging Face folder.", "export"),
    Command("chat", "chat", "Continue a text with the run's model.", "chat"),
    Group("proof", "proving.proof", "Check which weights generated a text."),
    Group("bench", "bench", "Measure what this machine can do."),
    Command(
        "simulate",
        "simulate",
        "Test the consensus protocol in many simulated runs with faults.",
        "simulate",
    ),
    Command(
        "explain",
        "status",
        "Explain an error code, and say what to do.",
        "explain",
        "EXPLAIN_EXAMPLES",
    ),
)


def add_commands(app: typer.Typer, *, called: str | None = None) -> None:
    """Add all commands to `app`. With `called`, import only the command of this name."""
    for command in COMMANDS:
        if called is None or command.name == called:
            command.add_to(app)
        else:
            command.add_line_to(app)


def _not_loaded() -> None:
    raise AssertionError("this command is imported when it is called")

"""`p2ptrain service`: run the node as a systemd user unit, which needs no root.

This module writes the unit and asks systemctl to use it. It does not know what the node does.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Annotated

import typer

from p2ptrain.cli.homes import HomeOption, home_path
from p2ptrain.cli.output import examples, progress, result
from p2ptrain.errors import ConfigError, MachineUnfit, P2PTrainError
from p2ptrain.suggested_command import to_paste

INSTALL_EXAMPLES = examples(
    "p2ptrain service install --dry-run",
    "p2ptrain service install -- --limit-up 20Mbit --listen /ip4/0.0.0.0/tcp/4201",
    "p2ptrain service install --name seed --home /srv/seed -- --seed --yes",
)
REMOVE_EXAMPLES = examples("p2ptrain service remove", "p2ptrain service remove --name seed")

app = typer.Typer(
    help="Start the node with this machine, without a terminal.",
    no_args_is_help=True,
    epilog=examples("p2ptrain service install --dry-run", "p2ptrain service remove"),
)

MARK = "# Written by `p2ptrain service install`; `p2ptrain service remove` deletes it."
NO_RESTART = "2 3 4 6 7 8"
"""Exit statuses after which a restart would end the same way: a wrong setting, another run, an
unfit machine, no admission, another version, and an identity that is in use."""

STOP_S = 60
"""Seconds for an orderly exit: 20 s for the goodbye, and time for the trainer and the disk."""

SYSTEMCTL_S = 60.0
_NAME = re.compile(r"[a-z0-9][a-z0-9-]{0,40}", re.ASCII)

UNIT = """{mark}
[Unit]
Description=Node of p2ptrain, home {home}
StartLimitIntervalSec=0

[Service]
ExecStart={command}
WorkingDirectory=~
Restart=on-failure
RestartSec=30
RestartPreventExitStatus={no_restart}
# Only the node gets the signal, so that it can end its trainer itself.
KillMode=mixed
KillSignal=SIGTERM
TimeoutStopSec={stop_s}
# If memory runs out, only the killed process ends. The node starts a new trainer.
OOMPolicy=continue
LimitNOFILE=65536
Nice=5
UMask=0077
NoNewPrivileges=yes
LockPersonality=yes
RestrictNamespaces=yes
RestrictRealtime=yes
RestrictSUIDSGID=yes
RestrictAddressFamilies=AF_UNIX AF_INET AF_INET6 AF_NETLINK
SystemCallArchitectures=native
SystemCallErrorNumber=EPERM
SystemCallFilter=~@clock @cpu-emulation @module @mount @obsolete @raw-io @reboot @swap

[Install]
WantedBy=default.target
"""
"""The unit. It uses no sandbox of the file system: a user's systemd can build one only where the
kernel lets users make namespaces, and the unit would fail to start elsewhere."""

NameOption = Annotated[
    str, typer.Option("--name", metavar="NAME", help="Name of the unit, without .service.")
]
DryOption = Annotated[
    bool, typer.Option("--dry-run", help="Print what would be done, and change nothing.")
]


@app.command("install", epilog=INSTALL_EXAMPLES)
def install(
    options: Annotated[
        list[str] | None,
        typer.Argument(metavar="-- NODE_OPTIONS", help="Options of `p2ptrain node`, after --."),
    ] = None,
    name: NameOption = "p2ptrain",
    dry_run: DryOption = False,
    home: HomeOption = None,
) -> None:
    """Write a systemd user unit for the node in this home, and start it.

    It needs no root. The unit restarts the node after a failure, but not after one that a restart
    cannot fix, such as a wrong option. The command prints everything that it writes.
    """
    where = home_path(home)
    path, given = unit_path(name, os.environ), options or []
    if not ((where / "run" / "agreed").exists() or {"--yes", "-y"} & {*given}):
        raise ConfigError(
            f"you have not agreed yet to take part in the run of {where}",
            code="SERVICE",
            likely="a service has no terminal, so it cannot ask",
            do=f"start {to_paste(where, 'node')} once in a terminal, or add: -- --yes",
        )
    text = unit_text(where, given)
    commands = (
        ("systemctl", "--user", "daemon-reload"),
        ("systemctl", "--user", "enable", "--now", f"{name}.service"),
    )
    if not dry_run:
        _require_systemd(where, given)
        _check_ours(path)
    result(f"{'would write' if dry_run else 'writing'} {path}:\n{text}")
    if not dry_run:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    _run(commands, dry_run=dry_run)
    progress(f"logs: journalctl --user -u {name} -f")
    progress("to keep it running while you are logged out: loginctl enable-linger")


@app.command("remove", epilog=REMOVE_EXAMPLES)
def remove(
    name: NameOption = "p2ptrain", dry_run: DryOption = False, home: HomeOption = None
) -> None:
    """Stop the unit in an orderly way, and delete it. The node's home stays as it is."""
    path = unit_path(name, os.environ)
    if not path.exists():
        raise ConfigError(
            f"there is no unit {path}",
            code="SERVICE",
            do="give the --name with which it was installed",
        )
    _check_ours(path)
    if not dry_run:
        _require_systemd(home_path(home), [])
    _run((("systemctl", "--user", "disable", "--now", f"{name}.service"),), dry_run=dry_run)
    result(f"{'would delete' if dry_run else 'deleting'} {path}")
    if not dry_run:
        path.unlink()
    _run((("systemctl", "--user", "daemon-reload"),), dry_run=dry_run)


def unit_text(home: Path, options: list[str]) -> str:
    """Return the unit for the node in `home`, started with these options of `p2ptrain node`."""
    words = [sys.executable, "-m", "p2ptrain.cli", "node", "--home", str(home), *options]
    return UNIT.format(
        mark=MARK,
        home=str(home).replace("%", "%%"),
        command=" ".join(map(_quoted, words)),
        no_restart=NO_RESTART,
        stop_s=STOP_S,
    )


def _quoted(word: str) -> str:
    """Quote a word of a command line for systemd, which expands % and $ and reads backslashes."""
    if not word.isprintable():
        raise ConfigError(f"{word!r} has a character that a unit cannot contain", code="SERVICE")
    escaped = word.replace("\\", "\\\\").replace("%", "%%").replace("$", "$$").replace('"', '\\"')
    return escaped if re.fullmatch(r"[\w@:=,./+-]+", escaped, re.ASCII) else f'"{escaped}"'


def unit_path(name: str, environment: os._Environ[str] | dict[str, str]) -> Path:
    """Return the path of the user unit `name`. Raises ConfigError: the name is invalid."""
    if not _NAME.fullmatch(name):
        raise ConfigError(
            f"--name is {name[:40]!r}", code="SERVICE", do="use small letters, digits and hyphens"
        )
    base = environment.get("XDG_CONFIG_HOME") or str(Path.home() / ".config")
    return Path(base) / "systemd" / "user" / f"{name}.service"


def _check_ours(path: Path) -> None:
    if path.exists() and not path.read_text(errors="replace").startswith(MARK):
        raise ConfigError(
            f"{path} was not written by p2ptrain, so it is left as it is",
            code="SERVICE",
            do="choose another --name, or remove the file yourself",
        )


def _require_systemd(home: Path, options: list[str]) -> None:
    """Raise MachineUnfit if this user has no systemd."""
    if shutil.which("systemctl") and Path("/run/systemd/system").is_dir():
        return
    node = " ".join(["node", *map(shlex.quote, options)])
    raise MachineUnfit(
        "this machine has no systemd, so p2ptrain cannot install a service",
        code="SERVICE-NONE",
        likely="it is a container, or it uses another init system",
        do=(
            "start the node with your init system or at boot with `crontab -e` and the line: "
            f"@reboot {to_paste(home, node)}; it must not be restarted after exit status "
            f"{', '.join(NO_RESTART.split())}"
        ),
    )


def _run(commands: tuple[tuple[str, ...], ...], *, dry_run: bool) -> None:
    for command in commands:
        result(f"{'would run' if dry_run else 'running'}: {shlex.join(command)}")
        if dry_run:
            continue
        done = subprocess.run(
            command,
            capture_output=True,
            text=True,
            timeout=SYSTEMCTL_S,
            check=False,
            stdin=subprocess.DEVNULL,
        )
        if done.returncode:
            raise P2PTrainError(
                f"{shlex.join(command)} failed with status {done.returncode}",
                code="SERVICE",
                evidence=done.stderr.splitlines()[-5:],
                do="read the lines above; the unit stays where it is",
            )

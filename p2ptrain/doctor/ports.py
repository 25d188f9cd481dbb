"""Checks of the two ports: whether a node could listen on them and, if not, which program does."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import psutil

from p2ptrain.config.node import NodeConfig
from p2ptrain.doctor.finding import Finding, Tell, fault_of, good
from p2ptrain.doctor.subject import Learned, Subject
from p2ptrain.errors import ConfigError

CONTROL, DATA = ("control port", "--listen"), ("data port", "--data-listen")


@dataclass(frozen=True, slots=True)
class PortFacts:
    """The outcome of an attempt to listen at `where`."""

    name: str
    option: str
    """The option that chooses the port."""
    where: str
    port: int
    """0 if the system chooses the port."""
    error: ConfigError | None = None
    holder: str = ""
    """The program that listens on the port, such as "nginx (process 812)", if /proc tells."""
    is_own_node: bool = False
    """Whether the node that runs in this home listens on the port."""


def judge_port(facts: PortFacts) -> Finding:
    if facts.error is None:
        chosen = f"{facts.where} is free"
        free = "the system chooses a free port; choose one yourself to forward it in a router"
        return good(facts.name, chosen if facts.port else free)
    if facts.error.code != "PORT-IN-USE":
        return fault_of(facts.name, facts.error)
    if facts.is_own_node:
        return good(facts.name, f"the node that is running here listens on port {facts.port}")
    by = f"{facts.holder} listens on it" if facts.holder else "a program of another user has it"
    told = ConfigError(f"port {facts.port} is in use: {by}", code="PORT-IN-USE")
    return fault_of(
        facts.name,
        told,
        fix=f"stop that program, or choose another port with {facts.option}, such as "
        f"{facts.port + 2}",
    )


def addresses_of(config: NodeConfig) -> tuple[str, ...]:
    """Return the addresses on which a node listens. By default, one address stands for all of this
    machine's. Its port is 0 if the node chooses a free one."""
    return config.listen or (f"/ip4/0.0.0.0/tcp/{config.port}",)


def ports(subject: Subject, learned: Learned, tell: Tell) -> None:
    """Try to listen on both ports, as a node does at its start."""
    from p2ptrain.dataplane import try_listening
    from p2ptrain.net.listening import claimed

    config = subject.config

    def claim(address: str) -> None:
        with claimed(None if config.listen is None else [address], config.port):
            pass

    tried = [_tried(subject, *CONTROL, each, partial(claim, each)) for each in addresses_of(config)]
    where = f"{config.data_host}:{config.data_port}"

    def listen() -> None:
        try_listening(config.data_host, config.data_port)

    tried.append(_tried(subject, *DATA, where, listen))
    learned.are_ports_free = all(facts.error is None for facts in tried)
    for facts in tried:
        tell(judge_port(facts))


def _tried(
    subject: Subject, name: str, option: str, where: str, listen: Callable[[], None]
) -> PortFacts:
    numbers = [int(part) for part in where.replace(":", "/").split("/") if part.isdigit()]
    port = numbers[-1] if numbers else 0
    try:
        listen()
    except ConfigError as exc:
        process = listener_on(port) if exc.code == "PORT-IN-USE" else None
        if process is None:
            return PortFacts(name, option, where, port, exc)
        own = _is_node_of(process, subject.home.lock)
        return PortFacts(name, option, where, port, exc, _described(process), own)
    return PortFacts(name, option, where, port)


def listener_on(port: int) -> int | None:
    """Return the process that listens on TCP `port`; None if /proc does not tell this user."""
    try:
        connections = psutil.net_connections(kind="tcp")
    except (psutil.Error, OSError):
        return None
    for each in connections:
        if each.status == psutil.CONN_LISTEN and each.laddr and each.laddr.port == port:
            return each.pid
    return None


def _described(process: int) -> str:
    try:
        return f"{psutil.Process(process).name()} (process {process})"
    except psutil.Error:
        return f"process {process}"


def _is_node_of(process: int, lock: Path) -> bool:
    """Return whether this process holds the home with this lock file."""
    try:
        return lock.read_text(errors="replace").strip() == str(process)
    except OSError:
        return False

"""The list of all checks. Modules that load slowly, or that the first checks must not need, are
imported only when their check runs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial

from p2ptrain.doctor import (
    disk,
    home,
    installation,
    machine,
    port_mapping,
    ports,
    torch_trial,
)
from p2ptrain.doctor.finding import Finding, Tell
from p2ptrain.doctor.runner import Check, Lane, run_checks
from p2ptrain.doctor.subject import Learned, Subject

PHASES_S = (46.0, 7.0)
"""Seconds for each phase. Together they are less than a minute."""


def examine(subject: Subject, waiting: Callable[[Check], None]) -> Iterator[Finding]:
    """Run all checks, and yield their findings in a fixed order, as soon as they are known.
    `waiting(check)` is called for a check that takes long."""
    learned = Learned()
    for lanes, deadline_s in zip(phases(subject, learned), PHASES_S, strict=True):
        yield from run_checks(lanes, deadline_s=deadline_s, waiting=waiting)


def phases(subject: Subject, learned: Learned) -> tuple[Sequence[Lane], Sequence[Lane]]:
    """Return the checks. The second phase uses what the first one has learned.

    To add a check of this machine, add it to `here`. To add a check with a peer's help, see
    `bootstrap.PEER_CHECKS`.
    """
    here = (
        Check("python", "Python", installation.python, 5.0),
        Check("packages", "the packages", installation.packages, 10.0),
        Check("kernels", "the kernels", installation.kernels, 10.0),
        Check("memory", "memory", partial(machine.memory, subject), 20.0),
        Check("open files", "the limit on open files", machine.open_files, 5.0),
        Check("clock", "the clock", machine.clock, 10.0),
        Check("home", "the home", partial(home.home, subject, learned), 15.0),
        Check("disk", "the disk", partial(disk.disk, subject), 15.0),
    )
    trial = Check(
        "torch", "torch and the device", partial(torch_trial.torch_trial, subject, learned), 43.0
    )
    # These come one after another, because the checks of the way to a run listen on the ports.
    network = (
        Check("network library", "the network library", installation.network_library, 30.0),
        Check("ports", "the ports", partial(ports.ports, subject, learned), 10.0),
        Check(
            "port mapping",
            "the router",
            partial(port_mapping.port_mapping, subject, learned),
            port_mapping.TRIAL_S + 4.0,
        ),
        Check("bootstrap", "the way to the run", partial(_bootstrap, subject, learned), 45.0),
    )
    needs = Check("run", "the run's needs", partial(_run_needs, subject, learned), 7.0)
    return (here, (trial,), network), ((needs,),)


def _bootstrap(subject: Subject, learned: Learned, tell: Tell) -> None:
    if subject.config.bootstrap:
        from p2ptrain.doctor.bootstrap import bootstrap

        bootstrap(subject, learned, tell)


def _run_needs(subject: Subject, learned: Learned, tell: Tell) -> None:
    if learned.run is not None:
        from p2ptrain.doctor.run_needs import run_needs

        run_needs(subject, learned, tell)

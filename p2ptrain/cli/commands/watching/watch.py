"""`p2ptrain watch`: follow a run from outside, and check its ledger on this machine."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from p2ptrain.cli.commands.admission.ways_in import ways_in
from p2ptrain.cli.homes import home_path
from p2ptrain.cli.output import JsonOption, examples, progress, result, result_json
from p2ptrain.config.node import NodeConfig
from p2ptrain.errors import ConfigError, counted
from p2ptrain.names import label, peer_name
from p2ptrain.observe.step_line import Pace, StepLine

if TYPE_CHECKING:
    from p2ptrain.node.watching.watch import Watched
    from p2ptrain.peers.outside.watched_ledger import WatchedStep

EXAMPLES = examples(
    "p2ptrain watch p2ptrain:1…",
    "p2ptrain watch p2ptrain:1… --from 0 --json",
    "p2ptrain watch --bootstrap /ip4/203.0.113.7/tcp/4201/p2p/12D3KooW… --once",
    "p2ptrain watch p2ptrain:1… --weights ./weights",
)

InviteArgument = Annotated[
    str | None,
    typer.Argument(metavar="INVITE", help="An invitation to the run.", show_default=False),
]
BootstrapOption = Annotated[
    list[str] | None,
    typer.Option("--bootstrap", metavar="ADDR", help="Address of a node of the run; repeatable."),
]
RunOption = Annotated[
    str | None, typer.Option("--run", metavar="RUNID", help="Watch this run and no other.")
]
CheckpointOption = Annotated[
    str | None,
    typer.Option(
        "--trust-checkpoint",
        metavar="HEIGHT:DIGEST",
        help="Begin at this entry of the ledger, because you trust whoever gave it to you.",
    ),
]


def watch(
    invite: InviteArgument = None,
    bootstrap: BootstrapOption = None,
    run: RunOption = None,
    trust_checkpoint: CheckpointOption = None,
    from_step: Annotated[
        int | None,
        typer.Option(
            "--from",
            min=0,
            metavar="STEP",
            help="Also print the outer steps from this one on.",
            show_default="only new ones and the newest",
        ),
    ] = None,
    once: Annotated[
        bool, typer.Option("--once", help="Print the newest outer step, and end.")
    ] = False,
    weights: Annotated[
        Path | None,
        typer.Option(
            "--weights",
            metavar="DIR",
            help="Fetch the newest certified weights into DIR, a new folder, and end.",
            show_default=False,
        ),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Follow a run without taking part in it.

    You need an invitation or an address, but no admission, no GPU and no home. The command fetches
    the run's ledger, checks every signature on this machine, and prints one line for each outer
    step. Tokens and peers are proved by the ledger. Losses are the median of what nodes report and
    sign. It works if the run's organiser lets strangers watch (public.telemetry), and in open runs.

    With --weights, the command writes a Hugging Face folder, like p2ptrain export. That works if
    the organiser also gives the weights to strangers (public.weights).
    """
    config = config_of(invite, bootstrap, run, trust_checkpoint)
    if weights is not None:
        from p2ptrain.cli.commands.watching.weights import write_weights

        return write_weights(config, weights, as_json=as_json)
    from p2ptrain.node.watching.watch import watch as follow

    shown = Printer(from_step, once=once, as_json=as_json)
    follow(config, shown.show, progress)


def config_of(
    invite: str | None, bootstrap: list[str] | None, run: str | None, checkpoint: str | None
) -> NodeConfig:
    """Return the configuration of an observer.

    Raises ConfigError, VersionMismatch, RunMismatch: an option or the invitation is invalid."""
    texts = [*([invite] if invite else ()), *(bootstrap or ())]
    if not texts:
        raise ConfigError(
            "you gave neither an invitation nor an address",
            code="ADDR-NONE",
            do="p2ptrain watch INVITE, with an invitation from the run's organiser",
        )
    found = asdict(ways_in(texts, run))
    return NodeConfig(home_path(None), **found, trust_checkpoint=checkpoint, observes=True)


@dataclass(slots=True)
class Printer:
    """Prints the outer steps that should be printed: those from `from_step` on. If it is None, of
    the steps of the past only the newest is printed."""

    from_step: int | None
    once: bool
    as_json: bool
    pace: Pace = field(default_factory=Pace)
    began: bool = False
    """Whether the steps of the past have been printed."""
    texts: set[tuple[int, int]] = field(default_factory=set)
    """Samples that were printed, by step and prompt."""

    def show(self, seen: Watched) -> bool:
        """Print the news. Return whether to go on watching."""
        steps, past = seen.steps, not self.began
        if past and (steps or seen.ledger.state.step == 0):
            self.began = True
            self._print_past(seen)
            steps = self._chosen(steps)
        for step in steps:
            self._print_step(seen, step, past=past)
        if not self.as_json:
            self._print_samples(seen)
        return not (self.once and self.began)

    def _chosen(self, steps: list[WatchedStep]) -> list[WatchedStep]:
        if self.from_step is None or self.once:
            return steps[-1:]
        return [each for each in steps if each.step >= self.from_step]

    def _print_past(self, seen: Watched) -> None:
        state = seen.ledger.state
        progress(
            f"checked {counted(state.height, 'entry', 'entries')} of the ledger, up to outer step "
            f"{state.step} of {seen.run.manifest.outer.steps}"
        )

    def _print_step(self, seen: Watched, step: WatchedStep, *, past: bool) -> None:
        seconds = self.pace.note(step.step, time.monotonic(), replayed=past)
        if self.as_json:
            result_json(facts_of(seen, step))
        else:
            result(str(line_of(seen, step, seconds, self.pace)))

    def _print_samples(self, seen: Watched) -> None:
        prompts = seen.run.manifest.samples.prompts
        for step in list(seen.ledger.steps.values()):
            for number, (peer, text) in sorted(step.samples.items()):
                if (step.step, number) not in self.texts:
                    self.texts.add((step.step, number))
                    whose = f", {label(peer)}" if seen.run.manifest.public.names else ""
                    written = " ".join(text.split())
                    result(f"  written by the model{whose}: {prompts[number]}│{written}")


def line_of(
    seen: Watched, step: WatchedStep, seconds: float | None = None, pace: Pace | None = None
) -> StepLine:
    """Return the line about an outer step, as a node prints it."""
    held_out, steps = step.held_out, seen.run.manifest.outer.steps
    return StepLine(
        step.step,
        steps,
        skipped=step.skipped,
        loss=step.loss,
        held_out=held_out[1] if held_out else None,
        tokens=step.tokens,
        seconds=seconds,
        peers=len(step.participants),
        eta_s=pace.eta_s(steps - step.step) if pace else None,
    )


def facts_of(seen: Watched, step: WatchedStep) -> dict[str, object]:
    """Return the facts about an outer step for `--json`."""
    held_out, named = step.held_out, seen.run.manifest.public.names
    return {
        "run": seen.run.id,
        "step": step.step,
        "steps": seen.run.manifest.outer.steps,
        "height": step.height,
        "head": step.head,
        "skipped": step.skipped,
        "attempt": step.attempt,
        "tokens": step.tokens,
        "tokens_total": step.tokens_total,
        "members": len(step.members),
        "participants": len(step.participants),
        "loss": step.loss,
        "held_out": held_out[1] if held_out else None,
        "held_out_step": held_out[0] if held_out else None,
        "records": len(step.losses),
        "samples": list(_samples(step, named=named)),
        "peers": [
            {"peer": each.peer, "name": peer_name(each.peer), "tokens": each.tokens}
            for each in step.participants
            if named
        ],
    }


def _samples(step: WatchedStep, *, named: bool) -> Iterator[dict[str, object]]:
    for prompt, (peer, text) in sorted(step.samples.items()):
        yield {"prompt": prompt, "text": text, **({"peer": peer} if named else {})}

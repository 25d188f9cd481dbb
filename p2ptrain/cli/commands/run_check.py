"""`p2ptrain run check`: describe a run, estimate its cost, and warn its organiser."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path

from p2ptrain.cli.commands.amended_run_file import AmendedFile
from p2ptrain.config.run_file import RunFile
from p2ptrain.data.sources import STANDARD_LIBRARY, DataSource, files_under
from p2ptrain.errors import ConfigError, counted
from p2ptrain.observe.states import size
from p2ptrain.prepare.run_advice import Lint, is_unknown
from p2ptrain.prepare.run_cost import RATES_MBIT, RunCosts, RunScenario
from p2ptrain.prepare.run_summary import claims_in_words
from p2ptrain.trainer.host.cost import TrainerMemory


def lines(amended: AmendedFile, costs: RunCosts, lints: Sequence[Lint]) -> Iterator[str]:
    run = amended.run
    model = run.model
    inner_steps = counted(run.inner.steps // run.sync.fragments, "inner step")
    yield (
        f"run       {run.run.name}: {costs.parameters:,} parameters, "
        f"{counted(model.layers, 'layer')} of width {model.width}, {counted(model.heads, 'head')} "
        f"on {counted(model.kv_heads, 'KV head')}, vocabulary {model.vocab}, "
        f"context {model.sequence}"
    )
    for each in amended.agreed:
        yield f"amended   {each['number']}: {each['words']}"
    yield (
        f"trains    {counted(run.outer.steps, 'outer step')} of {inner_steps} of "
        f"{counted(run.inner.batch_sequences, 'sequence')}: {costs.step_tokens:,} tokens per peer "
        "in each outer step"
    )
    yield from _memory(costs)
    yield (
        f"disk      {size(costs.snapshot_bytes)} per snapshot, {size(costs.update_bytes)} per "
        f"update, {size(costs.block_bytes)} per block of data"
    )
    yield (
        f"publish   needs {size(costs.node.theta)} of memory and as much disk, besides the "
        "data, on the machine that publishes"
    )
    yield f"trust     {claims_in_words(run.has_claims)}"
    operations = f"{costs.step_operations:.2e} operations per peer in each outer step"
    yield f"time      {operations}{_time(costs)}"
    yield from _table(costs)
    for lint in lints:
        yield f"{'FAULT' if lint.is_fault else 'warning':<9} {lint.field}: {lint.words}"


def absences(run: RunFile, beside: Path) -> Iterator[Lint]:
    """Yield a warning for each file that the run file names and that does not exist."""
    named = {"data.source": run.data.source, "data.tokenizer": run.data.tokenizer}
    for field, name in named.items():
        if name is None or name == STANDARD_LIBRARY:
            continue
        path = beside / Path(name).expanduser()
        if not path.exists():
            yield Lint(
                field, f"{path} does not exist yet, and the run cannot be published without it"
            )


def field_faults(run: RunFile, beside: Path) -> Iterator[Lint]:
    """Yield a fault if the data exists here and its records do not have the text in `data.field`.
    Publishing would fail, possibly after hours of packing."""
    path = beside / Path(run.data.source).expanduser()
    if run.data.source == STANDARD_LIBRARY or not path.exists():
        return
    files = tuple(files_under(path)) if path.is_dir() else (path,)
    try:
        DataSource(run.data.source, files, run.data.field, 0).check_fields()
    except ConfigError as exc:
        yield Lint("data.field", f"{exc.what}; {exc.do}", is_fault=True)


def _time(costs: RunCosts) -> str:
    """Return the estimated training time as text, or ask for the option that it depends on."""
    if is_unknown(costs):
        return "; give --tokens-per-s to see how long that takes"
    count = costs.h100s
    whose = "an H100 at 40 % of its"
    if count > 1:
        whose = f"{count} H100s, which hold the model, at 40 % of their"
    said = (
        "as given"
        if costs.is_told
        else f"estimated for {whose} peak rate; --tokens-per-s sets a different rate"
    )
    return f"; at {costs.tokens_per_s:,.0f} tokens/s ({said}) {duration(costs.inner_s)}"


def _memory(costs: RunCosts) -> Iterator[str]:
    trainer, node = costs.trainer_bf16, costs.node
    eager = f", the peer's own newest work (eager) {size(trainer.eager)}" if trainer.eager else ""
    yield (
        f"trainer   weights {size(trainer.weights)}, gathered weights "
        f"{size(trainer.gathered)}, gradients {size(trainer.gradients)}, optimizer "
        f"{size(trainer.optimizer)}, copy of θ {size(trainer.anchor)}{eager}, all ranks "
        "together"
    )
    yield (
        f"          activations per sequence: {_activations(trainer)} in bf16, "
        f"{_activations(costs.trainer_fp32)} in fp32; at least {size(trainer.least)}"
    )
    beside = {
        "contribution": node.contribution,
        "residual": node.residual,
        "copies": node.fragment,
    }
    more = "".join(f", {name} {size(count)}" for name, count in beside.items() if count)
    yield (
        f"node      θ {size(node.theta)}, m {size(node.momentum)}, trained weights "
        f"{size(node.local)}, updates {size(node.updates)}{more}: {size(node.total)} "
        f"({size(node.of_seed)} for a seed)"
    )


def _activations(memory: TrainerMemory) -> str:
    return f"{size(memory.activations)} ({size(memory.activations_recomputed)} with --recompute)"


def _table(costs: RunCosts) -> Iterator[str]:
    """Return a table of at most 80 columns: a terminal would make a wider one unreadable."""
    head = " ".join(f"{f'at {mbit} Mbit/s':>18}" for mbit in RATES_MBIT)
    yield f"{'peers':<5} {'each way':>8} {head} {'tokens':>8}"
    by_peers: dict[int, list[RunScenario]] = {}
    for plan in costs.plans:
        by_peers.setdefault(plan.exchange.peers, []).append(plan)
    for peers, plans in by_peers.items():
        cells = " ".join(f"{_cell(plan, costs):>18}" for plan in plans)
        sent = size(plans[0].exchange.sent_bytes)
        yield f"{peers:<5} {sent:>8} {cells} {plans[0].tokens:>8.3g}"
    if is_unknown(costs):
        yield "      (each way: bytes that a peer sends and receives; then an exchange's time)"
    else:
        yield "      (each way: bytes that a peer sends and receives; then the time of an"
        yield "      exchange, the share of time in which peers train, and the whole run)"


def _cell(plan: RunScenario, costs: RunCosts) -> str:
    if is_unknown(costs):
        return duration(plan.reduce_s)
    days = duration(plan.days * 86_400)
    return f"{duration(plan.reduce_s)}, {plan.utilisation:.0%}, {days}"


def duration(seconds: float) -> str:
    """Return a duration such as "1.5 s", "12 min", "34 h" or "21 d"."""
    if seconds < 90:
        return f"{seconds:.1f} s"
    for unit, length, until in (("min", 60.0, 90.0), ("h", 3600.0, 48.0)):
        if seconds < until * length:
            return f"{seconds / length:.0f} {unit}"
    return f"{seconds / 86_400:,.0f} d"


def facts(amended: AmendedFile, costs: RunCosts, lints: Sequence[Lint]) -> dict[str, object]:
    """Return the result for `--json`."""
    plans = [
        {
            "peers": plan.exchange.peers,
            "sent_bytes": plan.exchange.sent_bytes,
            "mbit": plan.mbit,
            "exchange_s": plan.reduce_s,
            "inner_s": plan.inner_s,
            "utilisation": plan.utilisation,
            "days": plan.days,
            "tokens": plan.tokens,
        }
        for plan in costs.plans
    ]
    return {
        "name": amended.run.run.name,
        "amendments": list(amended.agreed),
        **asdict(costs),
        "plans": plans,
        "lints": [asdict(lint) for lint in lints],
    }

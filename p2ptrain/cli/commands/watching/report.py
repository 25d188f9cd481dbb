"""`p2ptrain report`: write the page as static files, from a node's home or by watching the run."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from p2ptrain.cli.commands.watching.watch import (
    BootstrapOption,
    CheckpointOption,
    InviteArgument,
    RunOption,
    config_of,
)
from p2ptrain.cli.homes import HomeOption, open_home, run_of
from p2ptrain.cli.output import JsonOption, examples, progress, result_or_json
from p2ptrain.errors import ConfigError, StoreError

if TYPE_CHECKING:
    from p2ptrain.identity import Identity
    from p2ptrain.ledger.chain.state import LedgerState
    from p2ptrain.node.watching.watch import Watched
    from p2ptrain.run import Run

EXAMPLES = examples(
    "p2ptrain report --out site/ --every 60",
    "p2ptrain report p2ptrain:1… --out site/ --every 60",
    "p2ptrain report --check site/head.json",
)


def report(
    invite: InviteArgument = None,
    bootstrap: BootstrapOption = None,
    run: RunOption = None,
    trust_checkpoint: CheckpointOption = None,
    out: Annotated[
        Path | None,
        typer.Option("--out", metavar="DIR", help="Folder to write.", show_default=False),
    ] = None,
    every: Annotated[
        float | None,
        typer.Option(
            "--every",
            min=5,
            metavar="SECONDS",
            help="Write the files again and again, at this interval.",
            show_default="write them once",
        ),
    ] = None,
    check: Annotated[
        Path | None,
        typer.Option(
            "--check", metavar="FILE", help="Check the signature of a head.json, and write nothing."
        ),
    ] = None,
    home: HomeOption = None,
    as_json: JsonOption = False,
) -> None:
    """Write the run's page as files that any web host can serve.

    The folder gets index.html, data.json, badge.svg, and head.json, which this node signs. The data
    come from the node in this home, whether it runs or not. With an invitation or an address, the
    command watches the run from outside instead, and needs no home. Names of peers are left out
    unless the run publishes them (public.names).
    """
    if check is not None:
        return _check(check, as_json=as_json)
    if out is None:
        raise ConfigError("you did not name the folder to write", do="p2ptrain report --out DIR")
    if invite or bootstrap:
        return _watched(config_of(invite, bootstrap, run, trust_checkpoint), out, every)
    return _own(open_home(home, to_write=False).root, out, every)


def _check(path: Path, *, as_json: bool) -> None:
    from dataclasses import asdict

    from p2ptrain.errors import RemoteProtocolError
    from p2ptrain.names import label
    from p2ptrain.web.report.signed_head import read_head

    try:
        peer, head = read_head(path.read_text(encoding="utf-8")[: 1 << 16])
    except (OSError, UnicodeDecodeError) as exc:
        raise ConfigError(f"{path} cannot be read", do="give the head.json of a report") from exc
    except RemoteProtocolError as exc:
        raise StoreError(
            f"{path} does not verify: {exc.what}",
            code="SIGNATURE",
            likely="the file was altered, or is not the head.json of a report",
            do="do not trust this site's numbers; ask its owner",
        ) from exc
    words = (
        f"{label(peer)} signed: run {head.run[:12]}…, entry {head.height} {head.head}, outer step "
        f"{head.step}, {head.tokens:,} tokens"
    )
    result_or_json(words, {**asdict(head), "peer": peer}, as_json=as_json)


def _own(root: Path, out: Path, every: float | None) -> None:
    """Write the report of the home at `root`, once or every `every` seconds."""
    from p2ptrain.archive.home import Home
    from p2ptrain.cli.commands.ledger import chain_of
    from p2ptrain.identity import load_or_create
    from p2ptrain.web.report.from_home import HomeReport

    home = Home(root, to_make=False)
    run, identity = run_of(home), load_or_create(home.identity)
    found = HomeReport(home, run)
    try:
        while True:
            chain = chain_of(run, home.ledger)
            state = chain.links[-1].after if chain.links else None
            known = state.tokens_by_peer if state else {}
            data = found.data_now(known.keys(), int(10 * time.time()))
            _write(out, run, data, state, identity)
            if every is None:
                return
            time.sleep(every)
    finally:
        found.close()


def _watched(config: object, out: Path, every: float | None) -> None:
    """Write the report of a watched run, once or every `every` seconds."""
    import os

    from p2ptrain.config.node import NodeConfig
    from p2ptrain.identity import SEED_BYTES, Identity
    from p2ptrain.node.watching.watch import watch as follow
    from p2ptrain.web.report.from_watch import WatchReport

    assert isinstance(config, NodeConfig)
    # Nobody knows this key: the signature only shows that the files were not mixed up.
    identity = Identity.from_seed(os.urandom(SEED_BYTES))
    kept = list[WatchReport]()
    written_s = [-1e9]

    def show(seen: Watched) -> bool:
        if not kept:
            kept.append(WatchReport(seen.run))
        kept[0].note(seen.steps)
        fresh = bool(seen.steps) or seen.ledger.state.step == 0
        if not fresh or (every is not None and time.monotonic() < written_s[0] + every):
            return True
        written_s[0] = time.monotonic()
        data = kept[0].data(seen.ledger, int(10 * time.time()))
        _write(out, seen.run, data, seen.ledger.state, identity)
        return every is not None

    follow(config, show, progress)


def _write(
    out: Path, run: Run, data: dict[str, object], state: LedgerState | None, identity: Identity
) -> None:
    from p2ptrain.web.page_file import load_page
    from p2ptrain.web.report.badge import badge
    from p2ptrain.web.report.signed_head import SiteHead
    from p2ptrain.web.report.site import static_page, to_json, write_site

    step = state.step if state else 0
    files = {
        "index.html": static_page(load_page().body),
        "data.json": to_json(data),
        "badge.svg": badge(
            run.manifest.name,
            step=step,
            steps=run.manifest.outer.steps,
            loss=_loss_in(data),
            known=state is not None,
        ).encode(),
    }
    if state is not None:
        head = SiteHead(
            run.id, state.height, state.head, state.step, state.tokens, int(time.time())
        )
        files["head.json"] = head.to_json(identity).encode()
    write_site(out, files)
    progress(f"wrote {out}/index.html: outer step {step} of {run.manifest.outer.steps}")


def _loss_in(data: dict[str, object]) -> float | None:
    """Return the newest held-out loss in the data of the page."""
    series = data.get("series")
    steps = series.get("steps") if isinstance(series, dict) else None
    losses = steps.get("held_out") if isinstance(steps, dict) else None
    known = [each for each in losses or () if isinstance(each, float)]
    return known[-1] if known else None

"""`p2ptrain me`: what this node has contributed, by the run's ledger, and a signed card of it."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from p2ptrain.cli.history import contributions_in, steps_if_any
from p2ptrain.cli.homes import HomeOption, home_path, open_home, run_of
from p2ptrain.cli.output import JsonOption, examples, progress, result, result_json, result_or_json
from p2ptrain.cli.rendering import printable
from p2ptrain.errors import ConfigError, P2PTrainError, RemoteProtocolError, counted
from p2ptrain.suggested_command import to_paste

if TYPE_CHECKING:
    from p2ptrain.archive.contributions import Contribution, Contributions
    from p2ptrain.archive.home import Home
    from p2ptrain.export.contribution_card import Card
    from p2ptrain.identity import Identity
    from p2ptrain.observe.series import StepRow
    from p2ptrain.run import Run

EXAMPLES = examples(
    "p2ptrain me",
    "p2ptrain me --card my-share.svg",
    "p2ptrain me --verify my-share.svg",
)
TOKENS_TOLD_MIN = 1000
"""Smallest number of tokens that is worth a line as a milestone."""


def me(
    home: HomeOption = None,
    card: Annotated[
        Path | None,
        typer.Option(
            "--card", metavar="FILE", help="Also write a signed picture (SVG) of your contribution."
        ),
    ] = None,
    verify: Annotated[
        Path | None,
        typer.Option("--verify", metavar="FILE", help="Check somebody's card, and exit."),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Show what this node has contributed to the run.

    The command counts certified tokens in this home's ledger, after checking every vote. It works
    whether or not a node runs in the home.
    """
    if verify is not None:
        _verify(verify, home, as_json=as_json)
        return
    where = open_home(home, to_write=False)
    share = share_in(where)
    if card is not None:
        _write_card(card, share)
    if as_json:
        result_json(_plain(share))
        return
    for line in _lines(share, where.root):
        result(printable(line))


@dataclass(frozen=True, slots=True)
class Share:
    """The contribution of this home's peer, with the held-out losses around it."""

    identity: Identity
    run: Run
    found: Contributions
    mine: Contribution
    before: StepRow | None
    """The newest outer step with a held-out loss before the peer's first one."""
    after: StepRow | None
    """The newest outer step with a held-out loss, if the peer took part before it."""
    times: dict[int, float]
    """When outer steps ended, in Unix seconds, as far as this node knows."""


def share_in(where: Home) -> Share:
    """Count the contribution of the peer whose key is in this home.

    Raises ConfigError: there is no key or no run. StoreError: the ledger is damaged.
    """
    from p2ptrain.archive.contributions import Contribution
    from p2ptrain.identity import load_or_create

    run = run_of(where)
    if not where.identity.exists():
        raise ConfigError(
            f"there is no key in {where.root}, so it has not contributed",
            code="RUN-NONE",
            do=f"name the home of your node, or start one: {to_paste(where.root, 'node')}",
        )
    identity = load_or_create(where.identity)
    found = contributions_in(where, run)
    mine = found.by_peer.get(identity.peer, Contribution())
    rows, _ = steps_if_any(where.root, run.id)
    before, after = around(rows, mine)
    times = {row.step: row.time for row in rows if row.time is not None}
    return Share(identity, run, found, mine, before, after, times)


def around(rows: Sequence[StepRow], mine: Contribution) -> tuple[StepRow | None, StepRow | None]:
    """Return the rows with the held-out losses before and after the contribution."""
    measured = [row for row in rows if row.held_out is not None]
    if not mine.first_step:
        return None, None
    before = [row for row in measured if row.step < mine.first_step]
    after = [row for row in measured if row.step >= mine.first_step]
    return (before[-1] if before else None), (after[-1] if after else None)


def _lines(share: Share, home: Path) -> Iterator[str]:
    from p2ptrain.names import label

    found, mine, name = share.found, share.mine, share.run.manifest.name
    yield f"{label(share.identity.peer)} in run {name!r}"
    if not mine.tokens:
        yield f"none of the run's {found.tokens:,} tokens are yours yet"
        yield f"your work counts from the first exchange on: {to_paste(home, 'status --why')}"
        return
    part = found.share(share.identity.peer)
    yield f"{_many(mine.tokens)} of {_many(found.tokens)} tokens are yours ({part:.1%})"
    if mine.steps:
        yield (
            f"{counted(mine.steps, 'outer step')} of {found.end}, from {mine.first_step} to "
            f"{mine.last_step}"
        )
    yield f"certified by the members' votes, and checkable from {_origin(share)}"
    if share.before and share.after:
        yield (
            f"held-out loss {share.before.held_out:.3f} before you joined (step "
            f"{share.before.step}), {share.after.held_out:.3f} now (step {share.after.step})"
        )
    elif share.after:
        yield f"held-out loss {share.after.held_out:.3f} now (step {share.after.step})"
    yield from (f"milestone: {words}" for words in _milestones(share))


def _origin(share: Share) -> str:
    pruned = share.found.pruned
    return f"step {pruned}, at which the ledger here begins" if pruned else "step 0"


def _milestones(share: Share) -> Iterator[str]:
    mine = share.mine
    if mine.first_step:
        yield f"your first outer step was {_dated(share, mine.first_step)}"
    for count, step in sorted(mine.reached_steps.items()):
        yield f"your {count:,}th outer step was {_dated(share, step)}"
    # A first step with 20,000 tokens reaches several powers of ten: tell the largest only.
    highest = {step: count for count, step in sorted(mine.reached_tokens.items())}
    for step, count in highest.items():
        if count >= TOKENS_TOLD_MIN:
            yield f"you reached {count:,} tokens in outer step {_dated(share, step)}"


def _dated(share: Share, step: int) -> str:
    at = share.times.get(step)
    return f"{step}" if at is None else f"{step} ({time.strftime('%Y-%m-%d', time.localtime(at))})"


def _many(count: int) -> str:
    from p2ptrain.export.contribution_card import millions

    return millions(count)


def _plain(share: Share) -> dict[str, object]:
    from p2ptrain.names import peer_name

    found, mine = share.found, share.mine
    held_out = {
        name: None if row is None else {"step": row.step, "loss": row.held_out}
        for name, row in (("before", share.before), ("after", share.after))
    }
    return {
        "peer": share.identity.peer,
        "peer_name": peer_name(share.identity.peer),
        "run": share.run.id,
        "run_name": share.run.manifest.name,
        "tokens": mine.tokens,
        "tokens_total": found.tokens,
        "share": round(found.share(share.identity.peer), 6),
        "steps": mine.steps,
        "first_step": mine.first_step or None,
        "last_step": mine.last_step or None,
        "height": found.height,
        "head": found.head,
        "held_out": held_out,
        "milestones": list(_milestones(share)),
    }


# ── cards ────────────────────────────────────────────────────────────────────────────────────────


def _write_card(file: Path, share: Share) -> None:
    from p2ptrain.export.contribution_card import Card, signed_card

    found, mine = share.found, share.mine
    card = Card(
        peer=share.identity.peer,
        run=share.run.id,
        run_name=share.run.manifest.name[:100],
        tokens=mine.tokens,
        tokens_total=found.tokens,
        steps=mine.steps,
        first_step=mine.first_step,
        last_step=mine.last_step,
        height=found.height,
        head=found.head,
        issued=int(time.time()),
        loss_before=share.before.held_out if share.before else None,
        loss_after=share.after.held_out if share.after else None,
    )
    try:
        file.write_text(signed_card(card, share.identity), encoding="utf-8")
    except OSError as exc:
        raise ConfigError(
            f"the card cannot be written to {file}: {exc.strerror}", do="name another FILE"
        ) from exc
    progress(f"wrote {file}, signed with your node's key; anybody can check it with --verify")


def _verify(file: Path, home: Path | None, *, as_json: bool) -> None:
    from p2ptrain.export.contribution_card import CARD_BYTES_MAX, read_card
    from p2ptrain.ids import PeerId
    from p2ptrain.names import label

    try:
        with file.open("rb") as opened:
            text = opened.read(CARD_BYTES_MAX + 1).decode("utf-8", errors="replace")
    except OSError as exc:
        raise ConfigError(f"{file} cannot be read: {exc.strerror}", do="name a card") from exc
    card = read_card(text)
    agrees, why = _compared(card, home)
    words = [
        f"signed by {label(PeerId(card.peer))}, for the run {card.run_name!r} ({card.run[:12]}…)",
        *card.words,
        why,
    ]
    facts = {
        **{name: getattr(card, name) for name in card.__dataclass_fields__},
        "agrees_with_ledger": agrees,
    }
    result_or_json("\n".join(map(printable, words)), facts, as_json=as_json)


def _compared(card: Card, home: Path | None) -> tuple[bool | None, str]:
    """Count the card's tokens in the ledger of this home. Return whether they agree (None if
    that cannot be found out), and a sentence about it.

    Raises RemoteProtocolError (CARD): the card and the ledger disagree.
    """
    from p2ptrain.ids import PeerId

    if not home_path(home).exists():
        return None, "not compared with a ledger: there is no home here"
    try:
        where = open_home(home, to_write=False)
        run = run_of(where)
        if run.id != card.run:
            return None, "not compared with a ledger: this home has a different run"
        found = contributions_in(where, run, until=card.height)
    except P2PTrainError as error:
        return None, f"not compared with a ledger: {error.what}"
    if found.height != card.height:
        return None, f"not compared: this home's ledger does not contain entry {card.height}"
    theirs = found.by_peer.get(PeerId(card.peer))
    counts = (theirs.tokens, theirs.first_step) if theirs else (0, 0)
    if found.head != card.head or (*counts, found.tokens) != (
        card.tokens,
        card.first_step,
        card.tokens_total,
    ):
        raise RemoteProtocolError(
            "the card disagrees with the ledger in this home",
            code="CARD",
            evidence=[
                f"the card says {card.tokens:,} of {card.tokens_total:,} tokens",
                f"the ledger says {counts[0]:,} of {found.tokens:,} at entry {card.height}",
            ],
            likely="the peer exaggerates, or it was on a different branch of the run",
            do="do not rely on this card; ask the peer for a new one",
        )
    return True, f"the ledger in this home says the same, up to entry {card.height}"

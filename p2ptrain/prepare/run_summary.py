"""Describe a run: as lines for people, and as a map for programs."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import asdict
from typing import TYPE_CHECKING

from p2ptrain.errors import counted

if TYPE_CHECKING:
    from p2ptrain.run import Run, RunManifest
    from p2ptrain.run.outside_facts import About
    from p2ptrain.sync import SyncSpec


def run_facts(run: Run) -> dict[str, object]:
    """Return the description of a run for `--json`."""
    manifest = run.manifest
    return {
        "run": run.id,
        "name": manifest.name,
        "organiser": manifest.organiser,
        "co_organisers": list(manifest.organisers.peers),
        "organisers_now": list(run.organisers),
        "signatures_min": manifest.organisers.signatures_min,
        "created_unix": manifest.created_unix,
        "about": asdict(manifest.about),
        "public": asdict(manifest.public),
        "samples": {"prompts": list(manifest.samples.prompts), "every": manifest.samples.every},
        "admission": manifest.admission,
        "quorum": manifest.policy.quorum,
        "quorum_loss": manifest.policy.quorum_loss,
        "branch_after_s": manifest.policy.branch_after_s,
        "influence_max": manifest.influence_max,
        "claims": manifest.trust.claims,
        "founders": list(manifest.founders),
        "outer_steps": manifest.outer.steps,
        "inner_steps": manifest.inner.steps,
        "join_optimizer": manifest.inner.join_optimizer,
        "train_blocks": manifest.data.train_blocks,
        "validation_blocks": manifest.data.validation_blocks,
        "block_tokens": manifest.data.block_tokens,
        "genesis": manifest.genesis,
        "layout": manifest.layout,
    }


def _without_quorum(run: Run) -> str:
    """Return what happens while too few voters are up to decide anything."""
    policy = run.manifest.policy
    if policy.quorum_loss == "wait":
        return "all members wait until enough voters are back"
    return f"the remaining voters continue in a branch after {policy.branch_after_s:g} s"


def run_lines(run: Run) -> list[str]:
    """Return lines for one screen: the organiser, the model, the settings, and the traffic of an
    exchange."""
    from p2ptrain.archive.update_format import payload_bytes_mean, published_formats
    from p2ptrain.names import label
    from p2ptrain.observe.states import size
    from p2ptrain.trainer.formats.shapes import layout_of, parameter_count

    manifest = run.manifest
    model, inner, outer, data = manifest.model, manifest.inner, manifest.outer, manifest.data
    parameters = parameter_count(model)
    created = time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime(manifest.created_unix))
    secrecy = "over TLS" if manifest.encrypted else "NOT ENCRYPTED: for a private network only"
    update_bytes = payload_bytes_mean(published_formats(run.id, manifest))
    lease_tokens = manifest.blocks_per_step * data.block_tokens
    return [
        f"run       {manifest.name} ({run.id})",
        f"signed by {label(manifest.organiser)}, {created}",
        *_organiser_lines(run),
        *_about_lines(manifest.about),
        f"admission {manifest.admission}; founders: {len(manifest.founders)}",
        f"model     {parameters / 1e6:.2f} M parameters: {counted(model.layers, 'layer')} of width "
        f"{model.width}, {counted(model.heads, 'head')}, vocabulary {model.vocab}, "
        f"context {model.sequence}",
        f"data      {counted(data.train_blocks, 'block')} of {data.block_tokens} tokens, "
        f"{data.validation_blocks} more for validation",
        f"inner     {counted(inner.steps, 'step')} of "
        f"{counted(inner.batch_sequences, 'sequence')}, learning rate {inner.lr:g}, "
        f"{inner.schedule}",
        f"outer     {counted(outer.steps, 'step')} of {lease_tokens} tokens per peer, "
        f"learning rate {outer.lr:g}, momentum {outer.momentum:g}",
        *_sync_lines(manifest.sync),
        *_joining_lines(inner.donors_max, size(8 * layout_of(model).numel)),
        f"exchange  about {size(2 * update_bytes)} up and down for each peer and outer step "
        f"({manifest.codec.name}, blocks of {manifest.codec.block}), {secrecy}",
        f"quorum    {manifest.policy.quorum}; at least "
        f"{counted(manifest.policy.participants_min, 'trainer')}",
        f"          if the quorum is lost, {_without_quorum(run)}",
        f"bound     a participant may change each weight by at most {manifest.influence_max:.3g} "
        "before the average of an outer step",
        f"trust     {claims_in_words(manifest.trust.claims)}",
        *_outside_lines(manifest),
    ]


def claims_in_words(claims: bool) -> str:
    """Say what it means for the members that contributions are claims, or that they are not."""
    if claims:
        return "contributions are signed claims: anybody can recompute the updates from them"
    return "contributions are not claimed: nobody can check which of them an update contains"


def _organiser_lines(run: Run) -> Iterator[str]:
    """Yield the lines about the co-organisers and about keys that were replaced, if any."""
    from p2ptrain.names import label

    manifest = run.manifest
    for each in run.hand_overs:
        yield f"          {label(each.hand_over.old)} is replaced by {label(each.hand_over.new)}"
    if others := manifest.organisers.peers:
        names = ", ".join(map(label, others))
        least = counted(manifest.organisers.signatures_min, "organiser signs", "organisers sign")
        yield f"with      {names} as co-organisers; {least} each allowlist and amendment"


def _about_lines(about: About) -> Iterator[str]:
    """Yield what the organiser says about the run. The texts have only printable characters."""
    for title, text in (
        ("about", about.description),
        ("licence", about.licence),
        ("contact", about.contact),
    ):
        if text:
            yield f"{title:<9} {text}"


def _outside_lines(manifest: RunManifest) -> Iterator[str]:
    """Yield what strangers get, and the prompts of the samples."""
    public, samples = manifest.public, manifest.samples
    parts = {
        "the ledger and the loss": public.telemetry,
        "the weights": public.weights,
        "the names of the peers in reports": public.names,
    }
    if manifest.admission == "open":
        yield "public    everything: in an open run, every peer is admitted"
    elif given := [what for what, is_given in parts.items() if is_given]:
        yield f"public    people who are not admitted may see {', '.join(given)}"
    if samples.prompts:
        yield (
            f"samples   every {counted(samples.every, 'outer step')}, a member lets the model "
            f"continue {counted(len(samples.prompts), 'text')} and publishes the result:"
        )
        yield from (f"          {prompt}" for prompt in samples.prompts)


def _joining_lines(asked: int, state: str) -> Iterator[str]:
    """Yield the line about the `asked` optimizer states that joining peers fetch. `state` is the
    size of one."""
    if asked:
        one = "the inner optimizer of a member"
        told = one if asked == 1 else f"the inner optimizers of {asked} members"
        yield f"joiners   fetch {told}; each such member uploads and stores {state}"


def _sync_lines(sync: SyncSpec) -> Iterator[str]:
    """Yield the lines about synchronisation; none for a run that averages the whole model while
    training waits (plain DiLoCo)."""
    if sync.fragments > 1:
        yield f"sync      {sync.fragments} fragments take turns, one in each outer step"
    if sync.overlap_steps:
        yield (
            f"overlap   each peer trains for {counted(sync.overlap_steps, 'inner step')} during an "
            f"exchange; afterwards its weights are {sync.mixing:.0%} its own and "
            f"{1 - sync.mixing:.0%} the average"
        )
    if sync.eager:
        yield "eager     each peer continues from its own newest work until the average arrives"

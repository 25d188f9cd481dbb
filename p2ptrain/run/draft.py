"""Build a run's manifest from its run file and from the digests of the data and first weights."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from p2ptrain.config.run_file import RunFile
from p2ptrain.errors import ConfigError, counted
from p2ptrain.ids import Digest, PeerId
from p2ptrain.ipc.trainer_config import InnerSpec, ModelSpec
from p2ptrain.run.co_organisers import CoOrganisers
from p2ptrain.run.manifest import CodecSpec, DataSpec, OuterSpec, Policy, RunManifest
from p2ptrain.run.outside_facts import About, Public, SamplePrompts
from p2ptrain.run.trust_rules import TrustRules
from p2ptrain.sync import SyncSpec


@dataclass(frozen=True, slots=True)
class DraftedRun:
    """Digests and counts of what `run publish` has stored: tokenizer, data, first weights."""

    tokenizer: Digest
    index: Digest
    train_blocks: int
    validation_blocks: int
    genesis: Digest
    layout: Digest
    document_token: int | None = None


def model_spec(run_file: RunFile) -> ModelSpec:
    model = run_file.model.model_dump()
    del model["seed"]
    return ModelSpec(**model)


def inner_spec(run_file: RunFile) -> InnerSpec:
    return InnerSpec(**run_file.inner.model_dump(), total_steps=run_file.inner_steps_total)


def draft_manifest(
    run_file: RunFile,
    made: DraftedRun,
    *,
    organiser: PeerId,
    founders: Sequence[PeerId],
    created_unix: int,
) -> RunManifest:
    """Return the manifest of this run.

    Raises:
        ConfigError: there are not enough data for one outer step, or the settings contradict each
            other.
    """
    if made.train_blocks < run_file.inner.steps:
        raise ConfigError(
            f"the data fill {counted(made.train_blocks, 'training block')}, but one outer step "
            f"of one peer needs {run_file.inner.steps} (inner.steps)",
            do="use more text (data.limit_mb, data.source), or make inner.steps, "
            "inner.batch_sequences or model.sequence smaller",
        )
    model = model_spec(run_file)
    try:
        return RunManifest(
            name=run_file.run.name,
            organiser=organiser,
            created_unix=created_unix,
            model=model,
            tokenizer=made.tokenizer,
            data=DataSpec(
                made.index,
                made.train_blocks,
                made.validation_blocks,
                run_file.inner.batch_sequences * model.sequence,
                made.document_token,
            ),
            inner=inner_spec(run_file),
            outer=OuterSpec(**run_file.outer.model_dump()),
            sync=SyncSpec(**run_file.sync.model_dump()),
            codec=CodecSpec(**run_file.codec.model_dump()),
            policy=Policy(**run_file.policy.model_dump()),
            genesis=made.genesis,
            layout=made.layout,
            founders=tuple(founders),
            admission=run_file.run.admission,
            organisers=CoOrganisers(
                tuple(map(PeerId, run_file.organisers.peers)),
                run_file.organisers.signatures_min,
            ),
            about=About(**run_file.about.model_dump()),
            public=Public(**run_file.public.model_dump()),
            samples=SamplePrompts(**run_file.samples.model_dump()),
            trust=TrustRules(claims=run_file.has_claims),
        )
    except ValueError as exc:
        raise ConfigError(f"this run cannot be published: {exc}") from exc

"""Read and check the TOML file in which an organiser describes a run, and explain its errors.

The file contains only what a person has to decide. Digests, counts and keys are computed when the
run is published. All settings go into the signed manifest; peers never see the file itself. An
unknown name is an error: if it were ignored, a mistyped setting would keep its default, and nobody
would notice.
"""

from __future__ import annotations

import difflib
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, Field, ValidationError, model_validator

from p2ptrain.config.public_sections import AboutSection, PublicSection, SamplesSection
from p2ptrain.config.section import Section
from p2ptrain.config.trust_section import TrustSection
from p2ptrain.errors import ConfigError, counted
from p2ptrain.identity import is_peer_id

Count = Annotated[int, Field(ge=1, le=2**40)]
Size = Annotated[int, Field(ge=1, le=2**24)]
Positive = Annotated[float, Field(gt=0, lt=1e9, allow_inf_nan=False)]
NotNegative = Annotated[float, Field(ge=0, lt=1e9, allow_inf_nan=False)]
Seconds = Annotated[float, Field(ge=0, le=86_400, allow_inf_nan=False)]
Name = Annotated[str, Field(min_length=1, max_length=4096)]
Share = Annotated[float, Field(ge=0, lt=1, allow_inf_nan=False)]

PARAMETERS_MAX = 2**40
"""Maximum number of parameters, as in manifests and layouts."""

LEASE_BLOCKS_MAX = 4096
"""Maximum number of blocks in a lease, as in manifests."""

INT4_BLOCK = 64
"""Default block of int4: the number of elements that share a scale. int4 has a coarse resolution,
so short blocks are worth their extra bytes; see docs/results/kernels.md."""

ERRORS_SHOWN_MAX = 6


class RunSection(Section):
    name: Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9-]{0,39}$")]
    admission: Literal["allowlist", "open"] = "allowlist"


class OrganisersSection(Section):
    """The [organisers] table: the peer ids of further organisers, and how many organisers, the
    publisher included, must sign an allowlist or an amendment.
    """

    peers: Annotated[tuple[str, ...], Field(max_length=7)] = ()
    signatures_min: Annotated[int, Field(ge=1, le=8)] = 1

    @model_validator(mode="after")
    def _can_sign(self) -> OrganisersSection:
        for peer in self.peers:
            if not is_peer_id(peer):
                raise ValueError(f"{peer[:80]!r} is not a peer id")
        if len(set(self.peers)) < len(self.peers):
            raise ValueError("a peer is listed twice")
        number = len(self.peers) + 1
        if self.signatures_min > number:
            raise ValueError(
                f"signatures_min is {self.signatures_min}, but the run has only "
                f"{counted(number, 'organiser')}, with the publisher"
            )
        return self


class ModelSection(Section):
    vocab: Annotated[int, Field(ge=257, le=2**20)]
    layers: Annotated[int, Field(ge=1, le=1024)]
    width: Size
    heads: Size
    kv_heads: Size
    ffn: Size
    sequence: Size
    rope_base: Annotated[float, Field(gt=1, lt=1e12)] = 10_000.0
    tied: bool = True
    qk_norm: bool = False
    seed: Annotated[int, Field(ge=0, lt=2**32)] = 0

    @model_validator(mode="after")
    def _fits(self) -> ModelSection:
        if self.width % self.heads or self.width // self.heads % 2:
            raise ValueError(f"width {self.width} must be an even multiple of heads {self.heads}")
        if self.heads % self.kv_heads:
            raise ValueError(f"kv_heads {self.kv_heads} must divide heads {self.heads}")
        keys = self.width // self.heads * self.kv_heads
        block = self.width * (2 * self.width + 2 * keys + 3 * self.ffn)
        matrices = self.layers * block + (1 if self.tied else 2) * self.vocab * self.width
        if matrices > PARAMETERS_MAX:
            most = f"{PARAMETERS_MAX:.1e}"
            raise ValueError(
                f"the model has {matrices:.1e} parameters; a run may have at most {most}"
            )
        return self


class DataSection(Section):
    """The [data] table. If `mask_documents` is None, documents in one sequence do not attend to
    each other if they are records (JSON lines, rows or reads).
    """

    source: Name = "stdlib"
    field: Name = "text"
    tokenizer: Name | None = None
    begin: Name | None = None
    end: Name | None = None
    mask_documents: bool | None = None
    limit_mb: Annotated[float, Field(gt=0, le=100_000_000)] = 12.0
    validation_blocks: Annotated[int, Field(ge=1, le=10_000)] = 8
    seed: Annotated[int, Field(ge=0, lt=2**32)] = 0

    @model_validator(mode="after")
    def _marks_need_a_tokenizer(self) -> DataSection:
        if self.begin is None and self.end is not None:
            raise ValueError("data.end has no effect without data.begin")
        if self.begin is not None and self.tokenizer is None:
            raise ValueError("data.begin has no effect without data.tokenizer")
        return self


class InnerSection(Section):
    steps: Annotated[int, Field(ge=1, le=100_000)]
    batch_sequences: Annotated[int, Field(ge=1, le=65_536)]
    lr: Positive
    warmup_steps: Annotated[int, Field(ge=0, le=2**40)] = 0
    schedule: Literal["wsd", "cosine", "constant"] = "wsd"
    weight_decay: NotNegative = 0.1
    clip: NotNegative = 1.0
    betas: tuple[Share, Share] = (0.9, 0.95)
    z_loss: NotNegative = 0.0
    optimizer: Literal["adamw", "muon"] = "adamw"
    join_warmup_steps: Annotated[int, Field(ge=0, le=100_000)] = 0
    join_optimizer: Literal["fresh", "donor", "donors"] = "donors"

    @model_validator(mode="after")
    def _betas_let_joiners_check_states(self) -> InnerSection:
        if self.join_optimizer != "fresh" and self.betas[0] ** 2 >= self.betas[1]:
            raise ValueError(
                f'with join_optimizer = "{self.join_optimizer}", the square of the first of '
                f"betas must be below the second; they are {self.betas[0]:g} and "
                f'{self.betas[1]:g}: change them, or set join_optimizer = "fresh"'
            )
        return self


class OuterSection(Section):
    steps: Annotated[int, Field(ge=1, le=10_000_000)]
    lr: Annotated[float, Field(gt=0, le=100, allow_inf_nan=False)] = 0.7
    momentum: Share = 0.9


class SyncSection(Section):
    fragments: Annotated[int, Field(ge=1, le=1024)] = 1
    overlap_steps: Annotated[int, Field(ge=0, le=100_000)] = 0
    mixing: Share = 0.0
    eager: bool = False

    @model_validator(mode="before")
    @classmethod
    def _merge_is_the_mean(cls, given: object) -> object:
        """Accept `merge = "mean"`, which run files of earlier versions contain. Refuse other
        values, such as "rda", which this version no longer supports.
        """
        if not isinstance(given, dict) or "merge" not in given:
            return given
        if given["merge"] != "mean":
            raise ValueError(
                f"merge = {given['merge']!r} is no longer supported: peers take the plain mean; "
                "delete the line"
            )
        return {name: value for name, value in given.items() if name != "merge"}

    @model_validator(mode="after")
    def _mixing_needs_overlap(self) -> SyncSection:
        if self.mixing and not self.overlap_steps:
            raise ValueError(
                "mixing needs overlap_steps: without overlap, peers do not train during an exchange"
            )
        return self


class CodecSection(Section):
    name: Literal["fp32", "fp16", "int8", "int4"] = "int8"
    block: Annotated[int, Field(ge=32, le=4096)] = 256
    feedback: bool = False

    @model_validator(mode="before")
    @classmethod
    def _int4_has_its_own_block(cls, given: object) -> object:
        """Set int4's own default block if the file does not set one."""
        if isinstance(given, dict) and given.get("name") == "int4":
            return {"block": INT4_BLOCK, **given}
        return given


def usual_block(codec: str) -> int:
    """Return the codec's default block length."""
    return CodecSection.model_validate({"name": codec}).block


class PolicySection(Section):
    quorum: Literal["majority", "two-thirds"] = "majority"
    quorum_loss: Literal["wait", "branch"] = "wait"
    branch_after_s: Annotated[float, Field(ge=1, le=86_400, allow_inf_nan=False)] = 600.0
    grace_s: Seconds = 10.0
    round_timeout_s: Annotated[float, Field(ge=0.01, le=86_400, allow_inf_nan=False)] = 2.0
    patience_s: Seconds = 1.0
    attempts_max: Annotated[int, Field(ge=1, le=100)] = 4
    participants_min: Annotated[int, Field(ge=1, le=10_000)] = 2
    snapshot_every: Annotated[int, Field(ge=1, le=1_000_000)] = 10
    evaluate_every: Annotated[int, Field(ge=1, le=1_000_000)] = 10
    chunk_bytes: Annotated[int, Field(ge=4096, le=4_194_304)] = 4_194_304
    encryption: Literal["tls", "none"] = "tls"
    influence_max: Positive = 10.0

    @model_validator(mode="after")
    def _branch_after_needs_branch(self) -> PolicySection:
        if "branch_after_s" in self.model_fields_set and self.quorum_loss == "wait":
            raise ValueError('branch_after_s has no effect without quorum_loss = "branch"')
        return self


class RunFile(Section):
    """The whole file. Each section is a TOML table of the same name."""

    run: RunSection
    organisers: OrganisersSection = OrganisersSection()
    about: AboutSection = AboutSection()
    public: PublicSection = PublicSection()
    samples: SamplesSection = SamplesSection()
    model: ModelSection
    data: DataSection = DataSection()
    inner: InnerSection
    outer: OuterSection
    sync: SyncSection = SyncSection()
    codec: CodecSection = CodecSection()
    policy: PolicySection = PolicySection()
    trust: TrustSection = TrustSection()

    @property
    def has_claims(self) -> bool:
        """Whether contributions are claims, so that anybody can recompute an update from them."""
        return self.trust.claims and not self.codec.feedback

    @property
    def inner_steps_total(self) -> int:
        """Inner steps of each peer over the whole run."""
        return self.inner.steps // self.sync.fragments * self.outer.steps

    @model_validator(mode="after")
    def _fragments_fit(self) -> RunFile:
        inner, sync = self.inner.steps, self.sync
        if inner % sync.fragments:
            raise ValueError(f"sync.fragments {sync.fragments} must divide inner.steps {inner}")
        if sync.overlap_steps > inner // sync.fragments:
            raise ValueError(
                f"sync.overlap_steps {sync.overlap_steps} is longer than an outer step, which is "
                f"inner.steps ÷ sync.fragments = {inner // sync.fragments}"
            )
        lease = inner // sync.fragments + sync.overlap_steps
        if lease > LEASE_BLOCKS_MAX:
            raise ValueError(
                f"inner.steps {inner} is too large: inner.steps ÷ sync.fragments + "
                f"sync.overlap_steps is {lease}, but the maximum is {LEASE_BLOCKS_MAX}; "
                "choose fewer steps and a larger inner.batch_sequences"
            )
        if sync.mixing and sync.overlap_steps == inner:
            raise ValueError("sync.mixing must be 0 if sync.overlap_steps is a whole outer step")
        if sync.eager and sync.overlap_steps != inner:
            raise ValueError(
                f"sync.eager needs sync.overlap_steps = inner.steps = {inner}: with a shorter "
                "overlap there is no newer work to keep"
            )
        own = 1 if self.model.tied else 2
        if sync.fragments > 1 and not 1 <= sync.fragments - own <= self.model.layers:
            layers = counted(self.model.layers, "layer")
            matrices = counted(own, "embedding matrix", "embedding matrices")
            raise ValueError(
                f"sync.fragments {sync.fragments} does not fit {layers} and {matrices}: "
                f"choose {own + 1} to {own + self.model.layers}, or 1"
            )
        return self

    @model_validator(mode="after")
    def _claims_fit(self) -> RunFile:
        asked = self.trust.claims and "claims" in self.trust.model_fields_set
        if asked and self.codec.feedback:
            raise ValueError(
                "trust.claims does not work with codec.feedback: a peer adds its rounding errors "
                "during the exchange, so others could not recompute the update; set one of them "
                "to false"
            )
        return self

    @model_validator(mode="after")
    def _warmup_fits(self) -> RunFile:
        """Check the warm-up. Pydantic runs this check after `_fragments_fit`, which it relies
        on."""
        total = self.inner_steps_total
        if self.inner.warmup_steps > total:
            raise ValueError(
                f"inner.warmup_steps {self.inner.warmup_steps} is longer than the whole run: "
                f"inner.steps ÷ sync.fragments × outer.steps = {total}"
            )
        return self


def load_run_file(path: Path) -> RunFile:
    """Return the run that the file describes.

    Raises ConfigError: the file is missing or not TOML, or a field is missing, unknown or wrong.
    The error's evidence has a line for each wrong field, up to ERRORS_SHOWN_MAX.
    """
    try:
        tree = tomllib.loads(path.read_text(encoding="utf-8-sig"))  # Some editors write a BOM.
    except OSError as exc:
        raise ConfigError(
            f"{path} cannot be read: {exc.strerror}",
            do="create a run file with: p2ptrain run new --out run.toml",
        ) from exc
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, RecursionError) as exc:
        raise ConfigError(f"{path} is not TOML: {exc}", do=f"correct {path}") from exc
    return parse_run_file(tree, name=str(path))


def parse_run_file(tree: dict[str, Any], *, name: str = "the run file") -> RunFile:
    """Return the run that the TOML tables in `tree` describe. `name` stands for the file in error
    messages. Raises ConfigError.
    """
    try:
        return RunFile.model_validate(_as_python(tree))
    except ValidationError as exc:
        faults = exc.errors(include_url=False)
        lines = [_explain(dict(fault)) for fault in faults[:ERRORS_SHOWN_MAX]]
        if len(faults) > ERRORS_SHOWN_MAX:
            lines.append(f"and {len(faults) - ERRORS_SHOWN_MAX} more")
        one = lines[0] if len(lines) == 1 else f"{len(faults)} settings are wrong"
        evidence = lines if len(lines) > 1 else ()
        raise ConfigError(f"{name}: {one}", evidence=evidence, do=f"correct {name}") from exc


def with_data(run_file: RunFile, given: Mapping[str, object]) -> RunFile:
    """Return the run with its data settings replaced by those in `given` that are not None. Raises
    ConfigError.
    """
    data = run_file.data.model_dump(exclude_unset=True)
    changed = {name: value for name, value in given.items() if value is not None}
    tree = run_file.model_dump(exclude_unset=True)
    return parse_run_file({**tree, "data": {**data, **changed}}, name="the options")


def _as_python(value: object) -> object:
    """Convert TOML arrays to tuples, because in strict mode pydantic accepts no list for a
    tuple."""
    if isinstance(value, dict):
        return {key: _as_python(item) for key, item in value.items()}
    return tuple(_as_python(item) for item in value) if isinstance(value, list) else value


def _explain(fault: dict[str, Any]) -> str:
    """Return a line that names the field, its value, and what it should be."""
    where = ".".join(str(part) for part in fault["loc"])
    match fault["type"]:
        case "missing":
            return f"{where} is missing"
        case "extra_forbidden":
            return f"{where} is not a setting{_suggestion(fault['loc'])}"
        case "string_pattern_mismatch":
            return (
                f"{where} is {fault['input']!r}; it should have only a-z, 0-9 and dashes, and at "
                "most 40 characters"
            )
        case "value_error":
            text = str(fault["msg"]).removeprefix("Value error, ")
            return f"{where}: {text}" if where else text
        case "model_type":
            return f"{where} should be a table, which begins with a line [{where}]"
        case _:  # For example "Input should be …" or "Tuple should have … after validation, not 3".
            text = str(fault["msg"]).partition(" after validation")[0]
            return f"{where} is {fault['input']!r}; it should {text.partition('should ')[2]}"


def _suggestion(location: tuple[object, ...]) -> str:
    """Suggest the known setting whose name is most similar to the unknown one at `location`."""
    section: type[BaseModel] = RunFile
    for part in location[:-1]:
        annotation = section.model_fields[str(part)].annotation
        assert isinstance(annotation, type)
        assert issubclass(annotation, BaseModel)
        section = annotation
    near = difflib.get_close_matches(str(location[-1]), section.model_fields, n=1)
    return f"; did you mean {near[0]}?" if near else ""

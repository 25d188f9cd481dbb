"""`p2ptrain proof check`: check which weights generated a text."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from p2ptrain.cli.chat_model import ChatModel, load_chat_model
from p2ptrain.cli.commands.proving.certificate_file import certificate_in
from p2ptrain.cli.homes import check_asked_for, open_home, run_of
from p2ptrain.cli.output import JsonOption, examples, progress, result, result_json
from p2ptrain.errors import ConfigError, P2PTrainError, RemoteProtocolError, TryLater, counted

if TYPE_CHECKING:
    from p2ptrain.export.certificate import CertifiedWeights
    from p2ptrain.proofs.text_proof import TextProof
    from p2ptrain.trainer.tools.proving import TextCheck

EXAMPLES = examples(
    "p2ptrain proof check story.proof --model ./weights",
    "p2ptrain proof check story.proof --model ./weights --home ~/.local/share/p2ptrain --json",
)
LIMITS = (
    "a proof shows that the weights fit the text, not how its tokens were chosen: anybody who has "
    "the weights can prove any text. Weights that were rounded to int8 also fit"
)

app = typer.Typer(
    help="Check which weights generated a text.",
    epilog=EXAMPLES,
    no_args_is_help=True,
    rich_markup_mode=None,
)


@app.callback()
def _group() -> None:
    """Check which weights generated a text."""


@app.command(epilog=EXAMPLES)
def check(
    file: Annotated[
        Path,
        typer.Argument(
            metavar="FILE", help="Proof that p2ptrain chat --prove wrote.", show_default=False
        ),
    ],
    model: Annotated[
        Path,
        typer.Option(
            "--model",
            metavar="DIR",
            help="Certified weights, exported as fp32 by p2ptrain export.",
            show_default=False,
        ),
    ],
    home: Annotated[
        Path | None,
        typer.Option(
            "--home",
            metavar="HOME",
            help="Home whose ledger must contain the entry that certifies the weights.",
            show_default=False,
        ),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Check that certified weights generated a text.

    Checks that the weights in DIR are those that the certificate in FILE names. Then computes the
    text's hidden states with one forward pass, and compares them with the proof. Prints the text,
    because only the printed text is proved. Without --home, nothing shows that the signers of the
    certificate were voters of the run.
    """
    folder = model.expanduser().absolute()
    proof = _read(file.expanduser())
    weights = _certified(proof)
    in_ledger = None if home is None else _check_ledger(home, weights)
    speaker = load_chat_model(folder, in_fp32=True)
    _check_weights(speaker, weights)
    found = _compared(speaker, proof)
    _check_agreement(proof, found)
    verdict = Verdict(proof, weights, found, in_ledger, *_texts(speaker, proof))
    if as_json:
        result_json(verdict.plain())
    else:
        for line in verdict.lines():
            result(line)


@dataclass(frozen=True, slots=True)
class Verdict:
    """A text that fits its proof. `in_ledger` says whether a home's ledger has the certificate's
    entry; None if no home was given."""

    proof: TextProof
    weights: CertifiedWeights
    found: TextCheck
    in_ledger: bool | None
    prompt: str
    text: str

    def plain(self) -> dict[str, object]:
        weights, worst = self.weights, self.found.agreement.worst
        return {
            "good": True,
            "run": weights.run.id,
            "run_name": weights.run.manifest.name,
            "step": weights.step,
            "snapshot": weights.snapshot,
            "entry_height": weights.height,
            "entry": weights.entry,
            "signed_by": list(weights.signed_by),
            "in_ledger": self.in_ledger,
            "prompt": self.prompt,
            "text": self.text,
            "prompt_tokens": self.proof.prompt,
            "tokens": len(self.proof.tokens),
            "chunks": len(self.proof.proofs),
            "mismatches": worst.mismatches,
            "mantissa_error": round(worst.mantissa_error, 3),
            "loss_nats": round(self.found.loss_nats, 4),
        }

    def lines(self) -> Iterator[str]:
        from p2ptrain.proofs.hidden_states import MANTISSA_ERROR_MAX, MISMATCHES_MAX

        worst, proof = self.found.agreement.worst, self.proof
        yield self._headline()
        yield f"prompt: {self.prompt}"
        yield f"text: {self.text}"
        yield (
            f"{counted(len(proof.tokens), 'token')}, {proof.prompt} of them the prompt, in "
            f"{counted(len(proof.proofs), 'chunk')}; in the worst chunk {worst.mismatches} of 128 "
            f"values differ (limit {MISMATCHES_MAX}), and mantissas by {worst.mantissa_error:.2f} "
            f"(limit {MANTISSA_ERROR_MAX:g})"
        )
        yield (
            f"with these weights, the text after the prompt has a loss of "
            f"{self.found.loss_nats:.2f} nats per token"
        )
        yield LIMITS

    def _headline(self) -> str:
        weights = self.weights
        run = f"{weights.run.manifest.name} (run {weights.run.id[:12]}…)"
        what = f"{run} before outer step {weights.step}, snapshot {weights.snapshot[:12]}…"
        if weights.height == 0:
            return (
                "this text was generated by these certified weights: the first weights of "
                f"{run}, which its signed manifest names"
            )
        votes = counted(len(weights.signed_by), "vote")
        if self.in_ledger:
            return (
                f"this text was generated by these certified weights: {what}, certified by "
                f"{votes} for entry {weights.height} of the ledger"
            )
        return (
            f"this text was generated by the weights that its certificate names: {what}. The "
            f"certificate has {votes} for entry {weights.height}; with --home, it is also compared "
            "with a ledger"
        )


def _read(file: Path) -> TextProof:
    from p2ptrain.proofs.text_proof import FILE_BYTES_MAX, TextProof

    try:
        with file.open("rb") as opened:
            return TextProof.from_bytes(opened.read(FILE_BYTES_MAX + 1))
    except FileNotFoundError as exc:
        raise ConfigError(f"there is no file {file}", do="give a file of chat --prove") from exc
    except RemoteProtocolError as exc:
        raise _malformed(f"{file} is not the proof of a text: {exc.what}") from exc


def _malformed(what: str) -> ConfigError:
    return ConfigError(
        what,
        code="PROOF-FORMAT",
        likely="the file was damaged or altered, or another version wrote it",
        do="ask for the file again",
    )


def _certified(proof: TextProof) -> CertifiedWeights:
    """Return the weights that the proof's certificate names. Its signatures are valid."""
    from p2ptrain.export.certificate import SnapshotCertificate

    try:
        weights = SnapshotCertificate.from_bytes(proof.certificate).verified()
    except RemoteProtocolError as exc:
        raise P2PTrainError(
            f"the certificate in the proof is not valid: {exc.what}",
            code="PROOF-CERTIFICATE",
            likely="the file was altered",
            do="do not trust this file; ask its author for a proof with a valid certificate",
        ) from exc
    if weights.run.id != proof.run:
        raise _malformed(f"the proof names the run {proof.run}, but its certificate does not")
    return weights


def _check_ledger(home: Path, weights: CertifiedWeights) -> bool:
    """Return True if the ledger in `home` contains the entry of the certificate.

    Raises RunMismatch, P2PTrainError (PROOF-CERTIFICATE) or TryLater.
    """
    from p2ptrain.archive.chain_reader import ChainVerifier, records_in
    from p2ptrain.archive.ledger_on_disk import rules_of

    where = open_home(home, to_write=False)
    run = run_of(where)
    check_asked_for(weights.run.id, run)
    if weights.entry is None:
        return True
    walk = ChainVerifier(rules_of(run), records_in(where.ledger), where.ledger)
    for link in walk.links():
        entry = link.certified.entry
        if entry.height == weights.height and entry.digest == weights.entry:
            return True
        if entry.height == weights.height:
            raise P2PTrainError(
                f"the ledger in {where.root} has another entry at height {weights.height}",
                code="PROOF-CERTIFICATE",
                evidence=[f"certificate: {weights.entry}", f"ledger: {entry.digest}"],
                likely="the certificate was invented, or it belongs to another branch of the run",
                do="do not trust this file",
            )
    raise TryLater(
        f"the ledger in {where.root} does not contain entry {weights.height}, which certifies "
        "these weights",
        code="AUDIT-PARTIAL",
        likely="the entry is newer than this ledger, or it was pruned",
        do="use the home of a node that keeps the whole ledger, or start the node to catch up",
    )


def _check_weights(speaker: ChatModel, weights: CertifiedWeights) -> None:
    """Raise P2PTrainError (PROOF-WEIGHTS) unless the model is exactly the certified one."""
    from p2ptrain.export.certificate import has_tokenizer
    from p2ptrain.trainer.tools.exported import theta_bytes

    held, named = certificate_in(speaker.folder), f"outer step {weights.step}"
    try:
        ours = held.certificate.verified()
        equal = speaker.model.spec == ours.run.manifest.model and held.names(
            ours, theta_bytes(speaker.model)
        )
    except RemoteProtocolError as exc:
        raise _other_weights(f"the certificate in {speaker.folder} is wrong: {exc.what}") from exc
    if not equal:
        raise _other_weights(
            f"the weights in {speaker.folder} are not those that its certificate names",
            likely="the files were altered, or they were exported with --dtype bf16",
        )
    if not has_tokenizer(ours.run, (speaker.folder / "tokenizer.json").read_bytes()):
        raise _other_weights(
            f"the tokenizer in {speaker.folder} is not the one that the run's manifest names, so "
            "the text could be shown wrongly"
        )
    if (ours.run.id, ours.snapshot) != (weights.run.id, weights.snapshot):
        place = f"{ours.run.manifest.name} before outer step {ours.step}"
        raise _other_weights(
            f"{speaker.folder} contains other weights than the proof is about",
            evidence=[
                f"proof: {weights.run.manifest.name} before {named}, {weights.snapshot}",
                f"folder: {place}, {ours.snapshot}",
            ],
        )


def _other_weights(what: str, likely: str = "", evidence: list[str] | None = None) -> P2PTrainError:
    return P2PTrainError(
        what,
        code="PROOF-WEIGHTS",
        evidence=evidence or (),
        likely=likely,
        do="export the snapshot that the proof names, as fp32: p2ptrain export --to hf DIR "
        "--snapshot STEP",
    )


def _compared(speaker: ChatModel, proof: TextProof) -> TextCheck:
    from p2ptrain.trainer.tools.exported import to_best_device
    from p2ptrain.trainer.tools.proving import check_text

    progress(f"computing the hidden states of {counted(len(proof.tokens), 'token')} …")
    try:
        return check_text(to_best_device(speaker.model), proof)
    except RemoteProtocolError as exc:
        raise _malformed(f"the proof cannot be checked: {exc.what}") from exc


def _check_agreement(proof: TextProof, found: TextCheck) -> None:
    """Raise P2PTrainError if some chunk does not fit. The error says what differs."""
    from p2ptrain.proofs.hidden_states import TOKENS

    agreement = found.agreement
    if agreement.fits:
        return
    agreed = agreement.agreed
    match = agreement.matches[agreed // TOKENS]
    code, what, likely = _difference(agreed, proof.prompt)
    raise P2PTrainError(
        what,
        code=code,
        evidence=[
            f"in the chunk after token {agreed}, {match.mismatches} of 128 values "
            f"differ, and mantissas by {match.mantissa_error:.1f}"
        ],
        likely=likely,
        do="do not trust this text; ask its author for a proof that fits",
    )


def _difference(agreed: int, prompt: int) -> tuple[str, str, str]:
    """Return the code, the message and the likely cause of a difference after `agreed` tokens."""
    if agreed == 0:
        return (
            "PROOF-MODEL",
            "the proof does not fit these weights and this text from the first tokens on",
            "other weights generated the text, such as an older snapshot or weights in int4; or "
            "the beginning of the prompt was altered",
        )
    if agreed < prompt:
        return (
            "PROOF-PROMPT",
            f"the proof fits the first {agreed} tokens, but not the rest of the prompt",
            "the prompt was altered after the text was generated",
        )
    return (
        "PROOF-TEXT",
        f"the proof fits the first {agreed} tokens, but not the text after them",
        "the text was altered after it was generated",
    )


def _texts(speaker: ChatModel, proof: TextProof) -> tuple[str, str]:
    """Return the prompt and the text after it, without characters that control a terminal."""
    from p2ptrain.cli.commands.chat import visible

    speller = speaker.speller
    speller.begin()
    spelt = [visible(speller.decoded(token)) for token in proof.tokens]
    return "".join(spelt[: proof.prompt]), "".join(spelt[proof.prompt :])

"""Let the model continue the run's prompts every few outer steps, and share the texts.

One participant of the newest update does this for all (`peers/outside/sample_text`). Its trainer
writes the texts with θ, as it measures the held-out loss with θ, and has a few seconds for it. If
that member is gone, or something fails, there is no sample of that outer step, and nothing else
happens.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

import trio

from p2ptrain.data.text_tokens import Speller
from p2ptrain.errors import ConfigError, LocalProtocolError, RemoteProtocolError, StoreError
from p2ptrain.ids import PeerId
from p2ptrain.ipc import frames
from p2ptrain.node.outer_state.fetch import after, use
from p2ptrain.node.state.context import Context
from p2ptrain.peers.outside.sample_text import (
    TOKENS_MAX,
    SampleText,
    read_sample,
    sampler_of,
    shown,
)
from p2ptrain.peers.protocol_names import samples_topic

LIMIT_S = 3.0
"""Seconds that the trainer may take. Its own training waits for that long, once every `every` outer
steps, and each time it is another member's turn."""

TOKENIZER_S = 10.0
"""Seconds in which the tokenizer must arrive, if this node does not have it."""

EARLY_S = 10.0
"""Seconds for which a sample may arrive before this node knows the outer step's end."""


def chosen(context: Context, step: int) -> PeerId | None:
    """Return the peer whose turn it is to sample θ of outer step `step`, by the chain that this
    node has; None if nobody's."""
    if not context.manifest.samples.is_due(step):
        return None
    members = [each.peer for each in context.ledger.history.newest_participants(step)]
    return sampler_of(context.run, step, members)


class Sampler:
    """Samples with one trainer. `busy`: whether the trainer is writing. `warm`: whether it has
    measured θ before. Until then, the model may have to be compiled, which takes minutes.

    `may_read_theta` says whether the trainer may read θ now; `send` sends it a frame; `note_use` is
    called when `busy` has become true."""

    def __init__(
        self,
        context: Context,
        may_read_theta: Callable[[], bool],
        send: Callable[[frames.ToTrainer], Awaitable[None]],
        note_use: Callable[[], None],
    ) -> None:
        self.busy = False
        self.warm = False
        self._context = context
        self._may_read_theta, self._send, self._note_use = may_read_theta, send, note_use
        self._asked_step: int | None = None
        self._speller: Speller | None = None

    async def ask(self) -> bool:
        """Let the trainer write if it is our turn to sample the ledger's outer step, and θ may be
        read. Return whether it was asked. Each step is tried once."""
        context, step = self._context, self._context.ledger.snapshot.step
        if not self.warm or self.busy or self._asked_step == step or not self._may_read_theta():
            return False
        if chosen(context, step) != context.me:
            return False
        self._asked_step = step
        try:
            prompts = await self._prompts()
        except (StoreError, ConfigError) as exc:
            context.journal.write("not-sampled", step=step, code=exc.code, reason=exc.what)
            return False
        if not self._may_read_theta() or context.ledger.snapshot.step != step:
            return False  # Preparing took too long. The next sample will find the tokenizer here.
        self.busy = True
        self._note_use()
        await self._send(frames.Generate(step, prompts, TOKENS_MAX, LIMIT_S))
        return True

    async def note(self, made: frames.Generated) -> None:
        """Sign and publish the texts that the trainer has written."""
        context, step = self._context, made.request
        self.busy = False
        if not made.texts:
            context.journal.write("not-sampled", step=step, code="NAN", reason=made.trouble)
            return
        try:
            texts = await trio.to_thread.run_sync(self._spelt, made.texts)
        except ConfigError as exc:
            context.journal.write("not-sampled", step=step, code=exc.code, reason=exc.what)
            return
        for number, text in enumerate(texts):
            sample = SampleText(context.run, step, number, shown(text))
            signed = sample.to_bytes(context.identity)
            context.trainer.samples.note(context.me, sample, signed)
            try:
                await context.network.publish(samples_topic(context.run), signed)
            except LocalProtocolError as exc:
                context.journal.write("not-sampled", step=step, code=exc.code, reason=exc.what)
        context.journal.write("sampled", step=step, prompts=len(texts))
        context.changes.notify_all()

    async def _prompts(self) -> tuple[tuple[int, ...], ...]:
        """Return the tokens of the run's prompts. Raises StoreError, ConfigError: the tokenizer is
        missing or does not fit the model."""
        context = self._context
        if self._speller is None:
            name, unwanted = context.manifest.tokenizer, after(context, TOKENIZER_S)
            read = context.store.read_blob
            data = await use(context, name, lambda: read(name), unwanted, patient=False)
            self._speller = await trio.to_thread.run_sync(_speller_of, data)
        return await trio.to_thread.run_sync(self._encoded, context.manifest.samples.prompts)

    def _encoded(self, prompts: Sequence[str]) -> tuple[tuple[int, ...], ...]:
        assert self._speller is not None
        manifest = self._context.manifest
        begin = [] if manifest.data.document_token is None else [manifest.data.document_token]
        texts = tuple(tuple(begin + self._speller.encoded(prompt)) for prompt in prompts)
        if not all(texts) or any(max(text) >= manifest.model.vocab for text in texts):
            raise ConfigError("the run's tokenizer cannot encode its prompts", code="MODEL-FOREIGN")
        return texts

    def _spelt(self, texts: Sequence[Sequence[int]]) -> list[str]:
        assert self._speller is not None
        prompts = self._encoded(self._context.manifest.samples.prompts)
        return [self._continuation(*pair) for pair in zip(prompts, texts, strict=True)]

    def _continuation(self, prompt: Sequence[int], text: Sequence[int]) -> str:
        """Return the text of the tokens after `prompt`, up to the next document."""
        assert self._speller is not None
        self._speller.begin(prompt)
        end, said = self._context.manifest.data.document_token, list[str]()
        for token in text:
            if token == end:
                break
            said.append(self._speller.decoded(token))
        return "".join(said)


def _speller_of(data: bytes) -> Speller:
    """Return the tokenizer in `data`. Raises ConfigError: there is none in it."""
    with TemporaryDirectory(prefix="p2ptrain-tokenizer-") as folder:
        path = Path(folder) / "tokenizer.json"
        path.write_bytes(data)
        return Speller(path)


async def take_sample(context: Context, peer: PeerId, payload: bytes) -> None:
    """Handle a sample that `peer` published: keep it if it was the turn of `peer`.

    Raises RemoteProtocolError: the sample is malformed, or somebody else's turn.
    """
    signer, sample = read_sample(payload)
    if sample.run != context.run:
        return
    if signer != peer or sample.prompt >= len(context.manifest.samples.prompts):
        raise RemoteProtocolError("a sample has a wrong signer or prompt", peer=peer)
    with trio.move_on_after(EARLY_S):
        while sample.step == context.ledger.snapshot.step + 1:
            await context.changes.wait()
    if not context.ledger.kept.start.step < sample.step <= context.ledger.snapshot.step:
        return  # The step has been pruned, or is not known yet.
    if chosen(context, sample.step) != peer:
        raise RemoteProtocolError(
            f"it sampled outer step {sample.step}, but it was not its turn", peer=peer
        )
    if context.trainer.samples.note(peer, sample, payload):
        context.changes.notify_all()

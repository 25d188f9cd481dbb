"""The trainer's main loop: carry out a frame from the node, or do one inner step, until Stop.

    state        becomes          by
    ─────────    ─────────        ─────────────────────────────────────
    empty        standing by      Load
    standing by  training         Train
    training     ready            the end of its last block; `local` then contains the weights
    ready        training         Train (after a skipped outer step, or ahead: during averaging)
    ready        standing by      Merge (the reported work is in θ; work trained ahead is kept)
    ready        ready            Rebase (writes `local` again)
    any          standing by      Load

Frames are read between two inner steps, so an order waits for one inner step at most. Every rank
(process of the trainer) runs this loop on the same frames; only rank 0 exchanges frames with the
node. `local` is the memory in which the node reads the trained weights.

If an order cannot be carried out, the trainer answers with Failed, drops the blocks that were still
to be trained, and leaves the weights as they are. The node decides what to do next.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from p2ptrain.data.blocks import Tokens, read_block
from p2ptrain.errors import ChunkCorrupt, StoreError, TrainerDiverged
from p2ptrain.ipc import frames
from p2ptrain.ipc.channel import Channel, ChannelClosed
from p2ptrain.ipc.learning_rate import join_share, learning_rate
from p2ptrain.ipc.trainer_config import TrainerConfig
from p2ptrain.trainer.host.flops import mfu
from p2ptrain.trainer.rank.arena import RankArena
from p2ptrain.trainer.rank.batch import InnerStep, loss_on, predicted_tokens, train_on
from p2ptrain.trainer.rank.deviation import Pull
from p2ptrain.trainer.rank.inner_state import InnerState
from p2ptrain.trainer.rank.model import Llama
from p2ptrain.trainer.rank.optimizer import InnerOptimizer
from p2ptrain.trainer.rank.ranks import Ranks
from p2ptrain.trainer.rank.sample_texts import continue_texts

IDLE_PULSE_S = 60.0
"""Rank 0 waits at most this long for a frame, and then tells the other ranks that there is none.
They wait in a collective, which would otherwise reach its time limit."""


def read_file(path: str, *, vocab: int, sequence: int) -> Tokens:
    """Return the tokens of a block in a file on this machine."""
    return read_block(Path(path), vocab=vocab, sequence=sequence)


@dataclass(slots=True)
class StepWork:
    """The work that is not part of θ yet, and the blocks still to be trained."""

    step: int
    tokens: int = 0
    trained: list[str] = field(default_factory=list)
    loss_sum: float = 0.0
    queue: deque[tuple[int, str]] = field(default_factory=deque)
    ahead: bool = False
    ready: bool = False
    offered: tuple[int, int, float] = (0, 0, 0.0)
    """Tokens, blocks and sum of losses of the last report. Written by `report`."""
    set_aside: bool = False
    """Whether the reported work is no longer in the weights, but only in `local`, as with delayed
    averaging. Written by the loop."""

    def report(self) -> frames.FragmentReady:
        """Return the frame that offers this work to the node."""
        self.offered = (self.tokens, len(self.trained), self.loss_sum)
        loss = self.loss_sum / max(1, self.tokens)
        return frames.FragmentReady(self.step, self.tokens, tuple(self.trained), loss)

    def taken(self, step: int) -> StepWork:
        """Return the work that remains now that θ of `step` contains the reported work."""
        tokens, blocks, loss_sum = self.offered
        left = self.trained[blocks:]
        return StepWork(step, self.tokens - tokens, left, self.loss_sum - loss_sum, self.queue)


@dataclass(frozen=True, slots=True)
class Means:
    """The functions with which a loop reads a block, trains on it, and measures time."""

    read: Callable[..., Tokens] = read_file
    """Returns the tokens of a block. It takes the arguments of `read_file`. Raises StoreError."""
    train: Callable[..., InnerStep] = train_on
    """Does one inner step. It takes the arguments of `train_on`."""
    clock: Callable[[], float] = time.monotonic


USUAL_MEANS = Means()


@dataclass(slots=True)
class TrainerLoop:
    """Carries out a node's frames. `channel` leads to the node; it is None except on rank 0."""

    config: TrainerConfig
    model: Llama
    optimizer: InnerOptimizer
    arena: RankArena
    ranks: Ranks
    channel: Channel | None
    state: InnerState | None = None
    means: Means = USUAL_MEANS
    _steps_since_cold: int = field(default=0, init=False)
    """Number of inner steps since the optimizer last began with an empty state."""
    _merges_unkept: int = field(default=0, init=False)
    """Number of merges since the optimizer's state was last saved."""
    _work: StepWork | None = field(default=None, init=False)
    _pull: Pull = field(default=Pull(0.0, 0.0, 0.0), init=False)
    _rates: frames.Rates = field(init=False)

    def __post_init__(self) -> None:
        self._rates = frames.Rates(self.config.inner.lr)

    def run(self) -> None:
        """Run until Stop, or until the node is gone."""
        while True:
            frame = self._next_frame()
            if isinstance(frame, frames.Stop):
                return
            if frame is not None:
                self.obey(frame)
            elif self.busy:
                self.inner_step()

    @property
    def busy(self) -> bool:
        """Whether a block is left to train now."""
        return self._work is not None and bool(self._work.queue)

    def _next_frame(self) -> frames.Frame | None:
        """Return the next frame, the same on all ranks, or None if there is none yet. While there
        are blocks to train, do not wait for a frame."""
        frame: frames.Frame | None = None
        if self.channel is not None:
            try:
                frame = self.channel.receive(0.0 if self.busy else IDLE_PULSE_S)
            except ChannelClosed:
                frame = frames.Stop()
        return self.ranks.share(frame)

    def _send(self, frame: frames.ToNode) -> None:
        if self.channel is not None:
            self.channel.send(frame)

    def obey(self, frame: frames.Frame) -> None:
        """Carry out one frame. A Train frame only adds its blocks to the queue of `inner_step`."""
        match frame:
            case frames.Load(step):
                self.arena.load()
                self._keep_state(step)
                self._work = StepWork(step)
            case frames.Rates(lr):
                self.config = replace(self.config, inner=replace(self.config.inner, lr=lr))
                self._rates = frame
            case frames.Train():
                self._train(frame)
            case frames.Merge(step):
                self._merge(step)
            case frames.Rebase(step):
                self._rebase(step)
            case frames.Evaluate(request, block_paths):
                self._evaluate(request, block_paths)
            case frames.Generate():
                self._generate(frame)
            case _:
                self._fail("ORDER", f"a trainer does not accept a {frame.kind} frame")

    def _keep_state(self, step: int) -> None:
        """Restore the optimizer's state at the first Load; at later calls save it."""
        self._merges_unkept = 0
        first = self._work is None
        if first and step == 0:
            # At the start of the run, the schedule itself warms up, so no other warm-up is needed.
            self._steps_since_cold = self.config.inner.join_warmup_steps
        if self.state is None:
            return
        if not first:
            if trouble := self.state.save(step, self._steps_since_cold):
                self._send(frames.Resumed(step, None, trouble))
            return
        found = self.state.restore(step)
        self._send(frames.Resumed(step, found[0] if found else None))
        if found:
            self._steps_since_cold = found[1]

    def _train(self, order: frames.Train) -> None:
        if self._work is None:
            return self._fail("ORDER", "a Train frame came before the first Load")
        self._work.step = order.step
        if not order.ahead:
            self._take_back(self._work)  # The next report then covers this work, too.
        self._pull = Pull(order.share, order.outer_lr, order.outer_momentum)
        self._work.ahead, self._work.ready = order.ahead, False
        self._work.queue.extend(enumerate(order.block_paths, order.first_inner_step))
        self._publish_if_done(self._work)

    def _merge(self, step: int) -> None:
        if self._work is None or not self._work.offered[1]:
            return self._fail("ORDER", "a Merge frame came before any work was ready")
        if self.config.delayed:
            self.arena.rebase(self._work.step, step)
        else:
            self.arena.merge(self._work.step, step, self.config.mixing)
        self._merges_unkept += 1
        if self._merges_unkept >= self.config.fragments:
            # Save once all fragments have been merged, which is as often as with one fragment. A
            # restart with a slightly older state costs little.
            self._keep_state(step)
        self._work = self._work.taken(step)

    def _rebase(self, step: int) -> None:
        if self._work is None:
            return self._fail("ORDER", "a Rebase frame came before the first Load")
        self._take_back(self._work)
        self.arena.rebase(self._work.step, step)
        self._work.step = step
        if self._work.ready:
            self._publish_if_done(self._work)

    def _take_back(self, work: StepWork) -> None:
        """Add the work that was set aside to the weights, if there is any."""
        if work.set_aside:
            self.arena.take_back()
            work.set_aside = False

    def inner_step(self) -> None:
        """Train on the next block and send Progress. Call this only while `busy`."""
        work, clock = self._work, self.means.clock
        started_s = clock()
        assert work is not None
        inner_step, path = work.queue.popleft()
        try:
            rows = self._read_tokens(path)
            data_wait_s = clock() - started_s
            lr = self._set_rate(inner_step)
            done = self.means.train(rows, self.model, self.optimizer, self.ranks, self.config)
        except StoreError as exc:
            return self._fail("DATA", exc.what)
        except TrainerDiverged as exc:
            return self._fail("NAN", f"{exc.what} at inner step {inner_step}")
        tokens = predicted_tokens(rows)
        self._steps_since_cold += 1
        work.tokens += tokens
        work.trained.append(path)
        work.loss_sum += done.loss * tokens
        tokens_per_s = tokens / max(1e-9, clock() - started_s)
        ranks = self.ranks
        progress = frames.Progress(
            work.step,
            inner_step,
            done.loss,
            tokens_per_s,
            work.tokens,
            data_wait_s,
            mfu(self.config.model, ranks.device_name, ranks.count, tokens_per_s),
            lr,
            done.gradient_norm,
        )
        self._send(progress)
        self._publish_if_done(work)

    def _set_rate(self, inner_step: int) -> float:
        """Set the optimizer's learning rate to that of `inner_step`, and return it."""
        inner = self.config.inner
        agreed = learning_rate(inner, self._rates.schedule_step(inner_step))
        lr = agreed * join_share(inner, self._steps_since_cold)
        self.optimizer.set_rate(lr)
        return lr

    def _publish_if_done(self, work: StepWork) -> None:
        """If no block is left, write the weights to `local`, wait until all ranks have done so, and
        send FragmentReady."""
        if work.queue or work.ahead:
            return
        self.arena.store(work.step)
        self.ranks.meet()
        if self.config.eager:
            self.arena.deviate(work.step, self._pull)
        if self.config.delayed:
            self.arena.set_aside()
            work.set_aside = True
        work.ready = True
        self._send(work.report())

    def _evaluate(self, request: int, paths: Sequence[str]) -> None:
        loss_sum, tokens = 0.0, 0
        try:
            with self.arena.outer_parameters():
                for path in paths:
                    rows = self._read_tokens(path)
                    loss_sum += loss_on(rows, self.model, self.ranks, self.config)
                    tokens += predicted_tokens(rows)
            answer = frames.Evaluated(request, loss_sum / max(1, tokens), tokens)
        except StoreError as exc:
            return self._send(frames.Failed("DATA", exc.what, request))
        except ValueError:
            return self._send(frames.Failed("NAN", f"the loss of θ is {loss_sum}", request))
        self._send(answer)

    def _generate(self, order: frames.Generate) -> None:
        ends_s = self.means.clock() + order.limit_s

        def late() -> bool:
            return self.means.clock() >= ends_s

        try:
            with self.arena.outer_parameters():
                texts = continue_texts(
                    self.model, order.prompts, order.tokens_max, self.ranks, self.config, late
                )
            answer = frames.Generated(order.request, texts)
        except TrainerDiverged as exc:
            answer = frames.Generated(order.request, (), exc.what)
        self._send(answer)

    def _read_tokens(self, path: str) -> Tokens:
        """Return the tokens of a block once every rank has read it. If one rank cannot read it,
        raise StoreError on every rank.

        On different hosts, some ranks may be able to read a block and others not. If only some
        ranks continued, they would wait for the others in a collective.
        """
        rows, trouble = None, None
        try:
            rows = self._read_here(path)
        except StoreError as exc:
            trouble = exc
        if self.ranks.any_rank(trouble is not None):
            said = self.ranks.any_words("" if trouble is None else trouble.what)
            raise trouble or StoreError(f"another rank reports: {said}")
        assert rows is not None, "no rank failed, so this rank has read the rows"
        return rows

    def _read_here(self, path: str) -> Tokens:
        spec, batch = self.config.model, self.config.inner.batch_sequences
        rows = self.means.read(path, vocab=spec.vocab, sequence=spec.sequence)
        if len(rows) != batch:
            raise ChunkCorrupt(f"data block {path} has {len(rows)} sequences; the run has {batch}")
        return rows

    def _fail(self, code: str, text: str) -> None:
        if self._work is not None:
            self._work.queue.clear()
        self._send(frames.Failed(code, text[: frames.TEXT_CHARACTERS_MAX]))

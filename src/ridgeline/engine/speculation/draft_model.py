"""Guesses from a draft model: a smaller model with the same vocabulary, whose next tokens are the guesses.

See Leviathan et al., arXiv:2211.17192, and Chen et al., arXiv:2302.01318. The draft model samples with the random
numbers that the model itself will use, one for each seed, position and choice, so its guess is right if its
distribution is nearly the same. Its KV memory follows each request: what it computed for wrong guesses is overwritten.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace

from ridgeline.core.models.common.model import Model
from ridgeline.core.ops.kv_layout import KVLayout
from ridgeline.engine.kv.kv_cache_manager import KVCacheManager
from ridgeline.engine.params import SamplingParams
from ridgeline.engine.request import Request
from ridgeline.engine.runner import Runner
from ridgeline.engine.sampling.sample_row import History, Sampled, SampleRow
from ridgeline.engine.speculation.drafter import DraftRequest
from ridgeline.engine.step_plan import PlanItem, StepPlan


@dataclass(slots=True)
class _DraftState:
    """The draft model's state of one request."""

    request: Request
    """The request that the draft model follows."""
    params: SamplingParams
    """The sampling parameters of the guesses: the request's, without log-probabilities."""
    tokens: list[int]
    """The tokens at the positions in the draft model's KV memory."""
    sure: int
    """The number of tokens in the draft model's KV memory that are known to be the request's."""
    most: int = 0
    """The number of tokens that the draft model should guess now."""
    guesses: list[int] = field(default_factory=list)
    """The draft model's guesses at the next tokens so far."""
    history: History | None = None
    """The token counts that penalties need, guesses included; None without penalties."""

    def agreed(self) -> int:
        """Drop the positions that differ from the request's tokens, and return how many remain.

        The request may have continued otherwise than guessed. At least one known position is left to run.
        """
        known = self.request.tokens[self.sure : self.request.known]
        for own, other in zip(self.tokens[self.sure :], known, strict=False):
            if own != other:
                break
            self.sure += 1
        self.sure = min(self.sure, self.request.known - 1)
        del self.tokens[self.sure :]
        return self.sure

    def row(self) -> SampleRow:
        """Return the sampling inputs for the draft model's next guess."""
        request, ahead = self.request, len(self.guesses)
        return SampleRow(
            self.params,
            request.seed,
            request.known + ahead,
            request.choice,
            request.output_length + ahead,
            tuple(request.stop_ids),
            self.history,
        )

    def take(self, token: int) -> None:
        """Add a token that the draft model guessed."""
        self.guesses.append(token)
        if self.history is not None:
            self.history.append(token)


class ModelDrafter:
    """The drafter that guesses with a model, for all requests at once: one step of the draft model per guess."""

    def __init__(self, model: Model, layout: KVLayout, step_tokens: int, context: int) -> None:
        """Make a drafter that follows no request.

        Args:
            model: The draft model.
            layout: The layout of its KV pages.
            step_tokens: Maximum number of known positions that it runs before a step of the model.
            context: Maximum number of positions of a sequence that it takes.
        """
        self._runner = Runner(model, layout)
        self._ledger = KVCacheManager(layout, step_tokens)
        self._step_tokens, self._context, self._vocabulary = step_tokens, context, model.vocabulary
        self._followed: dict[int, _DraftState] = {}
        self._forget: list[int] = []
        self._known_to_runner: set[int] = set()
        self._steps = 0

    def draft(self, asks: Sequence[DraftRequest]) -> list[Sequence[int]]:
        """Return guesses at the next tokens of each request, from the draft model.

        A request gets none while the draft model has not read its whole prompt, or has no memory for it.
        """
        begun = [self._begun(ask) for ask in asks]
        drafting = self._caught_up([one for one in begun if one is not None])
        while drafting := [one for one in drafting if one.guesses and len(one.guesses) < one.most]:
            ready = [one for one in drafting if self._ledger.grow(one.request.id, len(one.tokens) + 1)]
            if not ready:
                break
            self._run([(one, [one.guesses[-1]]) for one in ready], ready)
            drafting = ready
        return [() if one is None else one.guesses for one in begun]

    def forget(self, request: int) -> None:
        """Free the draft model's memory of a request that has ended."""
        if self._followed.pop(request, None) is None:
            return
        self._ledger.release(request)
        if request in self._known_to_runner:
            self._known_to_runner.discard(request)
            self._forget.append(request)

    def _begun(self, ask: DraftRequest) -> _DraftState | None:
        """Return the state of a request, ready for new guesses; None if no guesses are possible now."""
        request, most = ask.request, min(ask.most, self._context - ask.request.known)
        if request.placed_images is not None or most <= 0:
            return None
        one = self._followed.get(request.id)
        if one is None:
            found = self._ledger.admit(request.id, request.tokens, self._ledger.reserve, root=request.cache_namespace)
            if found is None:
                return None
            params = replace(request.spec.params, logprobs=None, prompt_logprobs=None)
            one = _DraftState(request, params, list(request.tokens[:found]), found)
            self._followed[request.id] = one
        one.most, one.guesses = most, []
        one.history = None if request.history is None else request.history.copy()
        return one

    def _caught_up(self, followed: Iterable[_DraftState]) -> list[_DraftState]:
        """Run, on the draft model, known tokens that its KV memory lacks, as far as a step's budget allows.

        Returns:
            The requests that have a first guess by that.
        """
        parts: list[tuple[_DraftState, Sequence[int]]] = []
        room = self._step_tokens
        for one in followed:
            start, known = one.agreed(), one.request.known
            count = min(known - start, room)
            tokens = one.request.tokens[start : start + count]
            foreign = any(token >= self._vocabulary for token in tokens)  # ids that the draft model does not have
            if count and not foreign and self._ledger.grow(one.request.id, start + count):
                parts.append((one, tokens))
                room -= count
        ready = [one for one, tokens in parts if len(one.tokens) + len(tokens) == one.request.known]
        if parts:
            self._run(parts, ready)
        for one, _ in parts:
            one.sure = len(one.tokens)
            self._ledger.commit(one.request.id, one.request.tokens, one.sure)
        return ready

    def _run(self, parts: Sequence[tuple[_DraftState, Sequence[int]]], sampled: Sequence[_DraftState]) -> None:
        """Run positions of the draft model, and sample a guess after the last position of the `sampled` requests."""
        wanted = {one.request.id for one in sampled}
        items = tuple([self._item(one, tokens, is_sampled=one.request.id in wanted) for one, tokens in parts])
        plan = StepPlan(self._steps, items, (), tuple(self._ledger.pages_to_zero), tuple(self._forget))
        self._steps += 1
        self._ledger.pages_to_zero.clear()
        self._forget.clear()
        outcomes = self._runner.execute(plan, [one.row() for one in sampled])
        for one, tokens in parts:
            one.tokens += tokens
        for one, outcome in zip(sampled, outcomes, strict=True):
            if isinstance(outcome, Sampled):
                one.take(outcome.token)
            else:  # its logits leave nothing to choose; the other requests keep their guesses
                one.most = 0

    def _item(self, one: _DraftState, tokens: Sequence[int], *, is_sampled: bool) -> PlanItem:
        first, pages = self._ledger.unsent(one.request.id)
        if first:
            self._known_to_runner.add(one.request.id)
        logits = (len(tokens) - 1,) if is_sampled else ()
        return PlanItem(one.request.id, len(one.tokens), tuple(tokens), pages, first, logits)

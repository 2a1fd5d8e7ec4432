"""Conversations: questions that carry what was said before, each asked when its user has thought about the last answer.

All that is said in one is a single stream of tokens, of which every prompt is the beginning. A block that nothing
outgrows therefore names it whole: what a prompt shares with the one before it, and with that one's answer, follows.
"""

import heapq
import random
from dataclasses import dataclass, replace

from ridgeline.insight.traffic.lengths import MAX_TOKENS, Lengths
from ridgeline.insight.traffic.offered import Offered, check_moment
from ridgeline.insight.traffic.workload_trace import TraceRequest


@dataclass(frozen=True, slots=True)
class FollowUpLengths:
    """Tokens of the later questions of conversations, and of their answers. They depend on the seed and the place
    alone, so that two runs have the same whatever came first in them.
    """

    given: Lengths
    made: Lengths
    seed: int

    def of(self, session: int, turn: int) -> tuple[int, int]:
        """Tokens of a question and of its answer."""
        draw = random.Random(f"turns/{self.seed}/{session}/{turn}")
        return self.given.draw(draw), self.made.draw(draw)


class Conversations:
    """As Offered: what another offers are first questions, each of which has later ones."""

    def __init__(self, begun: Offered, turns: int, think: int, questions: FollowUpLengths, until: int | None) -> None:
        """turns: questions of a conversation. think: nanoseconds from an answer to the next one. until: when nobody
        asks any more.
        """
        self._begun, self._turns, self._think, self._until = begun, turns, think, until
        self._questions = questions
        self._sessions = 0
        self._later: list[tuple[int, int, TraceRequest]] = []  # when, of which conversation

    @property
    def upcoming(self) -> int | None:
        """As Offered.upcoming."""
        moments = [self._begun.upcoming, self._later[0][0] if self._later else None]
        return min([at for at in moments if at is not None], default=None)

    def take(self) -> TraceRequest:
        """As Offered.take; of two that come together the later question."""
        if self._later and self._later[0][0] == self.upcoming:
            return heapq.heappop(self._later)[2]
        first, session = self._begun.take(), self._sessions
        self._sessions += 1
        return replace(first, blocks=(f"conversation {session}",), block=MAX_TOKENS, session=session)

    def ended(self, request: TraceRequest, now: int, *, answered: bool) -> None:
        """The next question of its conversation; after the last, and where one no longer fits the context, its user is
        free for another.
        """
        asks, turn = now + self._think, request.turn + 1
        if not answered or turn == self._turns or (self._until is not None and asks >= self._until):
            self._begun.ended(request, now, answered=answered or request.turn > 0)
            return
        given, made = self._questions.of(request.session, turn)
        said = request.input + request.output
        question = replace(request, at=asks, input=said + given, output=made, turn=turn)
        check_moment(asks, "give a shorter --think")
        heapq.heappush(self._later, (asks, request.session, question))

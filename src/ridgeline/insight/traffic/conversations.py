"""Multi-turn conversations: each later prompt contains the conversation so far and follows after a think time.

A conversation is a single stream of tokens, and every prompt is a beginning of that stream. One named block, larger
than any conversation, therefore identifies it: the prefixes that prompts share with earlier prompts and responses
follow from that.
"""

import heapq
import random
from dataclasses import dataclass, replace

from ridgeline.insight.traffic.lengths import MAX_TOKENS, Lengths
from ridgeline.insight.traffic.offered import Offered, check_moment
from ridgeline.insight.traffic.think_time import ThinkTime
from ridgeline.insight.traffic.workload_trace import TraceRequest


@dataclass(frozen=True, slots=True)
class FollowUps:
    """The lengths of later turns and their responses, and the think times before them.

    They depend only on the seed and the position of the turn, so that two runs have the same ones whatever came first.
    """

    given: Lengths
    """The distribution of the tokens that each later turn adds."""
    made: Lengths
    """The distribution of the tokens of a response."""
    think: ThinkTime
    """The distribution of the time from a response to the next turn."""
    seed: int

    def of(self, session: int, turn: int) -> tuple[int, int, int]:
        """Return the tokens of a turn and of its response, and the nanoseconds of thinking before it."""
        draw = random.Random(f"turns/{self.seed}/{session}/{turn}")
        return self.given.draw(draw), self.made.draw(draw), self.think.draw(draw)


class Conversations:
    """Traffic that turns each request of another source into the first turn of a conversation."""

    def __init__(self, begun: Offered, turns: int, questions: FollowUps, until: int | None) -> None:
        """Create multi-turn traffic from a source of first turns.

        Args:
            begun: The source of first turns.
            turns: The turns of a conversation.
            questions: The lengths of later turns and the think times.
            until: The time after which no turn starts; None for no limit.
        """
        self._begun, self._turns, self._until = begun, turns, until
        self._questions = questions
        self._sessions = 0
        self._later: list[tuple[int, int, TraceRequest]] = []  # arrival time, conversation, request

    @property
    def upcoming(self) -> int | None:
        """The arrival time of the next request in nanoseconds; None if none is known."""
        moments = [self._begun.upcoming, self._later[0][0] if self._later else None]
        return min([at for at in moments if at is not None], default=None)

    def take(self) -> TraceRequest:
        """Return the next request; if a later turn and a first turn arrive together, the later turn."""
        if self._later and self._later[0][0] == self.upcoming:
            return heapq.heappop(self._later)[2]
        first, session = self._begun.take(), self._sessions
        self._sessions += 1
        return replace(first, blocks=(f"conversation {session}",), block=MAX_TOKENS, session=session)

    def ended(self, request: TraceRequest, now: int, *, answered: bool) -> None:
        """Schedule the next turn of a conversation after a response.

        After the last turn, if the next one would come too late, or if a later turn was rejected because it exceeds the
        context, the user is free for another conversation.
        """
        turn = request.turn + 1
        given, made, think = self._questions.of(request.session, turn)
        asks = now + think
        if not answered or turn == self._turns or (self._until is not None and asks >= self._until):
            self._begun.ended(request, now, answered=answered or request.turn > 0)
            return
        context = request.input + request.output
        question = replace(request, at=asks, input=context + given, output=made, turn=turn)
        check_moment(asks, "give a shorter --think")
        heapq.heappush(self._later, (asks, request.session, question))

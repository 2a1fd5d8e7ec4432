"""Stop strings: however the text arrives, the cut is where brute force over the whole text puts it."""

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from ridgeline.core.text import StopMatcher, StopResult

WORDS = st.text("ab\n", min_size=1, max_size=5)


def brute_force(text: str, stops: list[str]) -> tuple[str, str | None]:
    """The text before the stop string that starts first; the shortest of those."""
    found = [(text.find(stop), len(stop), stop) for stop in stops if stop in text]
    if not found:
        return text, None
    start, _, stop = min(found)
    return text[:start], stop


def stream(matcher: StopMatcher, pushes: list[str]) -> tuple[list[str], str | None, str]:
    texts: list[str] = []
    for at, push in enumerate(pushes):
        result = matcher.push(push)
        texts.append(result.safe)
        if result.matched is not None:
            return texts, result.matched, result.rest + "".join(pushes[at + 1 :])
    result = matcher.flush()
    return [*texts, result.safe], result.matched, result.rest


@given(stops=st.lists(WORDS, max_size=4), pushes=st.lists(st.text("ab\n", max_size=6), max_size=12))
@example(stops=["abab", "ba"], pushes=["a", "b", "a", "a"])  # "ba" waits for "abab", which does not come
@example(stops=["aab"], pushes=["aa", "ab"])
@example(stops=["ab", "abb"], pushes=["abb"])
def test_equals_brute_force(stops: list[str], pushes: list[str]) -> None:
    whole = "".join(pushes)
    safe, stop = brute_force(whole, stops)
    texts, matched, rest = stream(StopMatcher(stops), pushes)
    assert ("".join(texts), matched) == (safe, stop)
    assert stop is None or safe + stop + rest == whole
    assert len(StopMatcher(stops).push(whole[:-1]).safe) <= len(safe) or stop is None
    kept, _, _ = stream(StopMatcher(stops, include_stop=True), pushes)
    assert "".join(kept) == safe + (stop or "")


@given(stops=st.lists(WORDS, min_size=1, max_size=4), pushes=st.lists(st.text("abc", max_size=6), max_size=12))
def test_holds_no_more_than_needed(stops: list[str], pushes: list[str]) -> None:
    """Text is held only while it is the beginning of a stop string."""
    matcher, seen, shown = StopMatcher(stops), "", ""
    for push in pushes:
        result = matcher.push(push)
        if result.matched is not None:
            return
        seen, shown = seen + push, shown + result.safe
        held = seen[len(shown) :]
        assert not held or any(stop.startswith(held) for stop in stops) or any(stop in held for stop in stops)


@given(
    stops=st.lists(WORDS, max_size=4),
    pushes=st.lists(st.text("ab\n", max_size=4), max_size=12),
    least=st.integers(0, 8),
)
@example(stops=["aa"], pushes=["a", "a", "a"], least=2)  # it begins in text where none may end
@example(stops=["ab", "abab"], pushes=["ab", "ab"], least=1)
def test_a_stop_that_ends_too_early_is_text(stops: list[str], pushes: list[str], least: int) -> None:
    """Only stop strings that end behind the first pushes count; vLLM looks from there on."""
    whole, early = "".join(pushes), len("".join(pushes[:least]))
    ends = ((at, stop) for at in range(len(whole)) for stop in sorted(stops, key=len) if whole.startswith(stop, at))
    at, stop = next(((at, stop) for at, stop in ends if at + len(stop) > early), (len(whole), None))
    matcher, shown = StopMatcher(stops), ""
    for place, push in enumerate(pushes):
        result = matcher.push(push, may_end=place >= least)
        shown += result.safe
        if result.matched is not None:
            break
    else:
        result = matcher.flush()
        shown += result.safe
    assert (shown, result.matched) == (whole[:at], stop)


def test_no_stops_and_empty_stops() -> None:
    assert StopMatcher([]).push("text") == StopResult("text")
    assert StopMatcher([]).flush() == StopResult("")
    with pytest.raises(ValueError, match="empty stop string"):
        StopMatcher(["a", ""])

"""Philox against the answers published with it, and the uniforms made of it."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from ridgeline.engine.sampling.uniform import philox4x32, uniform

# Random123's kat_vectors, "philox4x32 10": counter, key, answer.
KNOWN_ANSWERS = [
    ("00000000 00000000 00000000 00000000", "00000000 00000000", "6627e8d5 e169c58d bc57ac4c 9b00dbd8"),
    ("ffffffff ffffffff ffffffff ffffffff", "ffffffff ffffffff", "408f276d 41c83b0e a20bc7c6 6d5451fd"),
    ("243f6a88 85a308d3 13198a2e 03707344", "a4093822 299f31d0", "d16cfe09 94fdcceb 5001e420 24126ea1"),
]


def words(text: str) -> list[np.ndarray]:
    return [np.array([int(word, 16)], np.uint64) for word in text.split()]


@pytest.mark.parametrize(("counter", "key", "answer"), KNOWN_ANSWERS)
def test_philox_known_answers(counter: str, key: str, answer: str) -> None:
    got = philox4x32(words(counter), words(key))
    assert " ".join(f"{int(word[0]):08x}" for word in got) == answer


def test_uniform_is_the_first_53_bits_of_the_known_answer() -> None:
    value = uniform([0], [0], [0])[0]
    assert value == (0x6627E8D5E169C58D >> 11) / 2**53


@given(st.integers(-(2**63), 2**64 - 1), st.integers(0, 2**40), st.integers(0, 2**31 - 1), st.integers(0, 5))
def test_a_row_of_a_batch_is_the_row_alone(seed: int, position: int, choice: int, before: int) -> None:
    alone = uniform([seed], [position], [choice])[0]
    batch = uniform([1] * before + [seed, 2], [7] * before + [position, 8], [0] * before + [choice, 3])
    assert batch[before] == alone
    assert 0.0 <= alone < 1.0


@pytest.mark.parametrize("axis", ["seed", "position", "choice"])
def test_every_axis_is_a_good_stream(axis: str) -> None:
    """Uniform by Kolmogorov-Smirnov, neighbours uncorrelated, no value twice: along each of the three arguments."""
    n = 20_000
    run, fixed = list(range(n)), [5] * n
    values = uniform(*(run if name == axis else fixed for name in ("seed", "position", "choice")))
    assert stats.kstest(values, "uniform").pvalue > 1e-3
    assert abs(np.corrcoef(values[:-1], values[1:])[0, 1]) < 4 / np.sqrt(n)
    assert len(set(values.tolist())) == n


def test_positions_beyond_32_bits_and_high_seed_bits_count() -> None:
    values = uniform([1, 1, 1 + 2**32, -1, 2**64 - 1], [3, 3 + 2**32, 3, 3, 3], [0] * 5)
    assert len(set(values.tolist())) == 4
    assert values[3] == values[4], "seeds are taken modulo 2^64"

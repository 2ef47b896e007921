"""The drift classifier on signals whose kind is known, with noise and oscillations of many sorts."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest

from dalembert.errors import InvalidInput
from dalembert.numerics import GROWTH_KINDS, classify

SAVES, TRIALS = 1500, 30
T = np.linspace(0.0, 1.0, SAVES)


def walk(rng, saves=SAVES):
    return np.cumsum(rng.normal(size=saves)) / np.sqrt(saves)


def wave(rng, low, high):
    return np.sin(2 * np.pi * rng.uniform(low, high) * T + rng.uniform(0, 6))


def remembering(rng, time):
    """Stationary noise with this correlation time."""
    decay, values = np.exp(-1 / (time * SAVES)), [0.0]
    for kick in rng.normal(size=SAVES - 1):
        values.append(decay * values[-1] + kick * np.sqrt(1 - decay**2))
    return np.array(values)


SIGNALS = {
    "white noise": ("bounded", 30, lambda r: r.normal(size=SAVES)),
    "fast wave": ("bounded", 30, lambda r: wave(r, 20, 700)),
    "slow wave": ("bounded", 30, lambda r: wave(r, 3, 20)),
    "waves": ("bounded", 29, lambda r: sum(r.uniform(0.1, 1) * wave(r, 6, 300) for _ in range(4))),
    "beats": ("bounded", 29, lambda r: wave(r, 90, 110) * wave(r, 3, 9)),
    "noise with a memory": ("bounded", 23, lambda r: remembering(r, 1 / 60)),
    "walk": ("random walk", 27, walk),
    "walk and noise": ("random walk", 28, lambda r: walk(r) + 0.2 * r.normal(size=SAVES)),
    "walk and wave": ("random walk", 22, lambda r: walk(r) + 0.4 * wave(r, 30, 60)),
    "line and noise": ("linear", 27, lambda r: T + r.normal(size=SAVES)),
    "falling line and wave": ("linear", 28, lambda r: -T + wave(r, 20, 300)),
    "line and slow wave": ("linear", 27, lambda r: T + 0.2 * wave(r, 5, 20)),
    "growth and noise": ("exponential", 29, lambda r: np.exp(2 * T) + 0.3 * r.normal(size=SAVES)),
    "growth of both": ("exponential", 30, lambda r: np.exp(5 * T) * (1 + 0.2 * wave(r, 20, 300))),
    "steep growth": ("exponential", 30, lambda r: np.exp(200 * T) * (1 + 0.2 * r.normal(size=SAVES))),
    "settling": ("exponential", 30, lambda r: np.exp(-3 * T) + 0.05 * r.normal(size=SAVES)),
    "growing wave": ("exponential", 28, lambda r: np.exp(5 * T) * wave(r, 90, 300)),
    "linearly growing wave": ("linear", 27, lambda r: (0.1 + T) * wave(r, 90, 300)),
}


@pytest.mark.parametrize("name", SIGNALS)
def test_the_kind_of_a_signal(name):
    """The least numbers of right answers of 30 are near the measured ones: a single random walk can look like
    anything.
    """
    kind, least, make = SIGNALS[name]
    rng = np.random.default_rng(1)
    found = Counter(classify(T, 1e-7 * make(rng)).kind for _ in range(TRIALS))
    assert found[kind] >= least, found


@pytest.mark.parametrize("saves", [64, 200, 5000])
def test_an_ensemble_shows_a_random_walk_beyond_doubt_with_its_rate(saves):
    rng = np.random.default_rng(2)
    t = np.linspace(0.0, 400.0, saves)
    members = np.stack([0.3 * np.sqrt(400.0) * walk(rng, saves) for _ in range(64)])
    found = classify(t, members)
    assert found.kind == "random walk"
    assert found.rate == pytest.approx(0.3, rel=0.08)
    assert sorted(found.evidence.values())[-2] < -50 and found.evidence["random walk"] == 0.0
    assert found.size == np.abs(members).max()


def test_an_ensemble_of_noise_is_bounded_and_one_of_lines_linear():
    rng = np.random.default_rng(3)
    noise = rng.normal(size=(20, SAVES))
    assert classify(T, noise).kind == "bounded"
    lines = classify(5 * T, noise + np.outer(rng.choice([-4.0, 4.0], 20), T))  # each member its own slope
    assert lines.kind == "linear" and lines.rate == pytest.approx(0.8, rel=0.05)


@pytest.mark.parametrize("rate", [-0.5, 0.04])
def test_the_rate_of_a_line(rate):
    found = classify(50 * T, rate * 50 * T + 0.01 * np.sin(300 * T))
    assert found.kind == "linear" and found.rate == pytest.approx(rate, rel=1e-2)
    assert "linear" in str(found)


@pytest.mark.parametrize("rate", [-0.08, 0.03, 0.5, 8.0])
def test_the_rate_of_an_exponential(rate):
    found = classify(50 * T, 3e-9 * np.expm1(rate * 50 * T))
    assert found.kind == "exponential" and found.rate == pytest.approx(rate, rel=1e-3)
    assert not found.amplitude


def test_the_growth_of_an_oscillation_is_said_to_be_one():
    found = classify(50 * T, np.exp(0.1 * 50 * T) * np.sin(900 * T))
    assert found.kind == "exponential" and found.amplitude and found.rate == pytest.approx(0.1, rel=0.1)
    assert not classify(T, np.exp(-4 * T) * np.sin(900 * T)).amplitude  # one that dies out does not grow


def test_neither_the_unit_of_time_nor_that_of_the_error_matters():
    signal = walk(np.random.default_rng(5))
    one, other = classify(T, signal), classify(1e5 * T + 7, 1e-12 * signal)
    assert one.kind == other.kind == "random walk"
    assert other.rate == pytest.approx(one.rate * 1e-12 / np.sqrt(1e5), rel=1e-6)


def test_a_constant_is_bounded_and_the_remainder_of_a_run_does_not_disturb():
    still = classify(T, np.full(SAVES, 3.0))
    assert (still.kind, still.rate, still.size) == ("bounded", 0.0, 3.0)
    line = classify(np.append(T, 1.0001), np.append(T, 1.0001))
    assert line.kind == "linear" and set(line.evidence) == set(GROWTH_KINDS)


@pytest.mark.parametrize(
    "t, error, message",
    [
        (T[:10], T[:10], "save at least 16"),
        (T, np.where(T > 0.5, np.nan, T), "not finite"),
        (T**2, T, "equidistant"),
        (T, T[:-1], "do not match"),
    ],
)
def test_what_cannot_be_classified_is_refused(t, error, message):
    with pytest.raises(InvalidInput, match=message):
        classify(t, error)


def test_an_error_of_a_few_last_places_is_round_off():
    """The energy 1.7 with an error that settles within 1.5 units in the last place says nothing of a growth."""
    error = 2.2e-16 * np.round(1.5 * np.exp(-4 * T))
    assert classify(T, error).kind != "bounded"
    found = classify(T, error, scale=1.7)
    assert (found.kind, found.rate, found.round_off) == ("bounded", 0.0, True) and str(found).startswith("round-off, ")
    assert not classify(T, error, scale=0.1).round_off and not classify(T, 0 * T, scale=1.0).round_off


@pytest.mark.parametrize(("rate", "words"), [(-0.4, "settles to a limit, e^(-0.4"), (0.1, "exponential, e^(0.1")])
def test_an_error_that_decays_to_a_limit_is_not_called_growth(rate, words):
    t = np.linspace(0.0, 40.0, 400)
    assert str(classify(t, 0.01 * np.expm1(rate * t))).startswith(words)

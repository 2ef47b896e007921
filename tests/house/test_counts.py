"""Operations of accelerations and steps must not grow: they are compared with benchmarks/counts.toml."""

import pytest
import registry
from benchmarks import counts

from dalembert.models import MODELS

FAST = ("nonholonomic-particle", "rolling-disk", "snakeboard")


def require_no_growth(found):
    worse, _ = counts.compare(found, counts.read_counts())
    advice = "if that is meant: python benchmarks/counts.py --write"
    assert not worse, f"operations grew: {'; '.join(worse)} ({advice})"


@pytest.mark.parametrize("name", FAST)
def test_the_operations_of_a_model_have_not_grown(name):
    require_no_growth(counts.count_all([name], ["acceleration", "lagrange-dalembert", "runge-kutta"]))


@pytest.mark.heavy
@pytest.mark.parametrize("name", MODELS)
def test_the_operations_of_every_model_have_not_grown(name):
    require_no_growth(counts.count_all([name]))


@pytest.mark.heavy
def test_the_operations_beside_those_of_C_have_not_grown():
    require_no_growth(counts.count_cases())


def test_a_count_is_that_of_the_program():
    """z' = y x' for a harmonic particle: (v u - x y)/(1 + y^2) and what is made of it, a dozen operations."""
    system, state = registry.case("particle")
    assert 8 <= counts.count_acceleration(system, state) <= 14


def test_what_is_worse_by_more_than_a_tenth_is_found():
    known = {"acceleration": {"a": 100, "b": 100, "c": 100}}
    worse, better = counts.compare({"acceleration": {"a": 110, "b": 111, "c": 80, "new": 1}}, known)
    assert [words.split(":")[0] for words in worse] == ["acceleration, b", "acceleration, new"]
    assert [words.split(":")[0] for words in better] == ["acceleration, c"]

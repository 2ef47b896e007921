"""What the methods for free rigid bodies refuse, and how they say it."""

import jax.numpy as jnp
import numpy as np
import pytest

from dalembert.analysis.series import modified_field
from dalembert.errors import InvalidInput, UnknownName
from dalembert.groups import SO3
from dalembert.integrators import DiscreteMoserVeselov, ImplicitMidpoint, KineticSplitting, LiePoissonSplitting, Rattle
from dalembert.mechanics import InvariantSystem
from dalembert.models import exact_body, rigid_body, rigid_body_n
from dalembert.simulation import simulate

BODY = rigid_body([0.6, 0.8, 1.0])
TOP = InvariantSystem(SO3(), [1.0, 1.4, 0.7], potential=lambda t, g, p: g[2, 2])
SUSLOV = InvariantSystem(SO3(), [1.0, 1.4, 0.7], annihilator=[0.0, 0.0, 1.0])
BODY4 = rigid_body_n([1.1, 0.8, 0.6, 0.3])
FREE = [DiscreteMoserVeselov(), Rattle(), LiePoissonSplitting(), ImplicitMidpoint()]


def refused(system, method, match, momentum):
    with pytest.raises(InvalidInput, match=match):
        simulate(system, method, system.state(momentum=momentum), step=0.1, steps=1)


@pytest.mark.parametrize("method", FREE, ids=lambda m: m.name)
def test_only_free_bodies(method):
    refused(TOP, method, "potential", [1.0, 0.2, 0.3])
    refused(SUSLOV, method, "constraint", [1.0, 0.2])


@pytest.mark.parametrize("method", [*FREE, KineticSplitting()], ids=lambda m: m.name)
def test_only_so3(method):
    refused(BODY4, method, "SO", np.ones(6))


def test_only_physical_bodies_below_exact():
    needle = rigid_body([1.0, 1.5, 6.0])
    refused(needle, DiscreteMoserVeselov(2), "triangle inequality", [1.0, 0.2, 0.3])
    simulate(needle, DiscreteMoserVeselov(), needle.state(momentum=[1.0, 0.2, 0.3]), step=0.1, steps=1).check()
    flat = rigid_body([1.0, 2.0, 3.0])
    refused(flat, Rattle(), "flat", [1.0, 0.2, 0.3])
    simulate(flat, DiscreteMoserVeselov(2), flat.state(momentum=[1.0, 0.2, 0.3]), step=0.1, steps=1).check()


def test_names():
    with pytest.raises(UnknownName, match="exact"):
        DiscreteMoserVeselov(3)
    with pytest.raises(UnknownName, match="moments"):
        DiscreteMoserVeselov(4, "moment")
    for method in (Rattle, KineticSplitting):
        with pytest.raises(UnknownName):
            method(3)


def test_shapes():
    with pytest.raises(InvalidInput, match="momentum"):
        exact_body([1.0, 2.0, 3.0], [1.0, 2.0], 1.0)
    with pytest.raises(InvalidInput, match="positive"):
        exact_body([1.0, -2.0, 3.0], [1.0, 2.0, 0.0], 1.0)
    with pytest.raises(InvalidInput, match="points"):
        modified_field(BODY, DiscreteMoserVeselov(2), BODY.state(momentum=jnp.ones(3)), 0.0)


def test_failure_is_data():
    run = simulate(BODY, DiscreteMoserVeselov(2), BODY.state(momentum=[1.8, 0.4, -0.9]), step=0.32, steps=5)
    assert run.status == "failed"
    assert run.failed_at == -1
    assert "too large" in run.reason

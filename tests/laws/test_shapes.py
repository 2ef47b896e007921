"""Shapes in the signatures of groups, mechanics and integrators are true: beartype checks them while laws are traced.

Shapes are known when JAX traces, so nothing is compiled. It needs a process of its own: the hook must come before the
first import of dalembert, and functions that beartype wraps have no fingerprint, so that every step would be traced
again. The fast test traces every eighth group and the methods on one system, the heavy one all groups and two systems.
`DALEMBERT_CHECK_SHAPES=1 pytest tests/laws` checks the shapes while all laws run.
"""

import os
import subprocess
import sys
from pathlib import Path

import pytest

TRACE = """
import sys
sys.path[:0] = ["tests", "tests/laws"]
import conftest
from functools import partial
import jax, jax.numpy as jnp, numpy as np
import dalembert as da, registry, test_groups, test_retractions
from dalembert.errors import InvalidInput
from jaxtyping import TypeCheckError

every, systems = int(sys.argv[1]), sys.argv[2:] or list(registry.SYSTEMS)
laws = [partial(test_groups.laws, group) for group in test_groups.GROUPS[::every]]
pairs = [(tau, group) for tau in test_retractions.RETRACTIONS for group in test_retractions.GROUPS[::every]]
laws += [partial(test_retractions.laws, *pair) for pair in pairs]
for law in laws:
    jax.eval_shape(law, *4 * [jnp.zeros(law.args[-1].dim)])
traced = 0
for method in da.integrators.METHODS.values():
    accepted = 0
    for key in systems:
        system, state = registry.case(key)
        try:
            (integrator := method.make({})).require(system, state, 0.1)
        except InvalidInput:
            continue
        def step(state):
            carry, info = integrator.start(system, state, jnp.asarray(0.1))
            return integrator.observe(system, integrator.step(system, carry, jnp.asarray(0.1))[0], jnp.asarray(0.1))
        jax.eval_shape(step, state)
        traced, accepted = traced + 1, accepted + 1
        if accepted == 2:
            break
try:
    da.SO3().exp(jnp.zeros((3, 1)))
except TypeCheckError:
    print(len(laws), "laws and", traced, "steps traced; a wrong shape is caught")
"""


@pytest.mark.parametrize(
    ("every", "systems", "fewest"),
    [(8, ["suslov"], 3), pytest.param(1, [], 30, marks=pytest.mark.heavy)],
    ids=["some", "all"],
)
def test_shapes_hold_and_a_wrong_one_is_caught(every, systems, fewest):
    environment = {**os.environ, "DALEMBERT_CHECK_SHAPES": "1"}
    command = [sys.executable, "-c", TRACE, str(every), *systems]
    root = Path(__file__).parents[2]
    done = subprocess.run(command, cwd=root, env=environment, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr[-3000:]
    assert "laws and" in done.stdout and done.stdout.endswith("steps traced; a wrong shape is caught\n")
    laws, steps = (int(word) for word in done.stdout.split() if word.isdigit())
    assert laws > fewest and steps > fewest

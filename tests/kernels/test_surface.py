"""The front door, `kernels.compile` and `kernels.run`, as a stranger with a JAX step function uses it."""

import runpy
import subprocess
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from dalembert import kernels

EXAMPLE = Path(__file__).parents[2] / "examples" / "compile_a_step.py"
PARAMETERS = {"h": 0.05, "k": np.array([1.0, 2.5])}
CARRY = {"q": np.array([0.3, -0.2]), "p": np.zeros(2), "n": 0}
INPUTS = 0.1 * np.sin(np.arange(24.0))
LANES = 6
MOON = [1.973958175106514, 0.9870817998475792, -0.5933908034356072, -0.27000041383448586]  # after 20 steps


def step(carry, push, parameters):
    """Two pendulums with a common push; the outputs are their energy and the number of the step."""
    h, k = parameters["h"], parameters["k"]
    p = carry["p"] - h * k * jnp.sin(carry["q"]) + h * (0.0 if push is None else push)
    following = {"q": carry["q"] + h * p, "p": p, "n": carry["n"] + 1}
    return following, {"energy": 0.5 * p @ p - k @ jnp.cos(following["q"]), "n": following["n"]}


def scanned(carry=CARRY, inputs=INPUTS, parameters=PARAMETERS):
    return jax.lax.scan(lambda c, u: step(c, u, parameters), jax.tree.map(jnp.asarray, carry), inputs)


def assert_same(a, b, exactly=True):
    for x, y in zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True):
        np.testing.assert_allclose(x, y, rtol=0 if exactly else 1e-13, atol=0 if exactly else 1e-14)


@pytest.mark.parametrize("backend", ["auto", "llvm", "xla"])
def test_a_compiled_step_is_scan(backend):
    result = kernels.compile(step, CARRY, INPUTS, PARAMETERS, backend=backend).run(24)
    carry, outputs = scanned()
    assert_same(result.carry, carry, exactly=False)
    assert_same(result.records, outputs, exactly=False)
    assert result.backend == ("xla" if backend == "xla" else "llvm") and result.records["n"].tolist() == [*range(1, 25)]


def test_run_compiles_and_runs():
    result = kernels.run(step, CARRY, 24, inputs=INPUTS, parameters=PARAMETERS, save_every=8)
    assert_same(result.records, kernels.compile(step, CARRY, INPUTS, PARAMETERS).run(24, save_every=8).records)
    assert result.records["n"].tolist() == [8, 16, 24] and result.carry["n"] == 24


def test_a_run_goes_on_where_another_ended():
    compiled = kernels.compile(step, CARRY, parameters=PARAMETERS)
    first = compiled.run(1000, save_every=1000)
    assert_same(compiled.run(500, carry=first.carry).carry, compiled.run(1500).carry)


def test_a_call_is_one_step():
    compiled = kernels.compile(step, CARRY, INPUTS, PARAMETERS)
    carry, outputs = compiled(CARRY, 0.25, PARAMETERS)
    assert_same((carry, outputs), step(jax.tree.map(jnp.asarray, CARRY), 0.25, PARAMETERS), exactly=False)


def test_lanes_are_single_runs_with_their_own_parameters_and_inputs():
    rng = np.random.default_rng(0)
    carry = {"q": rng.normal(size=(LANES, 2)), "p": rng.normal(size=(LANES, 2)), "n": np.zeros(LANES, int)}
    parameters, inputs = {"h": np.linspace(0.01, 0.06, LANES), "k": PARAMETERS["k"]}, rng.normal(size=(LANES, 24))
    lanes = kernels.compile(step, carry, inputs, parameters, lanes=LANES, axes=(0, 0, {"h": 0, "k": None}))
    together, single = lanes.run(24, save_every=4), kernels.compile(step, CARRY, INPUTS, PARAMETERS)
    assert together.records["energy"].shape == (LANES, 6)
    for i in range(LANES):
        one = jax.tree.map(lambda leaf: leaf[i], carry)
        alone = single.run(
            24, carry=one, inputs=inputs[i], parameters=parameters | {"h": parameters["h"][i]}, save_every=4
        )
        assert_same(alone.records, jax.tree.map(lambda leaf: leaf[i], together.records))
        stepped = lanes(carry, inputs[:, 0], parameters)
        assert_same(
            jax.tree.map(lambda leaf: leaf[i], stepped[0]),
            single(one, inputs[i, 0], {"h": parameters["h"][i], "k": parameters["k"]})[0],
        )
    wider = jax.tree.map(lambda leaf: np.concatenate([leaf, leaf]), (carry, inputs, parameters["h"]))
    more = lanes.run(24, carry=wider[0], inputs=wider[1], parameters=parameters | {"h": wider[2]}, save_every=4)
    assert_same(jax.tree.map(lambda leaf: leaf[LANES:], more.records), together.records)


def test_new_values_are_not_compiled_again():
    traces = []

    def counted(carry, inputs, parameters):
        traces.append(1)
        return step(carry, inputs, parameters)

    compiled = kernels.compile(counted, CARRY, parameters=PARAMETERS)
    before = len(traces)
    for h in (0.01, 0.02):
        compiled.run(10, carry=CARRY | {"n": 5}, parameters=PARAMETERS | {"h": h})
    assert len(traces) == before


def test_a_gradient_goes_through_a_run():
    compiled = kernels.compile(step, CARRY, parameters=PARAMETERS)
    final = lambda h: jnp.sum(compiled.run(10, parameters=PARAMETERS | {"h": h}).carry["q"] ** 2)
    np.testing.assert_allclose(jax.grad(final)(0.05), (final(0.05 + 1e-6) - final(0.05 - 1e-6)) / 2e-6, rtol=1e-7)


def test_a_step_without_outputs_has_no_records():
    assert kernels.run(lambda x, u, p: (x / 2, None), 8.0, 3).records is None
    assert kernels.run(lambda x, u, p: (x / 2, None), 8.0, 3).carry == 1.0


def test_auto_takes_xla_and_says_why():
    result = kernels.run(lambda x, u, p: (jnp.linalg.cholesky(x), None), np.eye(2), 3)
    assert result.backend == "xla" and "no scalar rule for the primitive 'cholesky'" in result.note


LONG = np.random.default_rng(0).normal(size=(700, 700))
FAULTS = {
    "unknown primitive": ("primitive 'cholesky'", lambda x, u, p: (jnp.linalg.cholesky(x), None), np.eye(2)),
    "too many operations": ("more than 800000 scalar operations", lambda x, u, p: (LONG @ x, None), np.ones(700)),
    "single precision": ("no type float32", lambda x, u, p: (x.astype(jnp.float32).astype(float), None), np.ones(2)),
    "one result": ("returns two things", lambda x, u, p: x, np.ones(2)),
    "another shape": (
        r"carry\['x'\] is float64\[3\], not float64\[2\]",
        lambda c, u, p: ({"x": jnp.ones(3)}, None),
        {"x": np.ones(2)},
    ),
    "another type": (r"carry is float64\[\], not int64\[\]", lambda n, u, p: (n + 0.5, None), 1),
    "another structure": ("carry has the structure", lambda c, u, p: ([c], None), 1.0),
}


@pytest.mark.parametrize("name", FAULTS)
def test_a_step_that_cannot_run_is_told_why(name):
    message, function, carry = FAULTS[name]
    with pytest.raises((kernels.LoweringError, ValueError), match=message):
        kernels.compile(function, carry, backend="llvm")


def test_wrong_arguments_of_a_run_are_named():
    compiled = kernels.compile(step, CARRY, INPUTS, PARAMETERS)
    with pytest.raises(ValueError, match="steps = 10 must be a multiple of save_every = 4"):
        compiled.run(10, save_every=4)
    with pytest.raises(ValueError, match=r"compiled for other shapes: carry\['q'\] is float64\[3\], not float64\[2\]"):
        compiled.run(24, carry=CARRY | {"q": np.zeros(3)})
    with pytest.raises(ValueError, match="parameters has the structure"):
        compiled.run(24, parameters={"h": 0.1})
    with pytest.raises(ValueError, match="24 rows for 12 steps"):
        compiled.run(12)
    with pytest.raises(ValueError, match="number of lanes"):
        kernels.compile(
            step, CARRY | {"n": np.zeros(4, int), "p": np.zeros((3, 2))}, axes=({"q": None, "p": 0, "n": 0}, None, None)
        )


STRANGER = """
import sys
from dalembert import kernels
print({name.split(".")[1] for name in sys.modules if name.startswith("dalembert.")} - {"_lazy", "errors", "kernels"})
import jax, jax.numpy as jnp
jax.config.update("jax_enable_x64", False)
step = lambda x, u, p: (jnp.sin(x), x)
result = kernels.run(step, 0.5, 3)
print(result.backend, result.carry.dtype, result.note)
"""


def test_the_compiler_stands_alone_and_says_what_it_misses_without_64_bits():
    done = subprocess.run([sys.executable, "-c", STRANGER], capture_output=True, text=True, check=True)
    alone, single = done.stdout.strip().splitlines()
    assert alone == "set()"
    assert (
        single.startswith("xla float32 ran on XLA: scalar programs have no type float32")
        and "turns on doubles" in single
    )


def test_the_example_runs(capsys):
    found = runpy.run_path(str(EXAMPLE))["main"](2000)
    assert 1e-4 < found["error"] < 0.1 and found["ratio"] > 0
    np.testing.assert_array_equal(found["alone"].carry, found["together"].carry[7])
    np.testing.assert_allclose(found["moon"].carry, MOON, rtol=1e-9)
    assert "bit for bit: True" in capsys.readouterr().out

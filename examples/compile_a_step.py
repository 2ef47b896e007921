"""Compile a step of your own: an implicit step of the double pendulum, written in plain JAX.

    python compile_a_step.py [STEPS]

The step is compiled once, run for a million steps, run as an ensemble of 1000 initial states, and timed beside
`jax.lax.scan`. Only `dalembert.kernels` is used: the compiler knows nothing of mechanics. Derivatives and a Newton
iteration in a `while_loop` are ordinary JAX. `kernels.eliminate` solves the linear equations, because JAX's own LU
decomposition is a library call, which cannot be compiled into the step.
"""

import sys
import time
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from dalembert import kernels

PARAMETERS = {"h": 0.01, "g": 9.81}
START = np.array([2.0, 1.0, 0.0, 0.0])
LANES = 1000


def hamiltonian(z: jax.Array, g: Any) -> jax.Array:
    """The energy of two unit masses on unit rods: z = (q1, q2, p1, p2), angles from the vertical."""
    q1, q2, p1, p2 = z
    kinetic = (p1**2 + 2 * p2**2 - 2 * p1 * p2 * jnp.cos(q1 - q2)) / (2 * (1 + jnp.sin(q1 - q2) ** 2))
    return kinetic - g * (2 * jnp.cos(q1) + jnp.cos(q2))


def step(z: jax.Array, inputs: None, parameters: dict[str, Any]) -> tuple[jax.Array, jax.Array]:
    """(carry, inputs, parameters) -> (carry, outputs): the implicit midpoint rule, whose output is the energy."""
    h, g = parameters["h"], parameters["g"]

    def residual(end: jax.Array) -> jax.Array:
        slope = jax.grad(hamiltonian)((z + end) / 2, g)
        return end - z - h * jnp.concatenate([slope[2:], -slope[:2]])

    def improve(state: tuple[jax.Array, jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array, jax.Array]:
        end, _, count = state
        update = kernels.eliminate(jax.jacfwd(residual)(end), residual(end)[:, None])[0][:, 0]
        return end - update, jnp.max(jnp.abs(update)), count + 1

    end, _, _ = jax.lax.while_loop(lambda state: (state[1] > 1e-13) & (state[2] < 20), improve, (z, jnp.inf, 0))
    return end, hamiltonian(end, g)


def seconds(function: Callable[[], Any]) -> float:
    """The time of the second call: the first one compiles."""
    function()
    begin = time.perf_counter()
    function()
    return time.perf_counter() - begin


def main(steps: int = 1_000_000) -> dict[str, Any]:
    """Run, compare, and return what was found."""
    few = max(1, steps // 100)
    compiled = kernels.compile(step, START, parameters=PARAMETERS)
    single = compiled.run(steps, save_every=few)
    error = float(np.abs(single.records - hamiltonian(START, PARAMETERS["g"])).max())
    print(f"{steps} steps on {single.backend}, {compiled.program.operations} operations for a Newton iteration")
    print(f"the energy of {single.saves} records is off by at most {error:.1e}")

    moon = compiled.run(few, parameters=PARAMETERS | {"g": 1.62})  # another parameter, the same machine code
    print(f"on the moon z = {moon.carry}")

    starts = START + 1e-3 * np.random.default_rng(0).normal(size=(LANES, 4))
    ensemble = kernels.compile(step, starts, parameters=PARAMETERS, lanes=LANES)
    together = ensemble.run(few, save_every=few)
    alone = compiled.run(few, carry=starts[7], save_every=few)
    print(f"{LANES} starts 1e-3 apart spread to {together.carry.std(0).max():.1e} in {few} steps")
    print(f"lane 7 is the single run, bit for bit: {np.array_equal(alone.carry, together.carry[7])}")

    scan = jax.jit(lambda z, p: jax.lax.scan(lambda z, _: (step(z, None, p)[0], None), z, length=few)[0])
    by_scan = seconds(lambda: jax.block_until_ready(scan(START, PARAMETERS))) / few
    by_kernel = seconds(lambda: compiled.run(few, save_every=few)) / few
    print(
        f"{1e6 * by_kernel:.2f} us a step; jax.lax.scan takes {1e6 * by_scan:.2f} us: ratio {by_scan / by_kernel:.0f}"
    )
    return {"error": error, "moon": moon, "together": together, "alone": alone, "ratio": by_scan / by_kernel}


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))

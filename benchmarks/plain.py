"""The schemes of the benchmarks as a JAX user writes them: discrete equations, `jax.jacfwd`, `jnp.linalg.solve`,
`jit(vmap(loop))`.

Nothing of dalembert's step is in here. Every scheme solves for its fewest unknowns, starts Newton from the last
solution, evaluates
residual and Jacobian in one pass, and stops when an update is at round-off. `python benchmarks/plain.py` compares the
results with
dalembert's after 50 steps.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from _cases import Case, body, disk, members, particle, sleigh, suslov
from _timing import table
from jax import Array, lax

import dalembert as da

TOLERANCE, ITERATIONS = 1e-13, 20


class Plain(NamedTuple):
    """A scheme for one member: what it carries from a state on, and how a step moves that. The configuration comes
    first.
    """

    start: Callable[[da.State], Any]
    step: Callable[[Any], Any]


def newton(residual: Callable[[Array], Array], guess: Array) -> Array:
    def both(x):
        value = residual(x)
        return value, value

    def body(carry):
        x, _, count = carry
        jacobian, value = jax.jacfwd(both, has_aux=True)(x)
        update = jnp.linalg.solve(jacobian, value)
        return x - update, jnp.max(jnp.abs(update)), count + 1

    def unfinished(carry):
        x, size, count = carry
        return (size > TOLERANCE * (1.0 + jnp.max(jnp.abs(x)))) & (count < ITERATIONS)

    return lax.while_loop(unfinished, body, (guess, jnp.inf, 0))[0]


# ---- a body on SO(3), free or with w in d: B^T M(W) = B^T W_k^T M_k with W = cay(B x), M = vee(W J - J W^T)/h


def hat(w: Array) -> Array:
    return jnp.array([[0.0, -w[2], w[1]], [w[2], 0.0, -w[0]], [-w[1], w[0], 0.0]])


def cayley(w: Array) -> Array:
    x = hat(w)
    return jnp.eye(3) + (x + 0.5 * x @ x) / (1.0 + 0.25 * w @ w)


def plain_body(case: Case) -> Plain:
    h, basis, inertia = case.step, case.system.subspace, case.system.inertia
    mass = 0.5 * jnp.trace(inertia) * jnp.eye(3) - inertia

    def momentum(w: Array) -> Array:
        moved = w @ mass
        return jnp.array([moved[2, 1] - moved[1, 2], moved[0, 2] - moved[2, 0], moved[1, 0] - moved[0, 1]]) / h

    def start(state):
        target = basis.T @ state.momentum
        x = newton(lambda y: basis.T @ momentum(cayley(basis @ y)) - target, jnp.zeros_like(target))
        return state.g, momentum(cayley(basis @ x)), x

    def step(carry):
        g, m, x = carry
        displacement = cayley(basis @ x)
        target = basis.T @ (displacement.T @ m)
        x = newton(lambda y: basis.T @ momentum(cayley(basis @ y)) - target, x)
        return g @ displacement, momentum(cayley(basis @ x)), x

    return Plain(start, step)


# ---- the sleigh on SE(2): l_d(W) = tr((W - 1) J (W - 1)^T)/2h, W = cay(w, v1, 0)


def hat2(xi: Array) -> Array:
    return jnp.array([[0.0, -xi[0], xi[1]], [xi[0], 0.0, xi[2]], [0.0, 0.0, 0.0]])


def cayley2(xi: Array) -> Array:
    w, v = xi[0], xi[1:]
    scale = 1.0 / (1.0 + 0.25 * w * w)
    cosine, sine = (1.0 - 0.25 * w * w) * scale, w * scale
    x, y = scale * (v[0] - 0.5 * w * v[1]), scale * (v[1] + 0.5 * w * v[0])
    return jnp.array([[cosine, -sine, x], [sine, cosine, y], [0.0, 0.0, 1.0]])


def inverse2(g: Array) -> Array:
    turned = g[:2, :2].T
    return jnp.eye(3).at[:2, :2].set(turned).at[:2, 2].set(-turned @ g[:2, 2])


def vee2(matrix: Array) -> Array:
    return jnp.array([matrix[1, 0], matrix[0, 2], matrix[1, 2]])


def coadjoint2(g: Array, mu: Array) -> Array:
    """<Ad*_g mu, xi> = <mu, g xi g^-1>."""
    back = inverse2(g)
    return jnp.stack([mu @ vee2(g @ hat2(e) @ back) for e in np.eye(3)])


def plain_sleigh(case: Case) -> Plain:
    h, mass = case.step, case.system.mass_matrix()

    def discrete_lagrangian(w):
        off = w - jnp.eye(3)
        return jnp.trace(off @ mass @ off.T) / (2 * h)

    def momentum(x):
        w = cayley2(jnp.array([x[0], x[1], 0.0]))
        return jax.grad(lambda eta: discrete_lagrangian(w + hat2(eta) @ w))(jnp.zeros(3))

    def start(state):
        x = newton(lambda y: momentum(y)[:2] - state.momentum[:2], jnp.zeros(2))
        return state.g, momentum(x), x

    def step(carry):
        g, m, x = carry
        displacement = cayley2(jnp.array([x[0], x[1], 0.0]))
        target = coadjoint2(displacement, m)[:2]
        x = newton(lambda y: momentum(y)[:2] - target, x)
        return g @ displacement, momentum(x), x

    return Plain(start, step)


# ---- the particle on R^3: p = -D1 L_d(q, q1) - A(q)^T l, A((q + q1)/2) (q1 - q) = 0, L_d = h L((q + q1)/2, (q1 - q)/h)


def plain_particle(case: Case) -> Plain:
    h = case.step

    def constraint(q):
        return jnp.array([-q[1], 0.0, 1.0])

    def discrete_lagrangian(q0, q1):
        q, v = 0.5 * (q0 + q1), (q1 - q0) / h
        return h * (0.5 * v @ v - 0.5 * (q[0] ** 2 + q[1] ** 2))

    def start(state):
        pull = jnp.array([-state.g[0], -state.g[1], 0.0])
        return state.g + 0.5 * h * state.xi, state.xi + 0.5 * h * pull, jnp.append(state.xi, 0.0)

    def step(carry):
        q, p, x = carry

        def residual(y):
            end = q + h * y[:3]
            balance = -jax.grad(discrete_lagrangian)(q, end) - p - constraint(q) * y[3]
            return jnp.append(balance, constraint(0.5 * (q + end)) @ y[:3])

        x = newton(residual, x)
        end = q + h * x[:3]
        return end, jax.grad(discrete_lagrangian, argnums=1)(q, end), x

    return Plain(start, step)


# ---- the disk on SE(2) x SO(2): B^T (Ad*_{W^-1} mu1 - p) = 0, T(xi)^T mu1 = I xi/h, W = cay(xi/2)^2, T = W^-1 dW/dxi


def plain_disk(case: Case) -> Plain:
    h, basis, inertia = case.step, case.system.subspace, case.system.inertia

    def plane(xi):
        half = cayley2(0.5 * xi)
        return half @ half

    def momenta(xi):
        legendre, back = inertia @ xi / h, inverse2(plane(xi[:3]))
        after = jnp.linalg.solve(jax.jacfwd(lambda eta: vee2(back @ plane(eta)))(xi[:3]).T, legendre[:3])
        wheel = legendre[3] * (1.0 + (0.25 * xi[3]) ** 2)  # of the angle 4 arctan(xi4/4)
        return jnp.append(coadjoint2(back, after), wheel), jnp.append(after, wheel)

    def start(state):
        place, wheel = state.g
        unknowns = jnp.stack([state.xi[0], state.xi[3]])  # the disk turns and rolls
        return place, jnp.arctan2(wheel[1, 0], wheel[0, 0]), state.momentum, h * unknowns

    def step(carry):
        g, angle, p, x = carry
        target = basis.T @ p
        x = newton(lambda y: basis.T @ momenta(basis @ y)[0] - target, x)
        xi = basis @ x
        return g @ plane(xi[:3]), angle + 4.0 * jnp.arctan(0.25 * xi[3]), momenta(xi)[1], x

    return Plain(start, step)


SCHEMES = {
    "Suslov, Moser-Veselov": plain_body,
    "Chaplygin sleigh": plain_sleigh,
    "particle": plain_particle,
    "rolling disk": plain_disk,
    "rigid body, Newton": plain_body,
}


def runner(case: Case, states: da.State) -> Callable[[int], Any]:
    """A call that takes all members some steps from their states and gives what they carry then, on whatever device JAX
    uses.
    """
    start, step = SCHEMES[case.name](case)
    before = jax.block_until_ready(jax.jit(jax.vmap(start))(states))

    def run(carry, steps):
        return lax.fori_loop(0, steps, lambda _, now: step(now), carry)

    mapped = jax.jit(jax.vmap(run, in_axes=(0, None)))
    return lambda steps: jax.block_until_ready(mapped(before, steps))


def disagreement(case: Case, count: int = 64, steps: int = 50) -> float:
    """max |plain - dalembert| over the configurations of all members after some steps."""
    states = members(case, count)
    theirs = runner(case, states)(steps)[0]
    ours = da.ensemble(case.system, case.integrator, states, step=case.step, steps=steps, save_every=steps)
    last: Any = ours.g[0] if isinstance(ours.g, tuple) else ours.g
    if (
        case.name == "particle"
    ):  # saved is the point between two nodes: half a step of its velocity further lies the node
        last = last + 0.5 * case.step * ours.xi
    return float(np.max(np.abs(np.asarray(last)[:, -1] - np.asarray(theirs))))


def main() -> None:
    rows = [[case.name, f"{disagreement(case):.0e}"] for case in (suslov(), sleigh(), particle(), disk(), body())]
    table(["plain JAX against dalembert", "after 50 steps"], rows)
    if any(float(row[1]) > 1e-10 for row in rows):
        raise SystemExit("the schemes differ by more than 1e-10")


if __name__ == "__main__":
    main()

"""Small steps that use what real steps use: Newton by custom_root and while_loop, pivoted elimination, sin and cos."""

import jax
import jax.numpy as jnp
from jax import lax


def eliminate(a, b):
    """Solve a x = b by Gaussian elimination; the pivot row is chosen by `where`."""
    n = len(b)
    rows = jnp.concatenate([a, b[:, None]], 1)
    for k in range(n):
        column = jnp.where(jnp.arange(n) >= k, jnp.abs(rows[:, k]), -1.0)
        p = jnp.argmax(column)
        pivot, other = rows[p], rows[k]
        rows = jnp.where((jnp.arange(n) == p)[:, None], other, rows).at[k].set(pivot)
        factors = jnp.where(jnp.arange(n) > k, rows[:, k] / rows[k, k], 0.0)
        rows = rows - factors[:, None] * rows[k]
    x = jnp.zeros(n)
    for k in reversed(range(n)):
        x = x.at[k].set((rows[k, n] - rows[k, :n] @ x) / rows[k, k])
    return x


def newton(residual, start):
    """Iterate until the update stops shrinking, at most 20 times."""
    jacobian = jax.jacfwd(residual)

    def wants_more(carry):
        _, size, before, count = carry
        return (count < 20) & (size < before) & (size > 0.0)

    def iterate(carry):
        x, size, _, count = carry
        update = eliminate(jacobian(x), residual(x))
        return x - update, jnp.max(jnp.abs(update)), size, count + 1

    x, _, _, count = lax.while_loop(wants_more, iterate, (start, 1e300, jnp.inf, 0.0))
    return x, count


def solve(residual, start):
    """The root, with derivatives by the implicit function theorem."""

    def linear(g, y):
        jacobian = jax.jacfwd(g)(jnp.zeros_like(y))
        return jnp.stack([eliminate(jacobian, e) for e in jnp.eye(len(y))], 1) @ y

    x, count = lax.custom_root(residual, start, newton, linear, has_aux=True)
    return x, lax.stop_gradient(count)


def field(p, t, x):
    """A nonlinear, non-autonomous vector field on R^3."""
    w = p["inertia"] @ x
    return jnp.cross(x, w) / p["scale"] + jnp.array([jnp.sin(x[1] + t), jnp.cos(x[0]), -jnp.sin(x[2])])


def advance(consts, carry, u):
    """Implicit midpoint; a lane whose state leaves |x| < limit is frozen with status 1."""
    h, x, t = consts["h"], carry["x"], carry["t"]
    push = 0.0 if u is None else u

    def residual(y):
        return y - x - h * (field(consts["p"], t + h / 2, (x + y) / 2) + push)

    y, count = solve(residual, x + h * field(consts["p"], t, x))
    fine = jnp.all(jnp.isfinite(y)) & (jnp.max(jnp.abs(y)) < consts["limit"]) & (carry["status"] == 0)
    keep = lambda new, old: jnp.where(fine, new, old)
    return {
        "x": keep(y, x),
        "t": keep(t + h, t),
        "iterations": carry["iterations"] + keep(count.astype(int), 0),
        "status": jnp.where(fine, carry["status"], 1),
        "alive": fine,
    }


def observe(consts, carry):
    return {
        "x": carry["x"],
        "energy": 0.5 * carry["x"] @ consts["p"]["inertia"] @ carry["x"],
        "alive": carry["alive"],
        "status": carry["status"],
    }


def consts(h=0.01):
    inertia = jnp.array([[3.0, 0.1, 1.0], [0.1, 4.0, 0.5], [1.0, 0.5, 5.0]])
    return {"h": h, "p": {"inertia": inertia, "scale": 1.7}, "limit": 50.0}


def start(x=(0.3, -0.7, 1.1)):
    return {"x": jnp.array(x), "t": 0.0, "iterations": 0, "status": 0, "alive": True}

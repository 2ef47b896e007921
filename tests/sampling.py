"""Where group and retraction laws are sampled: at 0, on both sides of every series cut, near pi."""

import functools

import jax
import jax.numpy as jnp
import numpy as np

from dalembert.groups import Group, Rotations
from dalembert.groups.functions import CUT, RADIUS
from dalembert.kernels import evaluate

CUTS = [factor * cut for cut in (CUT, RADIUS, 2 * RADIUS) for factor in (0.999, 1.001)]
SIZES = [0.0, 1e-9, 1e-5, 0.1, 1.0, *CUTS, 3.1, np.pi - 1e-6]


def angle(group, xi):
    """The largest angle by which hat(xi) turns."""
    return max(np.abs(np.linalg.eigvals(hat)).max() for hat in jax.tree.leaves(hats(group)(xi)))


@functools.cache
def hats(group):
    return jax.jit(group.hat)


@functools.cache
def translations(group):
    """Which coordinates turn nothing."""
    return np.array([angle(group, unit) == 0 for unit in np.eye(group.dim)])


def turning(group, size, rng):
    """A random algebra element that turns by the angle `size`, its translations of order one."""
    xi = rng.normal(size=group.dim)
    return xi * np.where(translations(group), 1.0, size / (angle(group, xi) or 1.0))


@functools.cache
def brackets(group):
    return jax.jit(jax.jacfwd(group.ad, argnums=1))


def is_regular(group, xi):
    """Whether dexp is far from singular at xi: ad_xi has no eigenvalue near 2 pi i, as it has near -1 in SU(2)."""
    return np.abs(np.abs(np.linalg.eigvals(brackets(group)(xi, xi)).imag) - 2 * np.pi).min() > 0.1


def samples(group):
    """xi: 0, then turns by each of SIZES at which exp has a logarithm; eta, zeta, mu: generic."""
    rng = np.random.default_rng(7)
    xi = [np.zeros(group.dim), *(turning(group, size, rng) for size in SIZES)]
    xi = [x for x in xi if is_regular(group, x)]
    return np.array(xi), *rng.normal(size=(3, len(xi), group.dim))


def compiled(function):
    """One compilation for all samples, without the optimisations that take XLA longest."""
    return jax.jit(jax.vmap(function), compiler_options={"xla_backend_optimization_level": 0})


def on_samples(group, function):
    """What `function` gives on every sample of a group, by native code where the logarithm is a closed form."""
    given = samples(group)
    iterative = Group.principal_log, Rotations.principal_log
    iterates = any(type(part).principal_log in iterative for part in parts(group))
    if iterates:
        return compiled(function)(*given)
    return evaluate(lambda _, sample: function(*sample), (), given, lanes=len(given[0]))


def parts(group):
    """The factors of a group, and the rotations in them."""
    return [part for factor in group.factors for part in (factor, getattr(factor, "rotations", factor))]


def gap(a, b):
    """The largest difference between two points, coordinates or matrices."""
    return functools.reduce(jnp.maximum, jax.tree.leaves(jax.tree.map(lambda x, y: jnp.abs(x - y).max(), a, b)))

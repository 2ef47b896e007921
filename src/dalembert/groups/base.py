"""What a Lie group is: `Group`, whose defaults need only `hat` and `vee`; matrix groups of one's own; R^n; products.

Retractions are maps tau from the algebra to the group with tau(0) = e, dtau(0) = 1 and tau(-xi) = tau(xi)^-1.

A group answers for itself what others want to know of it: the axes of its velocities, the coordinates in which people
give its elements, the variables for series, the picture that shows a motion on it. No other package asks for its class.
"""

from __future__ import annotations

import abc
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from itertools import accumulate, chain
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from ..errors import InvalidInput, UnknownName
from ..kernels import compile_function
from ..numerics import TOLERANCE, TRACED_TOLERANCE, array, html_table, is_traced, parse, solve, vector
from ..numerics.types import Angles, Covector, Element, Float, LinearMap, Matrix, Number, Velocity
from .coordinates import EULER, PATHS, AlgebraAxis, Numbers
from .functions import cosc, exponential, frobenius, sinc

UNROLLED = 6
MAX_DIMENSION = 64  # of an algebra whose dimension is found by trial
MAX_ITERATIONS = 60  # of Newton's iteration for the square root of a matrix
MAX_ROOTS = 12  # square roots before the series of a logarithm


@dataclass(frozen=True)
class Group(abc.ABC):
    """A Lie group: what configurations of a system are. Every method takes one element (use `jax.vmap` for many).

    Velocities are left-trivialised, xi = g^-1 g'; velocities and covectors are vectors of length `dim`. Two groups are
    equal if their class and fields are, and groups are static in JAX's trees.
    """

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        jax.tree_util.register_static(cls)

    @property
    def dim(self) -> int:
        """Dimension of the algebra."""
        return _dimension(self)

    def __str__(self) -> str:
        return type(self).__name__

    def _repr_html_(self) -> str:
        """Dimension and velocities, for a notebook."""
        return html_table(str(self), {"dimension": self.dim, "velocity": ", ".join(axis.name for axis in self.axes())})

    def __mul__(self, other: Group) -> Group:
        """The direct product, of all factors of both."""
        if not isinstance(other, Group):
            return NotImplemented
        return Product((*self.factors, *other.factors))

    @property
    def factors(self) -> tuple[Group, ...]:
        """The groups this one is the product of: itself, unless it is a `Product`."""
        return (self,)

    @property
    def is_flat(self) -> bool:
        """Whether elements are vectors that add: R^n."""
        return False

    def is_rotation_group(self, size: int | None = None) -> bool:
        """Whether this is SO(size), or any SO(n)."""
        return False

    def is_motion_group(self, size: int | None = None) -> bool:
        """Whether this is SE(size), or any SE(n)."""
        return False

    @abc.abstractmethod
    def hat(self, xi: Velocity) -> Any:
        """The matrix of the algebra element with coordinates xi."""

    @abc.abstractmethod
    def vee(self, matrix: Any) -> Velocity:
        """Coordinates of an algebra element: vee(hat(xi)) = xi."""

    @property
    def side(self) -> int:
        """The k of matrices k x k."""
        return _side(self)

    def identity(self) -> Element:
        """The unit e."""
        return array(np.eye(self.side))

    def compose(self, g: Element, h: Element) -> Element:
        """The product g h."""
        return g @ h

    def inverse(self, g: Element) -> Element:
        """The inverse g^-1."""
        return solve(g, jnp.eye(self.side))

    def matrix(self, g: Element) -> Any:
        """The defining matrix of g (on a product: a tuple of them)."""
        return g

    def exp(self, xi: Velocity) -> Element:
        """The exponential map: where g' = g xi leads from the identity in time 1."""
        x = self.hat(xi)
        return exponential(x, jnp.sum(x * x))

    def principal_log(self, g: Element) -> Velocity:
        """The value of `log`, never differentiated.

        By square roots, until g is near 1, and a series there; each root costs the bit that it halves.
        """

        def is_far(state: tuple[Array, Array]) -> Array:
            return (jnp.max(jnp.abs(state[0] - jnp.eye(self.side))) > 0.4) & (state[1] < 2.0**MAX_ROOTS)

        root, power = jax.lax.while_loop(is_far, lambda s: (_square_root(s[0]), 2.0 * s[1]), (g, jnp.ones(())))
        one = jnp.eye(self.side)
        z = solve(root + one, root - one)  # log X = 2 atanh((X - 1)(X + 1)^-1)
        series = one / 29.0
        for k in range(27, 0, -2):
            series = one / k + z @ z @ series
        return power * self.vee(2.0 * (z @ series))

    def cayley(self, xi: Velocity) -> Element:
        """The Cayley map (1 - xi/2)^-1 (1 + xi/2) in the defining representation."""
        require_cayley(self)
        half, one = 0.5 * self.hat(xi), jnp.eye(self.side)
        return solve(one - half, one + half)

    def principal_cayley_inverse(self, g: Element) -> Velocity:
        """The value of `cayley_inverse`, never differentiated."""
        require_cayley(self)
        one = jnp.eye(self.side)
        return self.vee(2.0 * solve(g + one, g - one))

    def Ad(self, g: Element, xi: Velocity) -> Velocity:
        """The adjoint action Ad_g xi = g xi g^-1."""
        return self.vee(g @ self.hat(xi) @ self.inverse(g))

    def ad(self, xi: Velocity, eta: Velocity) -> Velocity:
        """The Lie bracket [xi, eta]."""
        x, y = self.hat(xi), self.hat(eta)
        return self.vee(x @ y - y @ x)

    def velocity(self, g: Element, dg: Element) -> Velocity:
        """xi = g^-1 dg of a tangent vector dg at g."""
        return self.vee(self.inverse(g) @ dg)

    def tangent(self, g: Element, xi: Velocity) -> Element:
        """g xi, the tangent vector at g with velocity xi."""
        return jnp.matmul(g, self.hat(xi))

    def element(self, value: Any) -> Element:
        """What a user gave, checked (`InvalidInput` says what is allowed) and projected onto the group."""
        return self.corrected(parse(value, str(self), {(self.side, self.side): "a matrix"}))

    def corrected(self, matrix: Matrix) -> Matrix:
        """A matrix projected onto the group, unless it is too far from it."""
        made, flaws = _examine(self, matrix)
        if is_traced(matrix):  # nobody can refuse it: it is NaN, and so is what depends on it
            return made * jnp.where(self.is_near(*flaws), 1.0, jnp.nan)
        self.refuse(matrix, *map(float, flaws))
        return made

    def flaws(self, g: Matrix) -> tuple[Number, ...]:
        """Numbers that tell how far a matrix is from the group, and why `refuse` may refuse it."""
        return (self.distance(g),)

    def is_near(self, *flaws: Any) -> Any:
        """Whether a traced matrix with these `flaws` is an element but for round-off, that of 32 bits included."""
        return flaws[0] <= TRACED_TOLERANCE

    def examine(self, g: Element) -> tuple[Element, tuple[Any, ...]]:
        """What has the form of an element, projected onto the group, and its `flaws`."""
        return self.normalise(g), self.flaws(g)

    def has_form(self, value: Any) -> bool:
        """Whether a value has the form of an element, so that `element` need only `examine` it and may `refuse` it."""
        return _is_doubles(value, (self.side, self.side)) and _only_projects(type(self))

    def refuse(self, matrix: Element, *flaws: Any) -> None:
        """Refuse a matrix with these `flaws` if it is too far from the group."""
        if not flaws[0] <= TOLERANCE:
            raise InvalidInput(
                f"a matrix in {self} may be {TOLERANCE:g} away from the group, but it is {flaws[0]:.3g}: "
                f"{np.asarray(matrix).tolist()}"
            )

    def distance(self, g: Element) -> Number:
        """Distance from the group: |R^T R - 1| (Frobenius) of the rotation parts; here |g - normalise(g)|."""
        return frobenius(g - self.normalise(g))

    def normalise(self, g: Element) -> Element:
        """One Newton-Schulz correction R <- R (3 - R^T R)/2 of the rotation parts.

        Here exp(log g), where the logarithm is projected onto the algebra.
        """
        return self.exp(self.log(g))

    def restore(self, g: Element) -> Element:
        """The same for what left the group by round-off alone: its derivative is taken as if g were in the group."""
        return self.normalise(g)

    def resolvent_fraction(self, xi: Velocity) -> tuple[Any, Any]:
        """(N, c) with (1 - xi/2)^-1 = N/c in the defining representation, polynomials where they are known."""
        one = jnp.eye(self.side)
        return solve(one - 0.5 * self.hat(xi), one), 1.0

    def shift(self, g: Element, eta: Velocity) -> Element:
        """A cheap stand-in g + g eta for g exp(eta), equal to first order: to differentiate at eta = 0."""
        return jax.tree.map(jnp.add, g, self.tangent(g, eta))

    def log(self, g: Element) -> Velocity:
        """The principal logarithm (all angles at most pi); its derivative is d^L exp^-1."""
        return _log(self, g)

    def cayley_inverse(self, g: Element) -> Velocity:
        """The inverse 2 (g - 1)(g + 1)^-1 of the Cayley map, which does not reach angle pi: infinite there."""
        return _cayley_inverse(self, g)

    def Ad_star(self, g: Element, mu: Covector) -> Covector:
        """The coadjoint action Ad*_g mu, dual to `Ad`: <Ad*_g mu, xi> = <mu, Ad_g xi>."""
        return transpose(partial(self.Ad, g), mu)

    def ad_star(self, xi: Velocity, mu: Covector) -> Covector:
        """The dual ad*_xi mu of `ad`: <ad*_xi mu, eta> = <mu, [xi, eta]>."""
        return transpose(partial(self.ad, xi), mu)

    def dexp(self, xi: Velocity, eta: Velocity) -> Velocity:
        """The left derivative of the exponential map, exp(xi)^-1 d/dt exp(xi + t eta) at t = 0."""
        return self.velocity(*jax.jvp(self.exp, (xi,), (eta,)))

    def dexp_inverse(self, xi: Velocity, eta: Velocity) -> Velocity:
        """The inverse of `dexp` in eta."""
        return solve_linear(partial(self.dexp, xi), eta)

    def dcayley(self, xi: Velocity, eta: Velocity) -> Velocity:
        """The left derivative of the Cayley map, cay(xi)^-1 d/dt cay(xi + t eta) at t = 0."""
        return self.velocity(*jax.jvp(self.cayley, (xi,), (eta,)))

    def dcayley_inverse(self, xi: Velocity, eta: Velocity) -> Velocity:
        """The inverse of `dcayley` in eta: (1 + xi/2) eta (1 - xi/2)."""
        half, one = 0.5 * self.hat(xi), jnp.eye(self.side)
        return self.vee((one + half) @ self.hat(eta) @ (one - half))

    def mean_dcayley(self, xi: Velocity) -> Velocity | None:
        """c with (dcay_xi + dcay_{-xi})/2 = 1/c, a number for each coordinate; None where there are none."""
        return None

    def angles(self, g: Element) -> Angles:
        """Principal angles in (-pi, pi] of the planar rotations in g."""
        return jnp.zeros((0,))

    def winding(self, g0: Element, g1: Element) -> Angles:
        """For each angle -1, 0 or +1: crossings of the cut at pi by the rotation of less than pi from g0 to g1."""
        return jnp.zeros((0,))

    def chart(self, g: Element) -> Float[Array, " k"]:
        """The coordinates of g that can be named: x on R^n, the angle of SO(2), angle and position on SE(n), none."""
        return self.angles(g)

    def random(self, key: Array) -> Element:
        """A random element: exp of a standard normal algebra element."""
        return self.exp(jax.random.normal(key, (self.dim,)))

    def series_start(self, g: Element) -> Any:
        """q(0): variables q for the Taylor series of a curve g' = g xi; by default the entries of g themselves."""
        return g

    def series_entries(self, g: Element) -> Any:
        """q(0) where q' depends on g too: variables of which the entries of g are short functions."""
        return self.series_start(g)

    def series_rate(self, q: Any, xi: Velocity) -> Any:
        """q' at the velocity xi."""
        return self.tangent(q, xi)

    def series_element(self, g: Element, q: Any) -> Element:
        """The configuration that q stands for on a curve from g."""
        return q

    def axes(self) -> list[AlgebraAxis]:
        """The components of velocities, in the order of coordinates; `_k` tells the factors of a product apart."""
        return [AlgebraAxis(f"v{i + 1}") for i in range(self.dim)]

    @property
    def picture(self) -> str:
        """What shows a motion: "plane" (poses), "attitude", "body" (in space), "dial" (an angle), "point"; "": none."""
        return ""

    def configuration(self, given: Any) -> Element:
        """An element from numbers (as `element` takes them) or from a table of named coordinates."""
        return self.from_table(given) if isinstance(given, Mapping) else self.element(given)

    def from_table(self, given: Mapping[str, Any]) -> Element:
        """An element from a table of named coordinates; a group without such names refuses."""
        raise InvalidInput(f"a configuration in {self} is a vector; given {dict(given)}")

    def describe(self, g: Element, angles: Any = (), convention: str = "") -> Any:
        """g as `configuration` reads it; `angles` are the unwrapped angles of its planar rotations. None on R^n.

        A rotation of space is a quaternion, or Euler angles where a convention is given.
        """
        return None

    def identity_table(self, convention: str = "") -> Any:
        """The identity as `configuration` reads it."""
        return self.describe(self.identity(), convention=convention) or [0.0] * self.dim

    def along(self, kind: str, g: Any, angles: Any, convention: str = EULER) -> Numbers:
        """Coordinates along a run, (saves, number): "quaternion", "euler", "pose" (theta, x, y), "position".

        Angles are unwrapped, quaternions do not jump to their negative, and Euler angles pass their singular positions
        on the branch that continues them. On a product the first factor that has such coordinates is taken.
        """
        if kind not in PATHS:
            raise UnknownName("coordinates", kind, PATHS)
        if (found := self.path(kind, g, angles, convention)) is None:
            own = [each for each in PATHS if self.path(each, g, angles, convention) is not None]
            raise InvalidInput(f"configurations in {self} have no {kind}; allowed: {', '.join(own) or 'run.g alone'}")
        return found

    def path(self, kind: str, g: Any, angles: Any = (), convention: str = EULER) -> Numbers | None:
        """What `along` gives, None where elements have no such coordinates."""
        return None


@dataclass(frozen=True)
class MatrixGroup(Group):
    """A group of real k x k matrices, given by `hat` and `vee`; everything else has a default.

    `vee` takes any matrix to the coordinates of its part in the algebra. The dimension is found from them unless a
    subclass sets `dim`. A subclass that knows the equations of its group does well to give `distance` and `normalise`,
    which by default go through the logarithm. A configuration is given as {"matrix": g} or {"log": xi}.
    """

    def from_table(self, given: Mapping[str, Any]) -> Matrix:
        for key in given:
            if key not in ("log", "matrix"):
                raise UnknownName(f"coordinate of {self}", key, ("log", "matrix"))
        if len(given) != 1:
            raise InvalidInput(f"a configuration in {self} needs one of log, matrix; given {', '.join(given)}")
        if "matrix" in given:
            return jnp.asarray(self.element(given["matrix"]))
        return jnp.asarray(self.exp(vector(given["log"], self.dim, "log")))

    def describe(self, g: Matrix, angles: Any = (), convention: str = "") -> Any:
        return {"matrix": np.asarray(g).tolist()}

    def identity_table(self, convention: str = "") -> Any:
        return {"log": [0.0] * self.dim}


@dataclass(frozen=True)
class Euclidean(Group):
    """R^n under addition, for systems whose positions are a vector q: elements have shape (n,), velocities are q'.

    Its matrices are the translations [[1, x], [0, 1]] of size n + 1.
    """

    n: int
    is_flat = True
    picture = "point"

    def __post_init__(self) -> None:
        if isinstance(self.n, bool) or not isinstance(self.n, int | np.integer) or self.n < 1:
            raise InvalidInput(f"R^n needs a whole number n >= 1, but n = {self.n!r} was given")

    def __str__(self) -> str:
        return f"R^{self.n}"

    @property
    def dim(self) -> int:
        return self.n

    def identity(self) -> Velocity:
        return array(np.zeros(self.n))

    def compose(self, g: Velocity, h: Velocity) -> Velocity:
        return g + h

    def inverse(self, g: Velocity) -> Velocity:
        return -g

    def matrix(self, g: Velocity) -> Matrix:
        return jnp.eye(self.n + 1) + self.hat(g)

    def hat(self, xi: Velocity) -> Matrix:
        return jnp.pad(xi[:, None], ((0, 1), (self.n, 0)))

    def vee(self, matrix: Matrix) -> Velocity:
        return matrix[: self.n, self.n]

    def exp(self, xi: Velocity) -> Velocity:
        return xi

    cayley = exp

    def normalise(self, g: Velocity) -> Velocity:
        return g

    principal_log = principal_cayley_inverse = normalise

    def Ad(self, g: Velocity, xi: Velocity) -> Velocity:
        return xi

    tangent = Ad

    def ad(self, xi: Velocity, eta: Velocity) -> Velocity:
        return jnp.zeros_like(eta)

    def velocity(self, g: Velocity, dg: Velocity) -> Velocity:
        return dg

    def dexp(self, xi: Velocity, eta: Velocity) -> Velocity:
        return eta

    dexp_inverse = dcayley = dcayley_inverse = dexp

    def mean_dcayley(self, xi: Velocity) -> Velocity:
        return jnp.ones_like(xi)

    def resolvent_fraction(self, xi: Velocity) -> tuple[Matrix, float]:
        return jnp.eye(self.n + 1) + 0.5 * self.hat(xi), 1.0

    def chart(self, g: Velocity) -> Velocity:
        return g

    def element(self, value: Any) -> Velocity:
        return parse(value, str(self), {(self.n,): "a vector"})

    def examine(self, g: Velocity) -> tuple[Velocity, tuple[Any, ...]]:
        return g, ()

    def has_form(self, value: Any) -> bool:
        return _is_doubles(value, (self.n,))

    def refuse(self, matrix: Element, *flaws: Any) -> None:
        """Every vector is an element."""

    def distance(self, g: Velocity) -> Number:
        return jnp.zeros(())


@partial(compile_function, place=False)
def _examine(group: Group, g: Matrix) -> tuple[Matrix, tuple[Number, ...]]:
    """Compiled as one: a process that only reads its input would compile each operation alone."""
    return group.examine(g)


def _is_doubles(value: Any, shape: tuple[int, ...]) -> bool:
    return type(value) is np.ndarray and value.shape == shape and value.dtype == np.float64


@lru_cache(maxsize=128)
def _only_projects(kind: type[Group]) -> bool:
    """Whether a class has no way of its own to read elements."""
    return all(getattr(kind, name).__module__.startswith(__package__) for name in ("element", "corrected"))


Tuple = tuple[Any, ...]


def _call_each_factor(name: str) -> Callable[..., Any]:
    """The method of a product that calls this method of each factor with its share: of a tuple, or of coordinates."""

    def method(self: Product, *arguments: Any) -> Tuple:
        shares = (given if isinstance(given, tuple) else self.split(given) for given in arguments)
        return self._points(lambda group, *share: getattr(group, name)(*share), *shares)

    return method


def _concatenate(name: str) -> Callable[..., Any]:
    """The same, where each factor gives coordinates."""
    points = _call_each_factor(name)
    return lambda self, *arguments: jnp.concatenate(points(self, *arguments))


@dataclass(frozen=True)
class Product(Group):
    """Several groups side by side, such as a pose and a steering angle; `SE2() * SO2()` makes it too.

    Elements are tuples with one entry for each factor; velocities are concatenated.
    """

    groups: tuple[Group, ...]

    def __init__(self, groups: Iterable[Group] = (), *more: Group) -> None:
        given = (groups, *more) if more or isinstance(groups, Group) else groups
        if not isinstance(given, tuple | list) or not all(isinstance(group, Group) for group in given):
            raise InvalidInput(f"a product is made of groups, as Product((SO2(), SE2())); given {given!r}")
        if not given:
            raise InvalidInput("a product needs at least one group, but none was given")
        object.__setattr__(self, "groups", tuple(given))

    def __str__(self) -> str:
        return " x ".join(map(str, self.groups))

    @property
    def dim(self) -> int:
        return sum(group.dim for group in self.groups)

    @property
    def factors(self) -> tuple[Group, ...]:
        return self.groups

    def split(self, xi: Velocity) -> list[Array]:
        """The coordinates of each factor."""
        ends = list(accumulate(group.dim for group in self.groups))
        return [xi[end - group.dim : end] for group, end in zip(self.groups, ends, strict=True)]

    def _points(self, method: Callable[..., Any], *arguments: Iterable[Any]) -> Tuple:
        """What each factor makes of its share of the arguments."""
        return tuple(method(*share) for share in zip(self.groups, *arguments, strict=True))

    identity, matrix = _call_each_factor("identity"), _call_each_factor("matrix")
    compose, inverse = _call_each_factor("compose"), _call_each_factor("inverse")
    hat, exp, cayley = _call_each_factor("hat"), _call_each_factor("exp"), _call_each_factor("cayley")
    tangent = _call_each_factor("tangent")
    normalise, restore = _call_each_factor("normalise"), _call_each_factor("restore")
    series_start, series_rate = _call_each_factor("series_start"), _call_each_factor("series_rate")
    series_element, series_entries = _call_each_factor("series_element"), _call_each_factor("series_entries")
    vee, velocity = _concatenate("vee"), _concatenate("velocity")
    principal_log, principal_cayley_inverse = _concatenate("log"), _concatenate("cayley_inverse")
    Ad, Ad_star, ad, ad_star = (_concatenate(name) for name in ("Ad", "Ad_star", "ad", "ad_star"))
    dexp, dexp_inverse = _concatenate("dexp"), _concatenate("dexp_inverse")
    dcayley, dcayley_inverse = _concatenate("dcayley"), _concatenate("dcayley_inverse")
    angles, winding, chart = _concatenate("angles"), _concatenate("winding"), _concatenate("chart")

    def mean_dcayley(self, xi: Velocity) -> Velocity | None:
        means = [group.mean_dcayley(x) for group, x in zip(self.factors, self.split(xi), strict=True)]
        known = [mean for mean in means if mean is not None]
        return jnp.concatenate(known) if len(known) == len(means) else None

    def resolvent_fraction(self, xi: Velocity) -> tuple[Tuple, float]:
        """The factors have different denominators: 1 is the common one."""
        fractions = (group.resolvent_fraction(x) for group, x in zip(self.factors, self.split(xi), strict=True))
        return tuple(numerator * (1.0 / c) for numerator, c in fractions), 1.0

    def element(self, value: Any) -> Tuple:
        if not isinstance(value, (tuple, list)) or len(value) != len(self.groups):
            given = f"{len(value)} entries; nest them by factor" if isinstance(value, (tuple, list)) else repr(value)
            raise InvalidInput(f"an element of {self} is a tuple of {len(self.groups)} elements; given {given}")
        return self._points(lambda group, x: group.element(x), value)

    def examine(self, g: Tuple) -> tuple[Tuple, Tuple]:
        made = self._points(lambda group, x: group.examine(x), g)
        return tuple(there for there, _ in made), tuple(flaws for _, flaws in made)

    def has_form(self, value: Any) -> bool:
        if type(value) is not tuple or len(value) != len(self.groups):
            return False
        return all(group.has_form(x) for group, x in zip(self.groups, value, strict=True))

    def refuse(self, matrix: Element, *flaws: Any) -> None:
        for group, x, own in zip(self.groups, matrix, flaws, strict=True):
            group.refuse(x, *own)

    def distance(self, g: Tuple) -> Number:
        return frobenius(jnp.stack(self._points(lambda group, x: group.distance(x), g)))

    def axes(self) -> list[AlgebraAxis]:
        axes = [factor.axes() for factor in self.groups]
        names = join_names([[axis.name for axis in own] for own in axes])
        return [axis._replace(name=name) for axis, name in zip(chain(*axes), names, strict=True)]

    def configuration(self, given: Any) -> Tuple:
        if isinstance(given, list | tuple) and len(given) == len(self.groups):
            return self._points(lambda group, x: group.configuration(x), given)
        point: Tuple = super().configuration(given)
        return point

    def from_table(self, given: Mapping[str, Any]) -> Any:
        raise InvalidInput(f"a configuration in {self} is a list with one entry for each factor; given {dict(given)}")

    def describe(self, g: Tuple, angles: Any = (), convention: str = "") -> Any:
        tables = self._points(lambda group, x, turn: group.describe(x, turn, convention), g, self._turns(g, angles))
        return list(tables) if any(tables) else None

    def identity_table(self, convention: str = "") -> Any:
        return [group.identity_table(convention) for group in self.groups]

    def path(self, kind: str, g: Tuple, angles: Any = (), convention: str = EULER) -> Numbers | None:
        found = self._points(lambda group, x, a: group.path(kind, x, a, convention), g, self._turns(g, angles))
        return next((values for values in found if values is not None), None)

    def _turns(self, g: Tuple, angles: Any) -> list[Numbers]:
        """The unwrapped angles (..., a) of each factor; none where none are known."""
        counts = [jax.eval_shape(group.angles, group.identity()).shape[0] for group in self.groups]
        given = np.asarray(angles, float)
        ends = list(accumulate(counts)) if given.size else [0] * len(counts)
        return [given[..., max(end - count, 0) : end] for count, end in zip(counts, ends, strict=True)]


def join_names(names: Sequence[Sequence[str]]) -> list[str]:
    """The names of all factors of a product; a name that several factors have gets the number of its factor."""
    every = list(chain(*map(set, names)))
    return [f"{name}_{k}" if every.count(name) > 1 else name for k, own in enumerate(names) for name in own]


@lru_cache
def _dimension(group: Group) -> int:
    """The smallest n with vee(hat(xi)) = xi for xi in R^n. NumPy refuses an index out of range where JAX does not."""
    for n in range(1, MAX_DIMENSION + 1):
        xi = np.sin(np.arange(1.0, n + 1.0))
        try:
            with jax.ensure_compile_time_eval():
                same = np.asarray(group.vee(group.hat(xi)))
        except (IndexError, TypeError, ValueError):
            continue
        if same.shape == (n,) and np.allclose(same, xi, rtol=0, atol=1e-12):
            return n
    raise InvalidInput(f"vee(hat(xi)) = xi holds in no dimension up to {MAX_DIMENSION} on {group}; set `dim`")


@lru_cache
def _side(group: Group) -> int:
    return int(jax.eval_shape(group.hat, np.zeros(group.dim)).shape[0])


@lru_cache
def require_cayley(group: Group) -> None:
    """Refuse the Cayley map where (1 + X/2)^-1 Y (1 - X/2)^-1 leaves the algebra, for then cay(X) leaves the group."""
    rng, one = np.random.default_rng(0), np.eye(group.side)
    with jax.ensure_compile_time_eval():
        x, y = (np.asarray(group.hat(array(rng.normal(size=group.dim) / 4))) for _ in range(2))
        moved = np.linalg.solve(one + x / 2, y) @ np.linalg.inv(one - x / 2)
        gap = np.abs(np.asarray(group.hat(group.vee(moved))) - moved).max()
    if gap > 1e-12:
        raise InvalidInput(
            f"the Cayley map leads out of {group}: (1 + X/2)^-1 Y (1 - X/2)^-1 is not in its algebra "
            f"(off by {gap:.2g}); use Exponential()"
        )


def transpose(linear: Callable[[Array], Array], covector: Covector) -> Covector:
    """The transpose of a linear map between spaces of equal dimension, applied to a covector."""
    value: Array = jax.vjp(linear, jnp.zeros_like(covector))[1](covector)[0]
    return value


def matrix_of(linear: Callable[[Array], Array], dim: int) -> LinearMap:
    """The matrix of a linear map on vectors of length dim."""
    return jnp.asarray(jax.vmap(linear, out_axes=1)(jnp.eye(dim)))


def solve_linear(linear: Callable[[Array], Array], value: Velocity) -> Velocity:
    """The x with linear(x) = value; by LAPACK above dimension 6, where unrolled elimination takes long to compile."""
    matrix = matrix_of(linear, len(value))
    return solve(matrix, value) if len(value) <= UNROLLED else jnp.linalg.solve(matrix, value)


def _square_root(matrix: Matrix) -> Matrix:
    """The principal square root by Denman and Beavers' iteration in product form (Higham 2008, (6.29))."""
    one = jnp.eye(len(matrix))

    def improve(state: tuple[Array, Array, Array, Array, Array]) -> tuple[Array, Array, Array, Array, Array]:
        root, product, _, gap, count = state
        inverse = solve(product, one)
        product = 0.5 * one + 0.25 * (product + inverse)
        return 0.5 * (root @ (one + inverse)), product, gap, jnp.max(jnp.abs(product - one)), count + 1.0

    def unfinished(state: tuple[Array, Array, Array, Array, Array]) -> Array:
        _, _, before, gap, count = state
        return (gap > 2.0**-40) & (count < MAX_ITERATIONS) | (gap > 0.0) & (gap < before) & (before < 2.0**-20)

    far = jnp.full((), jnp.inf)
    root, *_ = jax.lax.while_loop(unfinished, improve, (matrix, matrix, far, far, jnp.zeros(())))
    return root


def _inverse_map(value: str, derivative: str) -> Callable[[Group, Element], Velocity]:
    """The method `value` of a group, differentiated by its `derivative` d^L tau^-1."""

    @partial(jax.custom_jvp, nondiff_argnums=(0,))
    def inverse(group: Group, g: Element) -> Velocity:
        found: Velocity = getattr(group, value)(g)
        return found

    @inverse.defjvp
    def _(group: Group, primals: tuple[Element], tangents: tuple[Element]) -> tuple[Velocity, Velocity]:
        xi = inverse(group, *primals)
        return xi, getattr(group, derivative)(xi, group.velocity(*primals, *tangents))

    return inverse


_log = _inverse_map("principal_log", "dexp_inverse")
_cayley_inverse = _inverse_map("principal_cayley_inverse", "dcayley_inverse")


@dataclass(frozen=True)
class Retraction(abc.ABC):
    """A map tau from the Lie algebra to the group, as methods need it, with its logarithmic derivatives.

    A new one needs `tau` and `inverse`; the rest follows. Since tau(-xi) = tau(xi)^-1, the right derivative at xi is
    the left derivative at -xi. Retractions are equal if their class and fields are, and static in JAX's trees.
    """

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        jax.tree_util.register_static(cls)

    @abc.abstractmethod
    def tau(self, group: Group, xi: Velocity) -> Element:
        """tau(xi), with tau(0) = e, dtau(0) = 1 and tau(-xi) = tau(xi)^-1."""

    @abc.abstractmethod
    def inverse(self, group: Group, g: Element) -> Velocity:
        """tau^-1(g)."""

    def rodrigues(self, x: Number) -> tuple[Array, Array] | None:
        """(a, b) with tau(w) = 1 + a hat(w) + b hat(w)^2 on SO(3), functions of x = |w|^2; None if not known."""
        return None

    def mean(self, group: Group, xi: Velocity) -> Velocity | None:
        """c with (d^L tau_xi + d^R tau_xi)/2 = 1/c coordinate by coordinate, where that holds, else None."""
        return None

    def left(self, group: Group, xi: Velocity, eta: Velocity) -> Velocity:
        """The left derivative d^L tau_xi(eta) = tau(xi)^-1 d/dt tau(xi + t eta) at t = 0."""
        return group.velocity(*jax.jvp(partial(self.tau, group), (xi,), (eta,)))

    def left_inverse(self, group: Group, xi: Velocity, eta: Velocity) -> Velocity:
        """The inverse of `left` in eta."""
        return solve_linear(partial(self.left, group, xi), eta)

    def right(self, group: Group, xi: Velocity, eta: Velocity) -> Velocity:
        """The right derivative d^R tau_xi(eta) = d/dt tau(xi + t eta) tau(xi)^-1 at t = 0: Ad_{tau(xi)} of `left`."""
        return self.left(group, -xi, eta)

    def right_inverse(self, group: Group, xi: Velocity, eta: Velocity) -> Velocity:
        """The inverse of `right` in eta."""
        return self.left_inverse(group, -xi, eta)

    def left_star(self, group: Group, xi: Velocity, mu: Covector) -> Covector:
        """The dual of `left`: <mu, left(eta)> as a covector of eta."""
        return transpose(partial(self.left, group, xi), mu)

    def right_star(self, group: Group, xi: Velocity, mu: Covector) -> Covector:
        """The dual of `right`: <mu, right(eta)> as a covector of eta."""
        return self.left_star(group, -xi, mu)

    def left_inverse_star(self, group: Group, xi: Velocity, mu: Covector) -> Covector:
        """The dual of `left_inverse`."""
        return transpose(partial(self.left_inverse, group, xi), mu)

    def right_inverse_star(self, group: Group, xi: Velocity, mu: Covector) -> Covector:
        """The dual of `right_inverse`."""
        return self.left_inverse_star(group, -xi, mu)


@dataclass(frozen=True)
class Exponential(Retraction):
    """The exponential map from the Lie algebra to the group; its inverse is the logarithm of rotations below pi."""

    def tau(self, group: Group, xi: Velocity) -> Element:
        return group.exp(xi)

    def inverse(self, group: Group, g: Element) -> Velocity:
        return group.log(g)

    def rodrigues(self, x: Number) -> tuple[Array, Array]:
        return sinc(x), cosc(x)

    def left(self, group: Group, xi: Velocity, eta: Velocity) -> Velocity:
        return group.dexp(xi, eta)

    def left_inverse(self, group: Group, xi: Velocity, eta: Velocity) -> Velocity:
        return group.dexp_inverse(xi, eta)


@dataclass(frozen=True)
class Cayley(Retraction):
    """The Cayley map tau(xi) = (1 - xi/2)^-1 (1 + xi/2): rational and cheap, on SO(n), SE(n); addition on R^n."""

    def tau(self, group: Group, xi: Velocity) -> Element:
        return group.cayley(xi)

    def inverse(self, group: Group, g: Element) -> Velocity:
        return group.cayley_inverse(g)

    def rodrigues(self, x: Number) -> tuple[Array, Array]:
        scale = 1.0 / (1.0 + 0.25 * x)
        return scale, 0.5 * scale

    def mean(self, group: Group, xi: Velocity) -> Velocity | None:
        return group.mean_dcayley(xi)

    def left(self, group: Group, xi: Velocity, eta: Velocity) -> Velocity:
        return group.dcayley(xi, eta)

    def left_inverse(self, group: Group, xi: Velocity, eta: Velocity) -> Velocity:
        return group.dcayley_inverse(xi, eta)

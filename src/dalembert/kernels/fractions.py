"""Equations that are to vanish, multiplied by denominators that cannot: polynomials in the unknowns.

A displacement by Cayley's map is a quotient by 1 + |x|^2/4, and so is what is made of it by sums and products. Where
f(x) = p(x)/q(x) with q > 0, the zeros of f are those of p, and so is the sign of the Jacobian's determinant there. The
coefficients of p do not depend on x: a program computes them before it iterates, many of them before the run.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from .ir import Builder, LoweringError, Value

Factors = tuple[int, ...]  # the numbers of atoms, in order
Terms = dict[Factors, float]  # a polynomial: coefficients by products of atoms
MAX_TERMS = 800
"""Terms of the longest polynomial that is looked at."""


def add_terms(first: Terms, second: Terms, factor: float = 1.0) -> Terms:
    """first + factor * second."""
    total = dict(first)
    for factors, c in second.items():
        total[factors] = total.get(factors, 0.0) + factor * c
    return {factors: c for factors, c in total.items() if c}


def multiply_terms(first: Terms, second: Terms) -> Terms:
    """The product of two polynomials."""
    if len(first) * len(second) > 8 * MAX_TERMS:
        raise LoweringError("a long polynomial")
    total = Terms()
    for one, c in first.items():
        for other, d in second.items():
            factors = tuple(sorted(one + other))
            total[factors] = total.get(factors, 0.0) + c * d
    return {factors: c for factors, c in total.items() if c}


def is_positive(value: Value, strictly: bool = True) -> bool:
    """Whether a value is positive, or not negative, by its form (True is a proof, False is not)."""
    args = value.args
    if value.op == "const":
        return bool(value.data > 0 if strictly else value.data >= 0)
    if value.op == "add":
        return all(is_positive(arg, False) for arg in args) and (not strictly or any(map(is_positive, args)))
    counts = Counter(_factors(value)) if value.op == "mul" else {}
    return bool(counts) and all((not strictly and n % 2 == 0) or is_positive(a, strictly) for a, n in counts.items())


def _factors(value: Value) -> list[Value]:
    return [value] if value.op != "mul" else [factor for arg in value.args for factor in _factors(arg)]


class Fractions:
    """Values as polynomials in unknowns x, in reciprocals of such polynomials, and in what does not depend on x.

    What depends on x must be a sum, a product, or a quotient whose denominator is positive by its form, as 1 + x^2/4
    is. All else is refused, and so are long polynomials.
    """

    def __init__(self, b: Builder, unknowns: Iterable[Value]):
        self.b, self.atoms = b, list(unknowns)
        self.count = len(self.atoms)
        self.denominators: dict[int, Terms] = {}  # by the atom that is its reciprocal
        self.known: dict[Value, Terms] = {value: {(i,): 1.0} for i, value in enumerate(self.atoms)}

    def depends(self, value: Value) -> bool:
        """Whether a value that was expanded, or need not be, depends on the unknowns."""
        return any(map(self.moves, self.known.get(value, ())))

    def moves(self, factors: Factors) -> bool:
        return any(i < self.count or i in self.denominators for i in factors)

    def degree(self, factors: Factors) -> int:
        return sum(i < self.count for i in factors)

    def terms(self, value: Value) -> Terms:
        if value.op == "const":
            return {(): value.data} if value.data else {}
        if value not in self.known:
            self.known[value] = {(len(self.atoms),): 1.0}
            self.atoms.append(value)
        return self.known[value]

    def expand(self, value: Value) -> None:
        """Find the terms of a value that depends on the unknowns; those of its arguments are known."""
        if not any(map(self.depends, value.args)):
            return
        args = [self.terms(arg) for arg in value.args]
        if value.op == "neg":
            terms = add_terms({}, args[0], -1.0)
        elif value.op in ("add", "sub"):
            terms = add_terms(args[0], args[1], 1.0 if value.op == "add" else -1.0)
        elif value.op in ("mul", "quotient"):  # a quotient (a, b, 1/b)
            terms = multiply_terms(args[0], args[-1])
        elif value.op == "div" and self.b.is_const(value.args[0], 1) and is_positive(value.args[1]):
            if any(i in self.denominators for factors in args[1] for i in factors):
                raise LoweringError("a fraction in a denominator")
            self.denominators[len(self.atoms)] = args[1]
            terms = self.terms(value)
        else:
            raise LoweringError(f"'{value.op}' of unknowns is no fraction of polynomials")
        if len(terms) > MAX_TERMS:
            raise LoweringError("a long polynomial")
        self.known[value] = terms

    def clear(self, value: Value) -> Value:
        """The value times as few denominators as leave a polynomial.

        What does not depend on x is multiplied by the denominators as they are, the rest has coefficients.
        """
        b, product = self.b, self.b.const(1.0)
        still = {factors: c for factors, c in self.terms(value).items() if not self.moves(factors)}
        terms = {factors: c for factors, c in self.terms(value).items() if factors not in still}
        for atom, below in self.denominators.items():
            power = max((factors.count(atom) for factors in terms), default=0)
            total = Terms()
            for k in range(power + 1):  # by Horner's rule
                part = {tuple(i for i in f if i != atom): c for f, c in terms.items() if f.count(atom) == k}
                total = add_terms(multiply_terms(total, below), part)
            while power and (quotient := self._divide(total, below)) is not None:
                total, power = quotient, power - 1
            terms, product = total, b.mul(product, b.power(self.atoms[atom].args[1], power))
        return b.add(self.write(terms), b.mul(self.write(still), product))

    def _divide(self, terms: Terms, below: Terms) -> Terms | None:
        """The quotient of polynomials, the lowest degrees first; None where there is a remainder."""
        if any(factors and not self.degree(factors) for factors in below):
            return None
        last = max(map(self.degree, terms), default=0) - max(map(self.degree, below))
        quotient = Terms()
        while terms and (least := min(map(self.degree, terms))) <= last:
            lowest = {factors: c / below[()] for factors, c in terms.items() if self.degree(factors) == least}
            quotient |= lowest
            terms = add_terms(terms, multiply_terms(lowest, below), -1.0)
        return None if terms else quotient

    def write(self, terms: Terms) -> Value:
        """The value of a polynomial by Horner's rule: unknowns outside, and inside what does not depend on them."""
        b = self.b
        counts = Counter(i for factors in terms for i in set(factors))
        if not counts:
            return b.const(terms.get((), 0.0))
        i = max(counts, key=lambda i: (i < self.count, counts[i], -i))
        inside, outside = Terms(), Terms()
        for factors, c in terms.items():
            if i in factors:
                at = factors.index(i)
                inside[factors[:at] + factors[at + 1 :]] = c
            else:
                outside[factors] = c
        return b.add(b.mul(self.atoms[i], self.write(inside)), self.write(outside))

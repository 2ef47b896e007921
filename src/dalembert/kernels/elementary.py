"""The elementary functions as scalar programs, so that every backend and every width computes the same bits.

Each function is a branch-free chain of IEEE operations: reduce the argument, evaluate a minimax polynomial (fitted by
Remez exchange to a relative error below 2e-18; the coefficients are stored as the nearest doubles), reconstruct. The
errors measured against 200-bit arithmetic are below 1 ulp for sin, cos, exp, log and log1p, and below 2 ulp for the
other functions. sin, cos and tan hold for |x| <= 1e15 and are NaN beyond.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from .ir import Builder, Value

ROUNDING_SHIFT = 1.5 * 2.0**52  # x + MAGIC rounds x to an integer, which then stands in the low bits
ROUNDING_SHIFT_BITS = 0x4338 << 48

# fmt: off
SIN = (-0.16666666666666624, 0.00833333333332004, -0.0001984126982785524, 2.7557312999527053e-06,
    -2.5050647768700922e-08, 1.5890306968529362e-10)
COS = (0.04166666666666658, -0.0013888888888870913, 2.4801587287419967e-05, -2.7557313742573064e-07,
    2.08756387903445e-09, -1.1355204142316524e-11)
EXP = (0.5, 0.16666666666666685, 0.04166666666666673, 0.008333333333315377, 0.0013888888888856303,
    0.000198412699004585, 2.4801587377547068e-05, 2.755723081769996e-06, 2.7557230343210503e-07,
    2.511343795405391e-08, 2.0927823082861625e-09)
LOG = (0.6666666666666666, 0.40000000000007196, 0.28571428568783724, 0.2222222269212145, 0.18181772054205064,
    0.1538724796502122, 0.13246589236580564, 0.1328327243972688)
ATAN = (-0.33333333333333326, 0.19999999999997647, -0.14285714285385168, 0.11111111087999502, -0.09090908138057084,
    0.07692282611544253, -0.06666224574077619, 0.05877000317684338, -0.052182654850015, 0.04502982085927831,
    -0.03346119008695653, 0.01518161980275601)
# fmt: on

HALF_PI = (1.5707963267948966, 6.123233995736766e-17, -1.4973849048591698e-33)  # three doubles: 160 bits
LN2 = (0.6931471805599453, 2.3190468138462996e-17)
LN2_SHORT = (6.93147180369123816490e-01, 1.90821492927058770002e-10)  # the first has 32 bits: its multiples are exact
TAN_EIGHTH = 0.41421356237309503  # tan(pi/8)


def polynomial(b: Builder, x: Value, coefficients: tuple[float, ...]) -> Value:
    """sum_i c_i x^i by Horner's rule on the even and the odd terms: half the latency for one more product."""
    square = b.mul(x, x)
    chains = []
    for terms in (coefficients[0::2], coefficients[1::2]):
        total = b.const(terms[-1])
        for c in terms[-2::-1]:
            total = b.fma(square, total, b.const(c))
        chains.append(total)
    return b.fma(x, chains[1], chains[0])


def shallow_polynomial(b: Builder, x: Value, coefficients: tuple[float, ...]) -> Value:
    """The same in pairs of terms, pairs of pairs and so on: the least latency, for two more products."""
    terms = [b.const(c) for c in coefficients]
    while len(terms) > 1:
        pairs = zip(terms[0::2], terms[1::2], strict=False)
        terms = [b.fma(x, high, low) for low, high in pairs] + terms[len(terms) - len(terms) % 2 :]
        x = b.mul(x, x)
    return terms[0]


def _round_scaled(b: Builder, x: Value, scale: float) -> tuple[Value, Value]:
    """The integer nearest to x * scale, as a double and as the low bits of an integer."""
    shifted = b.fma(x, b.const(scale), b.const(ROUNDING_SHIFT))
    return b.sub(shifted, b.const(ROUNDING_SHIFT)), b.emit("bits", "i64", shifted)


def _power_of_two(b: Builder, n: Value) -> Value:
    return b.emit("unbits", "f64", b.emit("shl", "i64", b.add(n, b.const(1023)), b.const(52)))


def _at_point(b: Builder, x: Value, equals: float, then: float, otherwise: Value) -> Value:
    return b.select(b.compare("eq", x, b.const(equals)), b.const(then), otherwise)


def _circular(b: Builder, x: Value, quarter_turns: int) -> Value:
    """sin(x + quarter_turns pi/2): x = k pi/2 + r + tail with r + tail good to 100 bits (Cody and Waite)."""
    k, n = _round_scaled(b, x, 2.0 / math.pi)
    k = b.neg(k)
    first = b.fma(k, b.const(HALF_PI[0]), x)
    second = b.mul(k, b.const(HALF_PI[1]))
    third = b.fma(k, b.const(HALF_PI[2]), b.fma(k, b.const(HALF_PI[1]), b.neg(second)))
    r = b.add(first, second)
    tail = b.add(b.add(b.sub(first, r), second), third)
    z = b.mul(r, r)
    sine = b.add(r, b.fma(b.mul(z, r), polynomial(b, z, SIN), tail))
    half = b.mul(z, b.const(0.5))
    w = b.sub(b.const(1.0), half)
    rest = b.sub(b.mul(b.mul(z, z), polynomial(b, z, COS)), b.mul(r, tail))
    cosine = b.add(w, b.add(b.sub(b.sub(b.const(1.0), w), half), rest))
    n = b.add(n, b.const(quarter_turns))
    odd = b.compare("ne", b.logic("and", n, b.const(1)), b.const(0))
    sign = b.emit("shl", "i64", b.logic("and", n, b.const(2)), b.const(62))
    chosen = b.emit("bits", "i64", b.select(odd, cosine, sine))
    value = b.emit("unbits", "f64", b.logic("xor", chosen, sign))
    inside = b.compare("le", b.unary("abs", x), b.const(1e15))
    return b.select(inside, value, b.const(math.nan))


def sin(b: Builder, x: Value) -> Value:
    return _circular(b, x, 0)


def cos(b: Builder, x: Value) -> Value:
    return _circular(b, x, 1)


def tan(b: Builder, x: Value) -> Value:
    return b.div(sin(b, x), cos(b, x))


def atan2(b: Builder, y: Value, x: Value) -> Value:
    """The angle of (x, y): fold into [0, pi/8] by symmetry, one division, one polynomial, unfold.

    A record waits for it, so all that need not wait stands beside the division: special cases, and the number k of
    eighths of a turn that the unfolded angle begins with.
    """
    zero, one, two = b.const(0.0), b.const(1.0), b.const(2.0)
    height, width = b.unary("abs", y), b.unary("abs", x)
    steep = b.compare("lt", width, height)
    n, d = b.select(steep, width, height), b.select(steep, height, width)
    folded = b.compare("lt", b.mul(d, b.const(TAN_EIGHTH)), n)
    t = b.div(b.select(folded, b.sub(n, d), n), b.select(folded, b.add(n, d), d))
    t = b.select(b.compare("eq", n, d), zero, t)  # 0/0 and inf/inf too
    z = b.mul(t, t)
    angle = b.fma(b.mul(t, z), shallow_polynomial(b, z, ATAN), t)
    k = b.select(b.logic("or", folded, b.compare("eq", n, b.const(math.inf))), one, zero)
    k = b.select(steep, b.sub(two, k), k)
    behind = b.compare("lt", b.copysign(one, x), zero)
    k = b.select(behind, b.sub(b.const(4.0), k), k)
    angle = b.select(b.logic("xor", steep, behind), b.neg(angle), angle)
    angle = b.fma(k, b.const(HALF_PI[0] / 2), b.fma(k, b.const(HALF_PI[1] / 2), angle))
    return b.copysign(angle, y)


def atan(b: Builder, x: Value) -> Value:
    return atan2(b, x, b.const(1.0))


def _complement(b: Builder, x: Value) -> Value:
    """sqrt(1 - x^2)."""
    return b.unary("sqrt", b.mul(b.sub(b.const(1.0), x), b.add(b.const(1.0), x)))


def asin(b: Builder, x: Value) -> Value:
    return atan2(b, x, _complement(b, x))


def acos(b: Builder, x: Value) -> Value:
    return atan2(b, _complement(b, x), x)


def _exponential(b: Builder, x: Value) -> tuple[Value, Value]:
    """e^x = 2^n (1 + p), |p| < 0.42."""
    k, shifted = _round_scaled(b, x, 1.0 / LN2[0])
    k = b.neg(k)
    r = b.fma(k, b.const(LN2[1]), b.fma(k, b.const(LN2[0]), x))
    return b.sub(shifted, b.const(ROUNDING_SHIFT_BITS)), b.fma(b.mul(r, r), polynomial(b, r, EXP), r)


def _clip(b: Builder, x: Value, low: float, high: float) -> Value:
    return b.max(b.min(x, b.const(high)), b.const(low))


def exp(b: Builder, x: Value, doublings: int = 0) -> Value:
    """2^doublings e^x; the power of two is applied in two halves so that the ends of the range are reached."""
    n, p = _exponential(b, _clip(b, x, -746.0, 711.0))
    half = b.emit("shr", "i64", n, b.const(1))
    first = _power_of_two(b, half)
    second = _power_of_two(b, b.add(b.sub(n, half), b.const(doublings)))
    return b.mul(b.fma(first, p, first), second)


def expm1(b: Builder, x: Value) -> Value:
    n, p = _exponential(b, _clip(b, x, -40.0, 709.8))
    scale = _power_of_two(b, b.sub(n, b.const(1)))
    large = b.mul(b.fma(scale, p, b.sub(scale, b.const(0.5))), b.const(2.0))
    return b.select(b.compare("eq", n, b.const(0)), p, large)


def exp2(b: Builder, x: Value) -> Value:
    x = _clip(b, x, -1076.0, 1025.0)
    nearest = b.unary("round", x)
    p = b.mul(b.sub(x, nearest), b.const(LN2[0]))
    half = b.unary("floor", b.mul(nearest, b.const(0.5)))
    return b.mul(
        b.mul(exp(b, p), _power_of_two(b, b.convert(half, "i64"))),
        _power_of_two(b, b.convert(b.sub(nearest, half), "i64")),
    )


def logistic(b: Builder, x: Value) -> Value:
    return b.div(b.const(1.0), b.add(b.const(1.0), exp(b, b.neg(x))))


def sinh(b: Builder, x: Value) -> Value:
    size = b.unary("abs", x)
    e = expm1(b, size)
    small = b.mul(b.const(0.5), b.add(e, b.div(e, b.add(e, b.const(1.0)))))
    large = exp(b, size, -1)
    return b.copysign(b.select(b.compare("lt", size, b.const(22.0)), small, large), x)


def cosh(b: Builder, x: Value) -> Value:
    half = exp(b, b.unary("abs", x), -1)
    return b.add(half, b.div(b.const(0.25), half))


def tanh(b: Builder, x: Value) -> Value:
    e = expm1(b, b.min(b.mul(b.const(2.0), b.unary("abs", x)), b.const(44.0)))
    return b.copysign(b.div(e, b.add(e, b.const(2.0))), x)


def _split(b: Builder, x: Value) -> tuple[Value, Value]:
    """x = 2^k m with m in [sqrt(1/2), sqrt(2)), k as a double, for normal x > 0."""
    bits = b.emit("bits", "i64", x)
    k = b.emit("shr", "i64", b.sub(bits, b.const(0x3FE6A09E667F3BCD)), b.const(52))
    m = b.emit("unbits", "f64", b.sub(bits, b.emit("shl", "i64", k, b.const(52))))
    shifted = b.emit("unbits", "f64", b.add(k, b.const(ROUNDING_SHIFT_BITS)))
    return b.sub(shifted, b.const(ROUNDING_SHIFT)), m


def _scale_to_normal(b: Builder, x: Value) -> tuple[Value, Value]:
    """x or 2^54 x, which is normal, and the power of two taken out."""
    tiny = b.compare("lt", x, b.const(2.0**-1022))
    return b.select(tiny, b.mul(x, b.const(2.0**54)), x), b.select(tiny, b.const(54.0), b.const(0.0))


def _logarithm(b: Builder, x: Value, correction: Value) -> Value:
    """log(x) + correction for x > 0."""
    x, taken = _scale_to_normal(b, x)
    k, m = _split(b, x)
    k = b.sub(k, taken)
    f = b.sub(m, b.const(1.0))
    s = b.div(f, b.add(b.const(2.0), f))
    z = b.mul(s, s)
    half_square = b.mul(b.mul(b.const(0.5), f), f)
    rest = b.fma(k, b.const(LN2_SHORT[1]), correction)
    inner = b.fma(s, b.add(half_square, b.mul(z, polynomial(b, z, LOG))), rest)
    return b.fma(k, b.const(LN2_SHORT[0]), b.sub(f, b.sub(half_square, inner)))


def log(b: Builder, x: Value) -> Value:
    value = _logarithm(b, x, b.const(0.0))
    value = _at_point(b, x, math.inf, math.inf, _at_point(b, x, 0.0, -math.inf, value))
    return b.select(b.compare("le", b.const(0.0), x), value, b.const(math.nan))


def log1p(b: Builder, x: Value) -> Value:
    one = b.const(1.0)
    u = b.add(one, x)
    error = b.select(b.compare("lt", x, one), b.sub(x, b.sub(u, one)), b.sub(one, b.sub(u, x)))
    value = _logarithm(b, u, b.div(error, u))
    value = _at_point(b, x, math.inf, math.inf, _at_point(b, u, 0.0, -math.inf, value))
    value = b.select(b.compare("le", b.const(-1.0), x), value, b.const(math.nan))
    return _at_point(b, x, 0.0, 0.0, value)


def asinh(b: Builder, x: Value) -> Value:
    size, one = b.unary("abs", x), b.const(1.0)
    capped = b.min(size, b.const(2.0**30))
    square = b.mul(capped, capped)
    small = log1p(b, b.add(capped, b.div(square, b.add(one, b.unary("sqrt", b.add(square, one))))))
    large = b.add(log(b, size), b.const(LN2[0]))
    return b.copysign(b.select(b.compare("lt", size, b.const(2.0**30)), small, large), x)


def acosh(b: Builder, x: Value) -> Value:
    t = b.sub(b.min(x, b.const(2.0**30)), b.const(1.0))
    small = log1p(b, b.add(t, b.unary("sqrt", b.fma(t, t, b.add(t, t)))))
    large = b.add(log(b, x), b.const(LN2[0]))
    return b.select(b.compare("le", b.const(2.0**30), x), large, small)


def atanh(b: Builder, x: Value) -> Value:
    size = b.unary("abs", x)
    ratio = b.div(b.add(size, size), b.sub(b.const(1.0), size))
    return b.copysign(b.mul(b.const(0.5), log1p(b, ratio)), x)


def power(b: Builder, x: Value, y: Value) -> Value:
    """x^y = exp(y log|x|) with the logarithm as a sum of two doubles (60 bits), and the signs of IEEE pow."""
    if b.is_const(y) and float(y.data).is_integer() and abs(y.data) <= 64:
        return b.power(x, int(y.data))
    if b.is_const(y, 0.5):
        return b.unary("sqrt", x)
    one, zero, nan, size = b.const(1.0), b.const(0.0), b.const(math.nan), b.unary("abs", x)
    high, low = _long_logarithm(b, size)
    product = b.mul(y, high)
    error = b.fma(y, low, b.fma(y, high, b.neg(product)))
    finite = b.compare("lt", b.unary("abs", product), b.const(750.0))
    base = exp(b, product)
    value = b.select(finite, b.fma(base, error, base), base)
    edge = b.logic("or", b.compare("eq", size, b.const(math.inf)), b.compare("eq", size, zero))
    grows = b.compare("eq", b.compare("lt", one, size), b.compare("lt", zero, y))
    value = b.select(edge, b.select(grows, b.const(math.inf), zero), _at_point(b, size, 1.0, 1.0, value))
    is_integer = b.compare("eq", b.unary("floor", y), y)
    halved = b.mul(y, b.const(0.5))
    odd = b.logic("and", is_integer, b.compare("ne", b.unary("floor", halved), halved))
    negative = b.select(odd, b.neg(value), b.select(b.logic("or", is_integer, edge), value, nan))
    value = b.select(b.compare("lt", b.copysign(one, x), zero), negative, value)
    unknown = b.logic("or", b.compare("ne", x, x), b.compare("ne", y, y))
    certain = b.logic("or", b.compare("eq", y, zero), b.compare("eq", x, one))
    return b.select(certain, one, b.select(unknown, nan, value))


def _long_logarithm(b: Builder, x: Value) -> tuple[Value, Value]:
    x, taken = _scale_to_normal(b, x)
    k, m = _split(b, x)
    k = b.sub(k, taken)
    one = b.const(1.0)
    f, d = b.sub(m, one), b.add(m, one)
    d_low = b.sub(m, b.sub(d, one))
    s = b.emit("div", "f64", f, d)
    s_low = b.emit("div", "f64", b.fma(b.neg(s), d_low, b.fma(b.neg(s), d, f)), d)
    z = b.mul(s, s)
    rest = b.fma(b.mul(s, z), polynomial(b, z, LOG), b.mul(b.const(2.0), s_low))
    main = b.mul(b.const(2.0), s)
    multiple = b.mul(k, b.const(LN2_SHORT[0]))
    high = b.add(multiple, main)
    carried = b.sub(high, multiple)
    low = b.add(b.sub(main, carried), b.sub(multiple, b.sub(high, carried)))
    low = b.add(low, b.fma(k, b.const(LN2_SHORT[1]), rest))
    total = b.add(high, low)
    return total, b.sub(low, b.sub(total, high))


def cbrt(b: Builder, x: Value) -> Value:
    """exp(log|x| / 3) and one Newton step."""
    size = b.unary("abs", x)
    guess = exp(b, b.mul(log(b, size), b.const(1.0 / 3.0)))
    below = b.compare("lt", size, b.const(1.0))  # there 2^108 x has the residual that a subnormal x has not
    scale = b.select(below, b.const(2.0**36), b.const(1.0))
    scaled = b.mul(guess, scale)
    square = b.mul(scaled, scaled)
    residual = b.fma(square, scaled, b.neg(b.mul(size, b.select(below, b.const(2.0**108), b.const(1.0)))))
    better = b.div(b.sub(scaled, b.div(residual, b.mul(b.const(3.0), square))), scale)
    edge = b.logic("or", b.compare("eq", size, b.const(0.0)), b.compare("eq", size, b.const(math.inf)))
    return b.copysign(b.select(edge, size, better), x)


def rsqrt(b: Builder, x: Value) -> Value:
    return b.div(b.const(1.0), b.unary("sqrt", x))


def sign(b: Builder, x: Value) -> Value:
    if x.type != "f64":
        zero = b.const(0)
        return b.sub(b.convert(b.compare("lt", zero, x), "i64"), b.convert(b.compare("lt", x, zero), "i64"))
    nothing = b.logic("or", b.compare("eq", x, b.const(0.0)), b.compare("ne", x, x))
    return b.select(nothing, x, b.copysign(b.const(1.0), x))


def remainder(b: Builder, x: Value, y: Value) -> Value:
    """fmod(x, y) for quotients below 2^52: one fma is exact, one correction settles the quotient."""
    if x.type == "i64":
        return b.rem(x, y)
    size, modulus = b.unary("abs", x), b.unary("abs", y)
    rest = b.fma(b.neg(b.unary("trunc", b.div(size, modulus))), modulus, size)
    rest = b.select(b.compare("lt", rest, b.const(0.0)), b.add(rest, modulus), rest)
    rest = b.select(b.compare("le", modulus, rest), b.sub(rest, modulus), rest)
    return b.copysign(b.select(b.compare("eq", modulus, b.const(math.inf)), size, rest), x)


# fmt: off
FUNCTIONS: dict[str, Callable[..., Value]] = {
    "sin": sin, "cos": cos, "tan": tan, "asin": asin, "acos": acos, "atan": atan, "atan2": atan2,
    "sinh": sinh, "cosh": cosh, "tanh": tanh, "asinh": asinh, "acosh": acosh, "atanh": atanh,
    "exp": exp, "exp2": exp2, "expm1": expm1, "log": log, "log1p": log1p, "logistic": logistic,
    "pow": power, "cbrt": cbrt, "rsqrt": rsqrt, "sign": sign, "rem": remainder,
}
# fmt: on
"""The function that writes each JAX primitive."""

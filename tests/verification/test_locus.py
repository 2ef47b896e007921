"""The discrete momentum locus: equation by elimination, singularities, shadow; Lemma 7.2 of fedorov-zenkov; genera."""

from __future__ import annotations

import numpy as np
import pytest

import dalembert as da
from dalembert.analysis.branches import find_branches as branches
from dalembert.analysis.legendre import Locus, algebraic_map
from dalembert.analysis.polynomials import Polynomials, interpolate, monomials
from dalembert.papers.fedorov_zenkov import SleighLocus, genus

GENERIC = [[3.0, 0.0, 1.0], [0.0, 4.0, 0.5], [1.0, 0.5, 5.0]]
SPECIAL = [[3.0, 0.0, 0.0], [0.0, 3.0, 0.5], [0.0, 0.5, 5.0]]
VESELOV, CAYLEY = da.EulerPoincareSuslov("moser-veselov"), da.EulerPoincareSuslov("retraction")


def times(first: dict, second: dict) -> dict:
    out: dict = {}
    for i, c in first.items():
        for j, d in second.items():
            key = tuple(a + b for a, b in zip(i, j, strict=True))
            out[key] = out.get(key, 0.0) + c * d
    return out


def printed_p4(A, B, p, q) -> dict:
    """p4 of Proposition 9.1 with the corrections of ERRATA.md, in impulses (eps = 1)."""
    return {
        (1, 0, 0): -4 * (A - B) * p * B, (0, 1, 0): -4 * (A - B) * A * q, (0, 0, 1): 4 * (A - B) * A * B,
        (0, 0, 2): -2 * A * B / (q * p) * (p * p + q * q), (2, 0, 0): 2 * B * p / q * (A - B), (1, 1, 0): 4 * (A - B) ** 2,
        (0, 1, 1): 2 / p * (A * A * B + 2 * A * p * p - A * B * B + A * q * q - p * p * B), (0, 2, 0): -2 * A * q / p * (A - B),
        (1, 0, 1): -2 / q * (A * A * B - A * B * B + A * q * q - p * p * B - 2 * B * q * q),
        (3, 0, 0): p, (0, 3, 0): -q, (0, 2, 1): 4 * A - B, (0, 1, 2): -1 / q * (A * A + A * B + p * p + q * q),
        (2, 1, 0): -1 / q * (A * A - 3 * A * B + p * p + 2 * B * B - 2 * q * q), (2, 0, 1): A - 4 * B,
        (1, 0, 2): 1 / p * (A * B + p * p + B * B + q * q), (0, 0, 3): A - B,
        (1, 1, 1): -1 / (p * q) * (A * A * B - A * B * B + 3 * A * q * q - 3 * p * p * B),
        (1, 2, 0): 1 / p * (2 * A * A - 3 * A * B - 2 * p * p + B * B + q * q),
        (1, 2, 1): B / q, (1, 1, 2): -1.0, (0, 0, 4): -(p * p + q * q) / (2 * p * q), (3, 1, 0): -1.0, (1, 3, 0): -1.0,
        (4, 0, 0): -p / (2 * q), (0, 1, 3): A / p, (0, 3, 1): A / p, (2, 1, 1): A / p, (1, 0, 3): B / q, (3, 0, 1): B / q,
        (0, 4, 0): -q / (2 * p), (0, 2, 2): -(A * A + p * p + 2 * q * q) / (2 * p * q),
        (2, 0, 2): -(2 * p * p + B * B + q * q) / (2 * p * q), (2, 2, 0): -(A * A - 2 * A * B + p * p + B * B + q * q) / (2 * p * q),
    }  # fmt: skip


def printed_q7(A, B, p, q) -> dict:
    """q7 of Proposition 9.2 with the corrections of ERRATA.md; of its part of degree 6 the terms that can be read in
    print.
    """
    quartic = {
        (4, 0, 0): p**2 * B**4, (3, 1, 0): 2 * A * p * B**3 * q, (3, 0, 1): 2 * A**2 * p * B**3 - 2 * A * p * B**4 + 2 * p**3 * B**3,
        (2, 2, 0): A**4 * B**2 - 2 * A**3 * B**3 + A**2 * p**2 * B**2 + A**2 * B**4 + A**2 * B**2 * q**2,
        (2, 1, 1): 6 * A * p**2 * B**2 * q,
        (2, 0, 2): A**4 * B**2 - 2 * A**3 * B**3 + 2 * A**2 * p**2 * B**2 + A**2 * B**4 + A**2 * B**2 * q**2 - 2 * A * p**2 * B**3
        + p**4 * B**2 + p**2 * B**4 + p**2 * B**2 * q**2,
        (1, 3, 0): 2 * A**3 * p * B * q, (1, 2, 1): 6 * A**2 * p * B * q**2,
        (1, 1, 2): 2 * A**3 * p * B * q - 4 * A**2 * p * B**2 * q + 2 * A * p**3 * B * q + 2 * A * p * B**3 * q + 2 * A * p * B * q**3,
        (1, 0, 3): 2 * A**2 * p * B**3 + 4 * A**2 * p * B * q**2 - 2 * A * p * B**4 - 2 * A * p * B**2 * q**2 + 2 * p**3 * B**3,
        (0, 4, 0): A**4 * q**2, (0, 3, 1): -2 * A**4 * B * q + 2 * A**3 * B**2 * q + 2 * A**3 * q**3,
        (0, 2, 2): A**4 * B**2 + A**4 * q**2 - 2 * A**3 * B**3 - 2 * A**3 * B * q**2 + A**2 * p**2 * B**2 + A**2 * p**2 * q**2
        + A**2 * B**4 + 2 * A**2 * B**2 * q**2 + A**2 * q**4,
        (0, 1, 3): 2 * A**3 * B**2 * q - 2 * A**4 * B * q + 2 * A**3 * q**3 - 2 * A**2 * p**2 * B * q + 4 * A * p**2 * B**2 * q,
        (0, 0, 4): A**4 * B**2 - 2 * A**3 * B**3 - 2 * A**3 * B * q**2 + 2 * A**2 * p**2 * B**2 + A**2 * B**4 + 2 * A**2 * B**2 * q**2
        + A**2 * q**4 - 2 * A * p**2 * B**3 + 2 * A * p**2 * B * q**2 + p**4 * B**2,
    }  # fmt: skip
    plane = {(1, 0, 0): -4 * p * B, (0, 1, 0): -4 * A * q, (0, 0, 1): 4 * A * B}
    conic = {
        (2, 0, 0): A * A * B,
        (1, 0, 1): 2 * A * p * B,
        (0, 2, 0): A * B * B,
        (0, 1, 1): 2 * A * B * q,
        (0, 0, 2): A * q * q + p * p * B,
    }
    sextic = {
        (4, 1, 1): 6 * (A**3 * p * B**3 - A**2 * p * B**4), (4, 0, 2): -6 * A**2 * p * B**3 * q,
        (3, 3, 0): 2 * (A**5 * B**2 - 3 * A**4 * B**3 + 3 * A**3 * B**4 - A**2 * B**5), (3, 2, 1): 6 * (A**3 * B**3 * q - A**2 * B**4 * q),
        (3, 1, 2): 2 * (A**5 * B**2 - 4 * A**4 * B**3 + A**3 * p**2 * B**2 + 3 * A**3 * B**4 + 4 * A**2 * p**2 * B**3
        - 3 * A**2 * B**3 * q**2 - 2 * A * p**2 * B**4),
        (2, 3, 1): 6 * (A**4 * p * B**2 - A**3 * p * B**3), (2, 2, 2): 6 * (A**3 * p * B**2 * q - A**2 * p * B**3 * q),
        (1, 4, 1): 6 * (A**4 * B**2 * q - A**3 * B**3 * q), (0, 4, 2): 6 * A**3 * p * B**2 * q,
        (0, 3, 3): 2 * p * (A**2 * p**2 * B**2 + A**2 * B**4 - 3 * A**3 * B**3 + 2 * A**3 * B * q**2 + 5 * A**2 * B**2 * q**2),
        (0, 0, 6): 8 * A * p * B * q * (A * B**2 - A**2 * B),
        (1, 0, 5): -2 * (A**2 * B**2 * q**3 + A**2 * q**5 + p**4 * B**2 * q + 2 * A * p**2 * B * q**3 + 5 * A * p**2 * B**3 * q
        - 7 * A**2 * p**2 * B**2 * q + 4 * A**4 * B**2 * q - 4 * A**3 * B**3 * q - 3 * A**3 * B * q**3),
        (1, 1, 4): 2 * (A * p**2 * B**2 * q**2 - 4 * A**4 * B**3 + 5 * A**4 * B * q**2 + 3 * A**3 * p**2 * B**2 + 4 * A**3 * B**4
        + 2 * A**3 * B**2 * q**2 - 2 * A**3 * q**4 - 2 * A**2 * p**2 * B**3 - A**2 * p**2 * B * q**2 - 3 * A**2 * B**3 * q**2
        - 3 * A**2 * B * q**4 + 3 * A * p**4 * B**2 - 5 * A * p**2 * B**4 + 2 * p**4 * B**3),
    }  # fmt: skip
    return times({(0, 0, 3): 1.0}, times(conic, conic)) | times(plane, quartic) | sextic


def relative_size(found: Polynomials, points: np.ndarray) -> float:
    """The largest |p| at points, relative to the sum of its terms' sizes."""
    sizes = np.abs(monomials(points, found.exponents)) @ np.abs(found.coefficients)
    return float(np.abs(found(points) / sizes).max())


@pytest.mark.parametrize(
    ("integrator", "degree", "printed", "reference"),
    [
        pytest.param(VESELOV, 4, printed_p4, (0, 0, 1), id="p4"),
        pytest.param(CAYLEY, 7, printed_q7, (0, 0, 7), id="q7", marks=pytest.mark.heavy),
    ],
)
def test_elimination_gives_the_corrected_polynomials(integrator, degree, printed, reference):
    A, B, p, q = 2.7, 4.1, 1.1, 0.6
    surface = Locus(da.models.suslov([[A, 0, p], [0, B, q], [p, q, 5.5]]), integrator)
    found = surface.implicit()
    assert found.degrees.tolist() == [degree]
    terms, expected = found.terms(), printed(A, B, p, q)
    scale = terms[reference] / expected[reference]
    assert max(abs(terms[key] / scale - value) / abs(value) for key, value in expected.items()) < 1e-8
    points = surface.map.impulse(np.random.default_rng(7).normal(size=(300, 2)))
    assert relative_size(found, points) < 1e-12
    exact = Polynomials(np.array(list(expected)), np.array(list(expected.values()))[:, None])
    if integrator is VESELOV:
        assert relative_size(exact, points) < 1e-12


def test_a_diagonal_tensor_has_steiners_roman_surface():
    """(6.11) with J = tr(I)/2 - I; its six pinch points end three double lines on the axes, which meet in a triple
    point.
    """
    inertia = np.array([3.0, 4.0, 5.0])
    J1, J2, J3 = inertia.sum() / 2 - inertia
    surface = Locus(da.models.suslov(inertia), VESELOV)
    terms = surface.implicit().terms()
    expected = {
        (2, 2, 0): (J1 - J2) / ((J2 + J3) * (J1 + J3)),
        (2, 0, 2): (J1 + J3) / ((J2 + J3) * (J1 - J2)),
        (0, 2, 2): (J2 + J3) / ((J1 + J3) * (J1 - J2)),
        (1, 1, 1): -2.0,
    }
    assert set(terms) == set(expected)
    ratios = [terms[key] / value for key, value in expected.items()]
    assert np.ptp(ratios) < 1e-12 * abs(ratios[0])
    _, pinches = surface.pinch_points(starts=200)
    sizes = np.sort(np.abs(pinches).max(1))
    assert len(pinches) == 6
    assert np.abs(sizes - np.sort([abs(J1 - J2), J2 + J3, J1 + J3] * 2)).max() < 1e-8


def test_tangent_plane_boundedness_and_distance():
    for integrator, bounded in ((VESELOV, True), (CAYLEY, False)):
        surface = Locus(da.models.suslov(GENERIC), integrator)
        normal = surface.tangent_plane()[0]
        expected = np.array([4.0 * 1.0, 3.0 * 0.5, -12.0])  # (I22 I13, I11 I23, -I11 I22), Proposition 5.1
        assert np.abs(np.cross(normal, expected)).max() < 1e-12
        assert surface.bounded() is bounded
    assert Locus(da.models.suslov_n([1.0, 0.8, 0.6, 0.3]), VESELOV).bounded()
    assert not Locus(da.models.chaplygin_sleigh(), VESELOV).bounded()
    rho = surface.distance([0.0, 0.0, 1.0])
    assert abs(rho[0] - 12.0 / np.linalg.norm(expected)) < 1e-12
    assert np.abs(surface.distance(np.asarray(GENERIC) @ [1.0, 2.0, 0.0])).max() < 1e-12


def test_the_locus_crosses_its_tangent_plane():
    """Moser-Veselov in two straight lines of displacements through 0, Cayley in a curve that crosses itself there."""
    for integrator in (VESELOV, CAYLEY):
        surface = Locus(da.models.suslov(GENERIC), integrator)
        curves = surface.intersection_with_plane(points=81)
        assert curves and max(np.abs(surface.distance(m)).max() for _, m in curves) < 1e-11
        assert min(np.abs(y).max(1).min() for y, _ in curves) < 0.1
    points = np.vstack([y for y, _ in Locus(da.models.suslov(GENERIC), VESELOV).intersection_with_plane(points=81)])
    points = points[np.linalg.norm(points, axis=1) > 0.1]
    directions = np.arctan2(points[:, 1], points[:, 0]) % np.pi
    assert len(set(np.round(directions, 6))) == 2


def test_the_projection_folds_where_the_number_of_real_branches_changes():
    surface = Locus(da.models.suslov(GENERIC), VESELOV)
    folds = surface.discriminant(points=81)
    assert max(np.abs(np.linalg.det(surface.map.jacobian(y))).max() for y, _ in folds) < 1e-10
    _, image = max(folds, key=lambda fold: len(fold[0]))
    point = image[len(image) // 3]
    counts = {s: branches(surface.system, VESELOV, s * point, 1.0).is_real.sum() for s in (0.99, 1.01)}
    assert abs(counts[0.99] - counts[1.01]) == 2
    assert not Locus(da.models.suslov(GENERIC), CAYLEY).discriminant(
        points=81
    )  # one real branch everywhere for this tensor


def test_surfaces_for_plotting():
    y, points = Locus(da.models.suslov(GENERIC), VESELOV).surface(points=11)
    assert y.shape == (11, 11, 2) and points.shape == (11, 11, 3) and np.isfinite(points).all()
    y, points = Locus(da.models.chaplygin_sleigh(), CAYLEY).surface(extent=2.0, points=11)
    assert np.abs(y).max() == 2.0 and np.isfinite(points).all()
    with pytest.raises(da.InvalidInput, match="surfaces"):
        Locus(da.models.suslov_n([1.0, 0.8, 0.6, 0.3]), VESELOV).surface()


def test_the_equations_of_a_locus_of_codimension_three():
    """On SO(4) quadrics vanish on the three-dimensional locus in six dimensions of a balanced body."""
    surface = Locus(da.models.suslov_n([1.0, 0.8, 0.6, 0.3]), VESELOV)
    found = surface.implicit()
    points = surface.map.impulse(np.random.default_rng(3).normal(size=(100, 3)))
    assert found.coefficients.shape[1] >= 2 and found.degrees.max() == 2
    assert relative_size(found, points) < 1e-11


# -- the sleigh -------------------------------------------------------------------------------------------------------
@pytest.fixture(scope="module")
def sleigh():
    return SleighLocus(da.models.chaplygin_sleigh(mass=1.3, inertia=1.5, a=0.4, b=0.2))


def test_lemma_7_2_the_cubic_and_its_tangent_lines(sleigh):
    J = 1.5
    terms = sleigh.cubic().terms(tolerance=1e-10)
    expected = {
        (0, 0, 3): J * J,
        (1, 0, 2): -2 * J,
        (0, 2, 1): 1.0,
        (0, 1, 1): 2 * J,
        (2, 0, 1): 1.0,
        (1, 1, 0): -2.0,
    }  # (7.16)
    assert set(terms) == set(expected)
    assert max(abs(terms[key] - value) for key, value in expected.items()) < 1e-9
    p, ph = np.random.default_rng(7).normal(size=(2, 20))
    for side in (1, -1):  # the plane z = side touches the surface along the line side p_theta - ph = J
        there = sum(np.real(value) * p**i * ph**j * side**k for (i, j, k), value in terms.items())
        np.testing.assert_allclose(there, side * (side * p - ph - J) ** 2, atol=1e-8)


@pytest.mark.heavy
def test_lemma_7_2_the_triangle(sleigh):
    """The discriminant quartic as printed; its cusps (0, -2 J) and (+-(3 sqrt 3/4) J, J/4); three real branches inside,
    one outside.
    """
    m, J, a, b = sleigh.parameters
    terms = sleigh.discriminant().terms(tolerance=1e-7)
    expected = {
        (0, 4): 1.0,
        (0, 3): 6 * J,
        (0, 2): 12 * J * J,
        (2, 2): 2.0,
        (2, 1): -10 * J,
        (0, 1): 8 * J**3,
        (4, 0): 1.0,
        (2, 0): -J * J,
    }
    assert set(terms) == set(expected)
    assert max(abs(terms[key] - value) for key, value in expected.items()) < 1e-5
    cusps = sleigh.cusps()
    corners = np.array([[0, -2 * J], [-0.75 * np.sqrt(3) * J, J / 4], [0.75 * np.sqrt(3) * J, J / 4]])
    assert len(cusps) == 3
    assert max(np.abs(cusps - corner).max(1).min() for corner in corners) < 1e-7
    for (p, ph), count in (((0.0, -J / 2), 3), ((0.0, 3 * J), 1), ((3 * J, 0.3), 1), ((0.5 * J, -0.2 * J), 3)):
        p1 = (ph - 2 * m * a * a) / a
        found = branches(sleigh.system, VESELOV, [p - b * p1, p1], 1.0)
        assert (len(found), found.is_real.sum()) == (3, count)


def test_lemma_7_2_the_ellipse_and_where_the_lemma_fails(sleigh):
    """(7.17), V1 < 0 inside and > 0 outside for ph > 0 outside the triangle; inside the triangle part (2) fails
    (ERRATA.md).
    """
    m, J, a, _ = sleigh.parameters
    angle = np.linspace(0, 2 * np.pi, 200)
    expected = np.stack([(J + m * a * a) * np.sin(angle), m * a * a * (1 + np.cos(angle))], -1)
    assert np.abs(sleigh.ellipse() - expected).max() < 1e-12
    rng = np.random.default_rng(0)
    points = sleigh.points(rng.uniform(-np.pi, np.pi, 4000), V := rng.normal(size=4000))
    p, ph, _ = points.T
    inside = (p / (J + m * a * a)) ** 2 + (ph / (m * a * a) - 1) ** 2 < 1
    quartic = sleigh.discriminant()(points[:, :2])[:, 0]
    single = (ph > 0) & (quartic > 0)
    assert np.any(single & inside) and np.all(V[single & inside] < 0) and np.all(V[single & ~inside] > 0)
    triangle = quartic < 0
    assert np.any(inside[triangle] != (V[triangle] < 0))


# -- genus ------------------------------------------------------------------------------------------------------------
def curve(terms: dict) -> Polynomials:
    return Polynomials(np.array(list(terms)), np.array(list(terms.values()), float)[:, None])


@pytest.mark.parametrize(
    ("terms", "genera"),
    [
        ({(2, 0): 1, (0, 2): 1, (0, 0): -1}, (0,)),
        ({(0, 2): 1, (3, 0): -1, (1, 0): 1, (0, 0): -1}, (1,)),
        ({(0, 2): 1, (3, 0): -1, (2, 0): -1}, (0,)),  # a node
        ({(0, 2): 1, (5, 0): -1, (0, 0): 1}, (2,)),
        ({(4, 0): 1, (0, 4): 1, (0, 0): -1}, (3,)),
        ({(2, 0): 1, (0, 2): -1}, (0, 0)),
    ],
)
def test_genera_of_known_curves(terms, genera):
    assert genus(curve(terms)).genera == genera


def energy_curve(system, integrator, value):
    """The polynomial in x (Cayley coordinates h w in the basis of d) of the invariant curve h^2 E_c = value, r = 2."""
    f = algebraic_map(system, integrator)
    metric = np.linalg.inv(f.subspace.T @ np.asarray(system.inertia) @ f.subspace)
    N, D = f.rational.numerator, f.rational.denominator
    level = lambda x: np.einsum("ki,ij,kj->k", N(x), metric, N(x))[:, None] - 2 * value * D(x) ** 2
    return interpolate(level, 2, 2 * int(max(N.degrees.max(), D.degrees.max())))


def test_the_moser_veselov_curve_has_genus_three_over_an_elliptic_curve():
    """Genus 3 as claimed after Proposition 7.1; the quotient by x -> -x, in (v/u, u^2), has genus 1 (Remark 7.2)."""
    found = energy_curve(da.models.suslov(GENERIC), VESELOV, 0.3)
    assert genus(found).genus == 3
    quotient: dict = {}
    for (i, j), c in found.terms().items():
        assert (i + j) % 2 == 0
        quotient[j, (i + j) // 2] = np.real(c)
    assert genus(curve(quotient), generic=False).genus == 1


@pytest.mark.heavy
def test_the_cayley_curve_has_genus_four():
    """Genus 4 as claimed after Proposition 7.2 where the energy is conserved; its level sets have genus 8 in
    general.
    """
    assert genus(energy_curve(da.models.suslov(SPECIAL), CAYLEY, 0.3)).genus == 4
    assert genus(energy_curve(da.models.suslov(GENERIC), CAYLEY, 0.3)).genus == 8
    assert genus(energy_curve(da.models.chaplygin_sleigh(), VESELOV, 0.1)).genus == 2


@pytest.mark.heavy
def test_double_curves_end_in_pinch_points():
    """Three double curves with six pinch points, on which the surface passes twice; Cayley's surface here has no real
    one.
    """
    surface = Locus(da.models.suslov(GENERIC), VESELOV)
    _, pinches = surface.pinch_points()
    curves = surface.self_intersections()
    assert len(pinches) == 6 and len(curves) == 3
    gradient = np.concatenate([np.abs(surface.implicit().slope(c)).max((1, 2)) for c in curves])
    assert gradient.max() < 1e-8
    assert len(Locus(da.models.suslov(GENERIC), CAYLEY).pinch_points()[0]) == 0

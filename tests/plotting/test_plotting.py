"""Figures: colours that the colour-blind tell apart, labels on every axis, and what cannot be drawn is refused."""

from __future__ import annotations

from itertools import combinations
from types import SimpleNamespace

import jax
import numpy as np
import pytest
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure
from mechanisms import draw_robot

import dalembert as da
from dalembert import plotting
from dalembert.errors import InvalidInput
from dalembert.groups import quaternions
from dalembert.plotting import runs
from dalembert.plotting.studies import draw_surfaces
from dalembert.plotting.style import set_symbols, space
from dalembert.studio import scenes

# Machado, Oliveira and Fernandes (2009), severity 1, on linear RGB
BLINDNESS = {
    "none": np.eye(3),
    "protanopia": [[0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216], [-0.003882, -0.048116, 1.051998]],
    "deuteranopia": [[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413], [-0.011820, 0.042940, 0.968881]],
    "tritanopia": [[1.255528, -0.076749, -0.178779], [-0.078411, 0.930809, 0.147602], [0.004733, 0.691367, 0.303900]],
}
TO_XYZ = np.array([[0.4124, 0.3576, 0.1805], [0.2126, 0.7152, 0.0722], [0.0193, 0.1192, 0.9505]])


def lab(colour: str, seen) -> np.ndarray:
    """CIE L*a*b* of a colour as somebody sees it."""
    rgb = np.array(to_rgb(colour))
    linear = np.where(rgb > 0.04045, ((rgb + 0.055) / 1.055) ** 2.4, rgb / 12.92)
    xyz = TO_XYZ @ np.clip(np.asarray(seen) @ linear, 0, 1) / [0.9505, 1.0, 1.089]
    f = np.where(xyz > 0.008856, np.cbrt(xyz), 7.787 * xyz + 16 / 116)
    return np.array([116 * f[1] - 16, 500 * (f[0] - f[1]), 200 * (f[1] - f[2])])


@pytest.mark.parametrize("kind", BLINDNESS)
def test_the_first_five_colours_differ_for_everybody(kind):
    """A difference of 10 in CIELAB is seen at a glance; where there are more curves, dashes and markers differ too."""
    seen = [lab(colour, BLINDNESS[kind]) for colour in plotting.COLOURS[:5]]
    assert min(np.linalg.norm(a - b) for a, b in combinations(seen, 2)) > 10
    assert len(set(plotting.DASHES)) == len(set(plotting.MARKERS)) == len(plotting.COLOURS)


@pytest.fixture(scope="module")
def body():
    system = da.models.suslov([[3, 0, 1], [0, 4, 0.5], [1, 0.5, 5]])
    return da.simulate(system, da.EulerPoincareSuslov(), system.state(momentum=[30.0, 20.0]), step=0.01, steps=100)


def labelled(figure) -> bool:
    flat = [axes for axes in figure.axes if axes.name != "3d" or axes._axis3don]
    names = [
        (axes.get_xlabel(), axes.get_ylabel()) + ((axes.get_zlabel(),) if axes.name == "3d" else ()) for axes in flat
    ]
    return bool(names) and all(all(each) for each in names)


def test_every_axis_has_a_label(body, tmp_path):
    errors = {"energy": body.energy_error(), "group": body.group_distance()}
    figures = [
        body.plot(tmp_path / "run.png"),
        plotting.plot_attitude(body, tmp_path / "attitude.pdf"),
        plotting.plot_momentum(body),
        plotting.plot_portrait(body),
        plotting.plot_invariants(body.t, errors, title="Invariants"),
        plotting.plot_work_precision({"a": ([1, 2], [0.1, np.nan]), "b": ([1, 2], [1e-3, 1e-5])}),
    ]
    assert all(labelled(figure) for figure in figures)
    assert {path.name for path in tmp_path.iterdir()} == {"run.png", "attitude.pdf"}
    names = [text.get_text() for text in figures[4].axes[0].get_legend().get_texts()]
    assert names[0].startswith("energy: "), "the drift class is named"


def test_a_body_without_constraint_is_not_said_to_keep_one(body):
    free = da.models.rigid_body([0.6, 0.8, 1.0])
    run = da.simulate(free, da.RungeKutta(), free.state(momentum=[1.8, 0.4, -0.9]), step=0.1, steps=20)
    panels = [made.plot(panels=["distance"]).axes[0] for made in (run, body)]
    titles = [axes.get_title(loc="left") for axes in panels]
    assert titles == ["Distance from the group", "Distance from group and constraint"]
    assert panels[0].get_ylabel() == r"$\mathrm{dist}(g, G)$" and r"\xi" in panels[1].get_ylabel()


def test_momenta_lie_on_the_surface_that_is_drawn(body):
    """The discrete Legendre map at the run's own increments gives the run's momenta."""
    from dalembert.plotting.studies import momentum_surface

    increments = np.asarray(body.increment)[:, :2]
    np.testing.assert_allclose(
        momentum_surface(body.system, body.integrator, 0.01, increments), body.momentum, rtol=1e-10
    )


def test_quaternions_go_on_without_a_jump():
    angle = np.linspace(0, 12, 200)
    c, s, zero = np.cos(angle), np.sin(angle), 0 * angle
    turns = np.stack(
        [np.stack([c, -s, zero], -1), np.stack([s, c, zero], -1), np.stack([zero, zero, 1 + zero], -1)], -2
    )
    q = quaternions(turns)
    np.testing.assert_allclose(np.abs(q @ [1, 0, 0, 0]), np.abs(np.cos(angle / 2)), atol=1e-12)
    assert np.abs(np.diff(q, axis=0)).max() < 0.05


def test_what_cannot_be_drawn_is_refused():
    sleigh = da.models.chaplygin_sleigh()
    run = da.simulate(sleigh, da.RungeKutta(), sleigh.state(xi=[0.5, -1.0, 0.0]), step=0.1, steps=2)
    with pytest.raises(InvalidInput, match=r"SE\(2\)"):
        plotting.plot_attitude(run)


def test_a_wrong_width_or_style_is_refused_and_one_name_is_a_list_of_one():
    sleigh = da.models.chaplygin_sleigh()
    run = da.simulate(sleigh, da.RungeKutta(), sleigh.state(xi=[0.5, 1.0, 0.0]), step=0.1, steps=3)
    assert len(run.plot(of="w").axes) == len(run.plot(panels="energy").axes) == 1
    for width in ("wide", -1.0, 0, float("nan")):
        with pytest.raises(InvalidInput, match=r"width is .*; allowed: the width of the figure in inches"):
            run.plot(width=width)
    plotting.STYLE["font.sise"] = 8
    try:
        with pytest.raises(InvalidInput, match=r"STYLE: .*font.sise.* Did you mean"):
            run.plot()
    finally:
        plotting.STYLE.clear()


def test_a_force_that_does_no_work_has_no_panel_of_round_off():
    def force(t, g, xi, u, p):
        return jax.numpy.stack([0.0, xi[2] - p * xi[1], -xi[1]])  # across the velocity, if there is no friction p

    for friction in (0.0, 0.1):
        body = da.System(da.SE2(), lambda t, g, xi, p: 0.5 * xi @ xi, force=force, parameters=friction)
        run = da.simulate(body, da.RungeKutta(), body.state(xi=[0.5, 1.0, 0.0]), step=0.1, steps=3)
        assert len(run.plot().axes) == 3 + 2 * bool(friction) and len(run.plot(panels=["power"]).axes) == 2


def test_no_line_is_drawn_where_an_angle_begins_a_new_turn():
    robot = da.models.unicycle()
    run = da.simulate(robot, da.RungeKutta(), robot.state(xi=[2.0, 0.5, 0.0]), step=0.1, steps=60).check()
    drawn = run.plot(of=["heading", "x"]).axes[0].lines[0].get_ydata()
    assert np.isnan(drawn).sum() == (np.abs(np.diff(run["heading"])) > 6.0).sum() > 0
    assert np.nanmax(np.abs(np.diff(drawn))) < 0.5


def test_coordinates_without_names_are_drawn():
    """The vector of a product with SO(3) has none: its panel was empty."""
    system = da.System(da.Product((da.Euclidean(2), da.SO3())), lambda t, g, xi, p: 0.5 * xi @ xi)
    run = da.simulate(system, da.RungeKutta(), system.state(xi=[1.0, 0.5, 0.1, 0.2, 0.3]), step=0.1, steps=5).check()
    lines = run.plot(panels=["motion"]).axes[0].lines
    assert [line.get_label() for line in lines] == ["$q_{1}$", "$q_{2}$"]
    np.testing.assert_array_equal(lines[1].get_ydata(), run.g[0][:, 1])


@pytest.mark.heavy
def test_a_mechanism_is_drawn_with_its_names_and_units(tmp_path):
    robot = draw_robot().system()
    start = robot.state(speed=1.0, yaw_rate=0.3)
    run = da.simulate(robot, da.RungeKutta(), start, step=0.05, steps=10, controls=np.full((10, 2), 0.1))
    figure = run.plot(tmp_path / "robot.png")
    titles = {axes.get_title(loc="left"): axes for axes in figure.axes}
    path, shape = titles["Path of the base from above,\nthe body to scale"], titles["Shape"]
    boxes = [(patch.get_xy().min(axis=0), patch.get_xy().max(axis=0)) for patch in path.patches]  # also at the start
    assert any(np.allclose(box, [[-0.15, -0.15], [0.25, 0.15]]) for box in boxes)  # the base, 0.4 m x 0.3 m
    assert any(np.allclose(box, [[-0.1, 0.2], [0.1, 0.2]], atol=0.011) for box in boxes)  # the left wheel
    assert path.get_xlabel() == "$x$, m" and shape.get_xlabel() == "time $t$, s"
    assert shape.get_ylabel() == r"castor swivel, $\mathrm{rad}$"
    column = run.plot(width=3.37)
    assert column.get_figheight() <= 9.0
    named = [axes for axes in column.axes if axes.get_title("left")]
    assert len(named) == 4  # six panels would not stand on a page
    assert column.get_supxlabel() == "left out: distance, power; panels= chooses"
    chosen = run.plot(width=3.37, panels=["controls", "power"]).axes
    assert {axes.get_title("left") for axes in chosen} == {"Controls", "Power and work", ""}
    with pytest.raises(InvalidInput, match="unknown panel of this run 'steps'"):
        run.plot(panels=["steps"])
    beside = run.plot(of=["left torque", "right torque"], width=3.37).axes[0]
    assert len(beside.get_legend().get_texts()) == 2 and not beside.texts  # the names stand above, not outside
    named = run.plot(tmp_path / "named.png", of=["left torque", "speed", "left rate", "left side force (shared)"])
    quantities = ["left torque, $\\mathrm{N\\,m}$", "speed, $\\mathrm{m/s}$", "left rate, $\\mathrm{rad/s}$"]
    assert [axes.get_ylabel() for axes in named.axes] == [*quantities, "left side force (shared), $\\mathrm{N}$"]
    np.testing.assert_array_equal(named.axes[1].lines[0].get_ydata(), run["speed"])
    with pytest.raises(InvalidInput, match=r"unknown quantity 'sped'. Did you mean 'speed'"):
        run.plot(of=["sped"])
    dataset = run.to_xarray()
    units = dict(zip(dataset["coordinate_name"].values, dataset["coordinate_unit"].values, strict=True))
    assert units["x"] == "m" and units["yaw"] == units["castor swivel"] == "rad"
    assert set(dataset["constraint_unit"].values) == {"N"}


def test_exact_zeros_stand_on_a_line_that_says_0():
    figure, (top, bottom) = plotting.sheet(2, 1, sharey=True)
    plotting.curve(top, [0, 1, 2], [0.0, 1e-3, 0.0])
    plotting.curve(bottom, [0, 1, 2], [0.0, 0.0, 1e-9])
    plotting.style.save(plotting.style.save(figure, None), None)  # a second time changes nothing
    floor = top.get_yticks()[0]
    assert floor < 1e-9 and bottom.get_yticklabels()[0].get_text() == "0"
    assert top.lines[0].get_ydata().tolist() == [floor, 1e-3, floor]
    assert bottom.lines[0].get_ydata().tolist() == [floor, floor, 1e-9]
    _, alone = plotting.sheet()
    plotting.curve(alone, [0, 1], [0.0, 0.0])
    plotting.style.show_zeros(alone)
    assert alone.get_yticks().tolist() == [0.0] and "exactly 0" in [text.get_text() for text in alone.texts]


def test_many_methods_at_zero_have_one_label_that_counts_them():
    """`compare --method all` on the sleigh: fourteen names led to one point."""
    _, (exact, noise) = plotting.sheet(1, 2)
    for k in range(6):
        plotting.curve(exact, [0, 1, 2], [0.0, 0.0, 0.0], label=f"exact {k}")
        plotting.curve(noise, [0, 1, 2], [0.0, 3e-16, 1e-16 * k], label=f"method {k}")
    plotting.curve(exact, [0, 1, 2], [0.0, 1e-3, 1e-3], label="runge-kutta")
    plotting.curve(exact, [0, 1, 2], [0.0, 1e-17, 0.0], label="leapfrog")
    for axes in (exact, noise):
        plotting.style.show_zeros(axes)
        plotting.style.label_ends(axes)
    assert {text.get_text() for text in exact.texts} == {"exactly 0: the 6 others", "runge-kutta", "leapfrog"}
    assert [text.get_text() for text in noise.texts] == ["round-off: all 6"]


def test_quantities_of_different_units_have_axes_of_their_own():
    car = da.models.car()
    start = car.state(xi=[0.0, 1.0, 0.0, 0.0])
    run = da.simulate(car, da.RungeKutta(), start, step=0.1, steps=4, controls=np.full((4, 2), 0.1)).check()
    labels = [axes.get_ylabel() for axes in run.plot(panels=["controls", "power"]).axes]
    inputs = [r"drive force, $\mathrm{N}$", r"steering torque, $\mathrm{N\,m}$"]
    assert labels == [r"power, $\mathrm{W}$", r"work, $\mathrm{J}$", *inputs]
    low = runs.draw_by_units(Figure((3.2, 1.4)), 111, "Controls", {"": (run.t, {"steering torque": run.t})}, {})[0]
    assert low.get_title("right") == "steering torque"  # there is no room at its axis
    figure = Figure()
    values = {"run": (np.arange(3.0), {"w1": np.ones(3), "x rate": np.zeros(3), "y rate": np.ones(3)})}
    top, bottom = runs.draw_by_units(figure, 111, "Velocity", values, {"w1": "rad s-1"})
    assert top.get_ylabel() == r"$\omega_{1}$, $\mathrm{rad/s}$" and not top.get_legend()
    assert [text.get_text() for text in bottom.get_legend().get_texts()] == ["$x$ rate", "$y$ rate"]


def test_a_long_path_has_a_row_of_its_own():
    """A path five times as long as wide left three quarters of its square empty."""
    sleigh = da.models.chaplygin_sleigh()
    run = da.simulate(sleigh, da.RungeKutta(), sleigh.state(xi=[0.05, 3.0, 0.0]), step=0.1, steps=60).check()
    path, energy, distance = (axes.get_subplotspec() for axes in run.plot().axes)
    assert list(path.rowspan) == [0] and len(path.colspan) == 2
    assert list(energy.rowspan) == list(distance.rowspan) == [1]


def test_round_off_does_not_look_like_structure():
    """Below 1e-16 the axis is linear down to 0: a tenth of that stands near 0, not a decade below."""
    figure, axes = plotting.sheet()
    plotting.curve(axes, [0, 1, 2, 3], [1e-9, 1e-17, 1e-19, 1e-16])
    plotting.style.save(figure, None)
    first, tenth, none, edge = axes.lines[0].get_ydata()
    assert axes.get_yticks()[0] == 1e-17 and axes.get_yticklabels()[0].get_text() == "0"
    assert (first, edge) == (1e-9, 1e-16) and none < tenth < 1.3e-17
    small, axes = plotting.sheet()
    plotting.curve(axes, [0, 1], [1e-18, 1e-20])  # of something small these are no noise
    plotting.style.save(small, None)
    assert axes.lines[0].get_ydata().tolist() == [1e-18, 1e-20]
    tiny, axes = plotting.sheet()
    plotting.curve(axes, [0, 1], [0.0, 4e-34])
    plotting.style.save(tiny, None)
    assert axes.lines[0].get_ydata().tolist() == [1e-17, 1e-17] and axes.get_ylim()[1] > 1e-13


def test_a_body_that_hardly_tilts_is_drawn_by_its_velocity():
    system = da.models.rattleback(depth=0.01)
    start = system.state(xi=[0.5, 0.0, -5.0, 0.0, -0.005])
    run = da.simulate(system, da.RungeKutta(), start, step=0.002, steps=20)
    assert run.plot().axes[0].get_title(loc="left") == "Velocity"


@pytest.mark.parametrize(
    "plain, printed",
    [
        ("SE(2) x SO(2)", r"$\mathrm{SE}(2)$ $\times$ $\mathrm{SO}(2)$"),
        ("R^3", r"$\mathbb{R}^{3}$"),
        ("|A xi - b|", r"$\|A\xi - b\|$"),
        ("Rolling disk", "Rolling disk"),
    ],
)
def test_formulas_are_typeset(plain, printed):
    assert plotting.style.typeset(plain) == printed


def test_a_user_changes_the_look_of_every_figure():
    plotting.STYLE["font.size"] = 17.0
    try:
        sleigh = da.models.chaplygin_sleigh()
        run = da.simulate(sleigh, da.RungeKutta(), sleigh.state(xi=[0.5, -1.0, 0.0]), step=0.1, steps=2)
        figure = run.plot()
        assert figure.axes[0].xaxis.get_ticklabels()[0].get_fontsize() == 17.0
        assert figure.axes[0].xaxis.label.get_fontsize() == 17.0 and figure._suptitle.get_fontsize() > 20.0
    finally:
        plotting.STYLE.clear()
    assert figure._repr_png_().startswith(b"\x89PNG")  # a notebook shows it
    column = run.plot(width=3.37)
    column.draw_without_rendering()
    boxes = [axes.get_position() for axes in column.axes]
    assert column.get_figwidth() == 3.37 and len({round(box.x0, 6) for box in boxes}) == 1  # below each other
    assert min(box.width for box in boxes) > 0.5


def poses(*rows):
    """Elements (k, 3, 3) of SE(2) from rows (angle, x, y)."""
    angle, x, y = np.array(rows, float).T
    zero, one = 0 * x, 1 + 0 * x
    found = [np.cos(angle), -np.sin(angle), x, np.sin(angle), np.cos(angle), y, zero, zero, one]
    return np.stack(found, -1).reshape(-1, 3, 3)


def drawn(system, g, xi=None):
    """The outlines that `draw_motion` fills for a motion through these configurations, and its title."""
    count = len(jax.tree.leaves(g)[0])
    xi = np.zeros((count, system.group.dim)) if xi is None else xi
    figure = Figure()
    motion = SimpleNamespace(system=system, t=np.arange(count), g=g, xi=xi)
    plotting.draw_motion(figure, 111, {"run": motion})
    (axes,) = figure.axes
    return [patch.get_xy()[:-1] for patch in axes.patches], axes.get_title()


def test_a_car_is_drawn_to_scale_on_its_path_with_its_front_wheels_turned():
    car = da.models.car(length=2.0)
    steer = da.SO2().exp(np.array([0.5]))
    outlines, title = drawn(car, (poses((0, 0, 0), (0, 4, 0), (0, 8, 0)), np.stack([steer] * 3)))
    assert title == "Path of the contact point,\nthe body to scale"
    bodies = [outline for outline in outlines if np.ptp(outline[:, 0]) > 2]
    assert sorted(outline[:, 0].min() for outline in bodies) == pytest.approx([-0.5, 7.5])
    wheels = [outline.mean(axis=0) for outline in outlines if np.ptp(outline[:, 0]) < 1]
    assert any(np.allclose(middle, [2.0, 0.6]) for middle in wheels)  # a front wheel, 2 m ahead of the rear axle
    front = next(outline for outline in outlines if np.allclose(outline.mean(axis=0), [2.0, 0.6]))
    along = front[1] - front[0]
    assert np.arctan2(along[1], along[0]) == pytest.approx(0.5)


def test_a_long_path_shows_a_larger_vehicle_and_says_so():
    way = poses(*((0.0, x, 0.0) for x in np.linspace(0, 1000, 50)))
    outlines, title = drawn(da.models.car(length=2.0), (way, np.stack([np.eye(2)] * 50)))
    assert title == "Path of the contact point,\nthe body drawn 20 times as large"  # a car of 3 m
    assert max(np.ptp(outline[:, 0]) for outline in outlines) == pytest.approx(60.0)


def test_a_vehicle_does_not_hide_a_path_shorter_than_itself():
    way = poses(*((0.0, x, 0.0) for x in np.linspace(0, 1, 50)))
    outlines, title = drawn(da.models.car(length=2.0), (way, np.stack([np.eye(2)] * 50)))
    assert title == "Path of the contact point,\nthe body drawn at 0.1 of its size"  # a car of 3 m
    assert max(np.ptp(outline[:, 0]) for outline in outlines) == pytest.approx(0.3)


def test_an_own_body_on_the_plane_is_an_oval_of_its_inertia():
    body = da.models.chaplygin_sleigh(mass=2.0, inertia=0.5, a=0.3)
    outlines, _ = drawn(body, poses((0, 0, 0), (0, 5, 0)))
    (oval, *_), length = sorted(outlines, key=lambda outline: outline[:, 0].min()), np.sqrt(4 * 0.25 / 1.36)
    assert (oval.min(axis=0) + oval.max(axis=0)) / 2 == pytest.approx([0.3, 0.0], abs=1e-12)
    assert np.ptp(oval[:, 0]) == pytest.approx(2 * length)
    disk, _ = drawn(da.models.vertical_disk(radius=0.7), (poses((0, 0, 0), (0, 5, 0)), np.stack([np.eye(2)] * 2)))
    assert np.ptp(disk[0][:, 0]) == pytest.approx(1.4)  # an upright disk is a line from above


def test_a_car_of_ones_own_with_feedback_has_its_wheels_in_plots_and_scenes():
    car = da.models.car(length=2.0)
    followed = da.models.car_on_path(car, lambda x: x[1])
    assert runs.vehicle_model(followed)[0] == "car" and runs.vehicle_model(followed)[1]["length"] == 2.0
    parts = (poses((0, 0, 0), (0, 5, 0)), np.stack([np.eye(2)] * 2))
    frames = SimpleNamespace(parts=parts, parameters={}, name="", system=followed)
    assert len(scenes.vehicle(frames).wheels) == 4
    assert runs.vehicle_model(da.models.chaplygin_sleigh()) is None


def test_more_curves_than_colours_are_told_apart_and_none_is_lost():
    """Nine coordinates: the eighth had the looks of the first. Eight inputs: the eighth was not drawn."""
    system = da.System(
        da.Euclidean(9),
        lambda t, q, v, p: 0.5 * v @ v,
        force=lambda t, q, v, u, p: jax.numpy.append(u, 0.0),
        inputs=[da.Input(f"push {k}", "N") for k in range(8)],
    )
    run = da.simulate(system, da.RungeKutta(), system.state(), step=0.1, steps=3, controls=np.ones((3, 8)))
    panels = {axes.get_title(loc="left"): axes for axes in run.plot().axes}
    for title, count in (("Coordinates", 9), ("Controls", 8)):
        looks = {(line.get_color(), line.get_linestyle()) for line in panels[title].lines}
        assert len(looks) == len(panels[title].lines) == count


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("w1, rad/s", r"$\omega_{1}$, rad/s"),
        ("gauss: q12", "gauss: $q_{12}$"),
        ("x, m", "$x$, m"),
        ("(89), data on D_ε, h = 0.1", r"(89), data on $D_\varepsilon$, $h$ = 0.1"),
        ("taylor at 1e-16, h = 2.5e-05", r"taylor at $10^{-16}$, $h$ = $2.5 \times 10^{-5}$"),
        ("speed of $v_1$ at t = 2", "speed of $v_1$ at $t$ = 2"),
        ("order 4, DMV6, dormand-prince, a way to x", "order 4, DMV6, dormand-prince, a way to x"),
    ],
)
def test_symbols_in_texts_are_set_as_mathematics(text, shown):
    assert set_symbols(text) == shown


def test_the_group_and_the_constraint_of_one_run_have_two_colours(body):
    """Two dense curves of one colour cannot be told apart by their dashes."""
    panel = next(axes for axes in body.plot().axes if axes.get_title(loc="left").startswith("Distance"))
    colours = [line.get_color() for line in panel.lines if not line.get_label().startswith("_")]
    assert len(colours) == len(set(colours)) == 2


def test_a_symbol_at_an_axis_in_space_stands_upright():
    axes = space(Figure(), labels=("$M_1$", "$M_2$", "$M_3$"))
    axes.figure.draw_without_rendering()
    assert [axis.label.get_rotation() for axis in (axes.xaxis, axes.yaxis, axes.zaxis)] == [0.0, 0.0, 0.0]


def test_a_surface_and_a_plane_cross_in_a_line(monkeypatch):
    """What lies behind the plane is drawn before it, the rest after it: no face of one is mixed with the other's."""
    axes, heights = space(Figure(), elev=30, azim=-60), {}
    monkeypatch.setattr(axes, "add_collection3d", lambda found: None)
    note = lambda faces, zorder, **looks: heights.update({zorder: faces[..., 2].mean(axis=1)})
    monkeypatch.setattr("mpl_toolkits.mplot3d.art3d.Poly3DCollection", note)
    x, y = np.meshgrid(np.linspace(-1, 1, 21), np.linspace(-1, 1, 21), indexing="ij")
    corners = np.array([[[-1, -1, 0], [-1, 1, 0]], [[1, -1, 0], [1, 1, 0]]], float)
    draw_surfaces(axes, [np.stack([x, y, x * y], -1)], plane=corners)
    assert not axes.computed_zorder and sorted(heights) == [1, 2, 3]
    assert np.all(heights[1] <= 0) and np.all(heights[2] == 0) and np.all(heights[3] > 0)


def test_sixteen_methods_look_different():
    """Colours come again after seven; the dash and the marker are then others."""
    points = {f"method {k}": ([1.0, 2.0], [10.0**-k, 10.0 ** -(k + 1)]) for k in range(16)}
    (axes,) = da.plotting.plot_work_precision(points).axes
    looks = {(line.get_color(), str(line._dash_pattern), line.get_marker()) for line in axes.lines}
    assert len({look[::2] for look in looks}) == len({look[:2] for look in looks}) == 16
    assert axes.get_legend() is None and {text.get_text() for text in axes.texts} == set(points)
    few = da.plotting.plot_work_precision(dict(list(points.items())[:3])).axes[0]  # their curves have names, too
    assert few.get_legend() is None and len(few.texts) == 3


def test_files_have_whole_fonts_also_where_the_user_saves_them(tmp_path):
    figure = da.plotting.plot_work_precision({"a": ([1.0, 2.0], [1.0, 0.5])}, path=tmp_path / "a.pdf")
    figure.savefig(tmp_path / "b.pdf")

    @da.plotting.styled
    def own():
        figure, axes = da.plotting.sheet()
        axes.set(xlabel="time, s")
        return figure

    own().savefig(tmp_path / "c.pdf")
    assert own()._repr_png_().startswith(b"\x89PNG")
    for name in ("a.pdf", "b.pdf", "c.pdf"):
        data = (tmp_path / name).read_bytes()
        assert b"/Subtype /Type3" not in data and b"/CIDFontType2" in data


def test_titles_do_not_break_inside_formulas():
    from dalembert.plotting.style import headline, sheet

    figure, _ = sheet(size=(3.37, 2.0))
    headline(figure, r"forklift on $\mathrm{SE}(2)$ $\times$ $\mathbb{R}^{4}$, dormand-prince, h = 0.02 s")
    lines = figure.get_suptitle().split("\n")
    assert lines == [r"forklift on $\mathrm{SE}(2)$ $\times$ $\mathbb{R}^{4}$,", "dormand-prince, h = 0.02 s"]


def test_the_names_of_points_close_together_do_not_overlap():
    """The points of `compare --method all` on the sleigh: methods of order 2 within a decade of cost and error."""
    from matplotlib.text import Text

    from dalembert.plotting.style import sheet

    names = ("lagrange-dalembert", "retraction-adapted", "leapfrog", "geometric-nonholonomic", "tangent-lift", "taylor")
    points = [(40.0 * 1.3**k, 0.05 / (1 + k % 3), name, "C0") for k, name in enumerate(names)]
    points += [(90.0, 0.03, "cotangent-lift", "C1"), (400.0, 1e-5, "dormand-prince", "C2")]
    figure, axes = sheet(size=(5.0, 3.6))
    runs.draw_named_points(axes, points, floor=[1e-5])
    for text in axes.texts:
        text.update_positions(figure._get_renderer())
    boxes = [Text.get_window_extent(text) for text in axes.texts]
    assert len(boxes) == 8 and not any(a.overlaps(b) for a, b in combinations(boxes, 2))
    line = axes.transData.transform((1.0, 1e-5))[1]
    assert not any(box.y0 < line < box.y1 for box in boxes)  # nor does the grey line strike one out


@pytest.mark.parametrize("make, units", [
    (lambda: (da.models.chaplygin_sleigh(), [0.9, -1.0, 0.0]), ("J", r"$\mathrm{m/s}$")),
    (lambda: (da.models.suslov([3.0, 4.0, 5.0]), [0.5, 1.0, 0.0]), ("J", r"$\mathrm{rad/s}$")),
    (lambda: (da.models.car(), [0.0, 1.0, 0.0, 0.3]), ("J", r"$\mathrm{m/s}$")),
    (lambda: (da.models.nonholonomic_particle(), [1.1, 0.7, 0.0]), ("", "")),
])  # fmt: skip
def test_errors_of_a_comparison_have_the_units_that_the_system_says(make, units):
    system, xi = make()
    methods = {"rk": da.RungeKutta()}
    table = da.compare(system, methods, system.state(xi=xi), steps=[0.1], t_end=0.5, timing=False, error=False)
    _, energy, residual, group, _, lost = (axes.get_ylabel() for axes in table.plot().axes)
    tails = [f", {unit}" if unit else "" for unit in units]
    assert energy == "$|E - E(0)|$" + tails[0] and lost == "largest energy error" + tails[0]
    assert residual == r"$\|A\xi - b\|$" + tails[1] and group == (
        r"$\mathrm{dist}(g, G)$" if str(system.group).startswith("R") else r"$\|R^{\!\top} R - 1\|$"
    )


@pytest.mark.parametrize("name", ["rolling-disk", "chaplygin-sphere"])
def test_what_rolls_on_a_plane_is_shown_by_its_path(name):
    model = da.models.MODELS[name]
    system = model.make(model.example)
    velocity = system.project(system.group.identity(), [0.9, 0.5, 0.7, 2.0, -0.9])
    run = da.simulate(system, da.RungeKutta(), system.state(xi=velocity), step=0.01, steps=20).check()
    axes = run.plot().axes[0]
    assert axes.get_title(loc="left").startswith("Path of the body from above")
    assert np.array_equal(axes.lines[0].get_xydata(), run.g[1]) and np.ptp(run.g[1], axis=0).max() > 0.01
    assert axes.get_xlabel().replace("$", "") == "x, m"


def test_times_that_are_nearly_equal_are_drawn_near_each_other():
    _, axes = plotting.sheet()
    runs.draw_named_points(axes, [(100.0, 1e-3, "one", "C0"), (101.0, 1e-6, "other", "C1")])
    low, high = axes.get_xlim()
    assert high / low > 2.5

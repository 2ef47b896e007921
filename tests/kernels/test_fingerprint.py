"""Warm starts: a second process traces nothing, and other code, values and globals have other fingerprints."""

import dataclasses
import enum
import functools
import os
import subprocess
import sys
import warnings

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from registry import forget as forget_compiled

import dalembert as da
from dalembert.kernels import LoweringError, cache, compile_function, lower, problem, recognition
from dalembert.models import MODELS

GENERIC = [[3.0, 0.0, 1.0], [0.0, 4.0, 0.5], [1.0, 0.5, 5.0]]


@pytest.fixture
def fresh(tmp_path, monkeypatch):
    """An empty cache, and a function that forgets what this process knows, as a new process would."""
    monkeypatch.setenv("DALEMBERT_CACHE", str(tmp_path / "objects"))
    monkeypatch.setattr(
        cache, "IMPORT_TIME", float("inf")
    )  # whoever edits sources while the tests run does not matter here
    lowerings = []
    monkeypatch.setattr(problem, "lower", lambda *args, **options: lowerings.append(1) or lower(*args, **options))

    def forget():
        forget_compiled(monkeypatch)
        lowerings.clear()

    forget()
    forget.lowerings, forget.folder = lowerings, tmp_path / "objects"
    return forget


def run(inertia=GENERIC, step=0.05, lagrangian="moser-veselov"):
    system = da.models.suslov(inertia)
    start = system.state(momentum=[3.0, 2.0])
    return da.simulate(system, da.EulerPoincareSuslov(lagrangian), start, step=step, steps=10).check()


def test_a_known_step_is_neither_traced_nor_lowered(fresh):
    first = run()
    assert fresh.lowerings
    fresh()
    again = run()
    assert not fresh.lowerings and again.backend == "llvm"
    np.testing.assert_array_equal(again.momentum, first.momentum)


def test_another_parameter_is_the_same_program(fresh):
    run()
    fresh()
    other = run(np.diag([1.0, 2.0, 2.5]).tolist(), step=-0.02)
    assert not fresh.lowerings and other.status == "ok"


@pytest.mark.parametrize(
    "damage", [lambda data: data[:-1], lambda data: data[:-1] + bytes([data[-1] ^ 1]), lambda data: b""]
)
def test_a_corrupt_entry_is_rebuilt(fresh, damage):
    first = run()
    for entry in fresh.folder.iterdir():
        if entry.is_file():
            entry.write_bytes(damage(entry.read_bytes()))
    fresh()
    np.testing.assert_array_equal(run().momentum, first.momentum)
    assert fresh.lowerings


def test_another_program_than_the_stored_one_is_not_run():
    traced = lower(lambda consts, x, u: x, lambda consts, x: 2.0 * x, (), jax.ShapeDtypeStruct((), float), None)
    stored = cache.LoweredProgram(
        "the digest of another", traced.inputs, traced.captured, traced.record, lambda: traced
    )
    with pytest.raises(LoweringError, match="another program"):
        _ = stored.program
    assert stored.program is traced.program and stored.digest == traced.digest  # whoever tries again has the right one


def test_other_sources_and_sources_that_changed_are_traced(fresh, monkeypatch):
    run()
    fresh()
    monkeypatch.setattr(cache, "_versions", lambda: ("another version",))
    run()
    assert fresh.lowerings
    monkeypatch.undo()


def test_sources_that_changed_since_the_import_leave_nothing_behind(fresh, monkeypatch):
    monkeypatch.setattr(cache, "IMPORT_TIME", 0.0)
    cache._versions.cache_clear()
    run()
    entries = [cache.read_entry(entry) for entry in fresh.folder.iterdir()]
    cache._versions.cache_clear()
    assert entries and all(content.startswith(b"\x7fELF") for content in entries)


def test_what_cannot_be_written_down_has_no_name():
    for thing in (object(), (1, object()), [memoryview(b"")]):
        with pytest.raises(recognition.Unfingerprintable):
            list(recognition.fingerprint(thing))


def test_a_function_that_closes_over_a_system_is_recognised():
    """As costs and observables do that read `system.observe`: the same for equal systems, another for others."""

    def watching(system):
        return lambda t, g, xi: system.observe(t, g, xi)

    def digest(function):
        return recognition.recognise(function)[0].digest

    one, same, other = (watching(da.models.suslov(np.diag(d))) for d in ([1, 2, 3], [1, 2, 3], [1.0, 2.0, 3.5]))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert digest(one) == digest(same) != digest(other)


def test_an_own_object_that_is_its_own_structure_is_told_by_what_it_holds():
    """As a group of one's own: a pytree without leaves, whose structure holds the object itself."""

    @jax.tree_util.register_static
    class Own:
        def __init__(self, size):
            self.size = size

    one, same, other = ("\0".join(recognition.fingerprint(Own(size))) for size in (1, 1, 2))
    assert one == same != other


def test_names_tell_apart_what_differs():
    methods = [
        da.EulerPoincareSuslov(),
        da.EulerPoincareSuslov("retraction"),
        da.EulerPoincareSuslov(retraction=da.Exponential()),
        da.LagrangeDAlembert(),
        da.LagrangeDAlembert(node=0.25),
        da.LagrangeDAlembert(node=0.0),
    ]
    structures = [
        jax.tree.structure(MODELS[name].make(dict(MODELS[name].example)))
        for name in ("suslov", "vertical-disk", "rolling-ball")
    ]
    things = [*methods, 0, 0.0, False, None, "0", (0,), [0], ((0,), 0), (0, (0,)), np.zeros(1), np.zeros((1, 1))]
    names = ["\0".join(recognition.fingerprint(thing)) for thing in things]
    assert len(set(names)) == len(names)
    assert len({"\0".join(recognition.fingerprint(structure)) for structure in structures}) == len(set(structures))


def harmonic(lagrangian, **options):
    system = da.System(da.Euclidean(2), lagrangian, **options)
    return da.simulate(system, da.RungeKutta(), system.state(np.ones(2), [1.0, 0.0]), step=0.1, steps=2).check().g[-1]


def test_the_line_of_a_function_does_not_matter_and_its_kinds_of_arguments_do():
    """A line that is added above, or an equal lambda below, is the same program; `*a` and `a` have the same code."""
    text = "first = lambda a, b: a * b\n\n\nsecond = lambda a, b: a * b\none = lambda a: a[0]\nmany = lambda *a: a[0]\n"

    def written(source):
        names = {"__name__": "own_functions"}
        exec(compile(source, "own_functions.py", "exec"), names)
        return [list(recognition.fingerprint(names[name])) for name in ("first", "second", "one", "many")]

    first, second, one, many = written(text)
    assert first == second
    assert one != many
    assert written("# a line\n" + text) == [first, second, one, many]


def test_a_user_system_is_traced_once_for_all_processes(fresh):
    def lagrangian(t, g, xi, p):
        return 0.5 * xi @ xi - 0.3 * g @ g

    fresh()
    first = harmonic(lagrangian)
    assert fresh.lowerings
    fresh()
    np.testing.assert_array_equal(harmonic(lagrangian), first)
    assert not fresh.lowerings


STIFFNESS = 1.0


def reads_a_global(t, g, xi, p):
    return 0.5 * xi @ xi - 0.5 * STIFFNESS * g @ g


class Spring:
    def __init__(self, k):
        self.k = k

    def lagrangian(self, t, g, xi, p):
        return 0.5 * xi @ xi - 0.5 * self.k * g @ g


def with_stiffness(k, t, g, xi, p):
    return 0.5 * xi @ xi - 0.5 * k * g @ g


def set_global(k):
    global STIFFNESS
    STIFFNESS = k
    return reads_a_global


SPRINGS = {"k": 1.0, "name": "two"}


def pull_of(g):
    return SPRINGS["k"] * g


def through_a_helper(t, g, xi, p):
    return 0.5 * xi @ xi - 0.5 * pull_of(g) @ g


def set_in_a_table(k):
    SPRINGS["k"] = k
    return through_a_helper


def nested(k):
    def force(g):
        return k * g

    return lambda t, g, xi, p: 0.5 * xi @ xi - 0.5 * force(g) @ g


def recursive(k):
    """A function that calls itself, and holds the number too: k = k^2/k."""

    def power(x, n):
        return k * power(x, n - 1) if n else x

    return lambda t, g, xi, p: 0.5 * xi @ xi - 0.5 * power(1.0 / k, 2) * g @ g


class Knot:
    """An object that one of its attributes knows, and that is called."""

    def __init__(self, k):
        self.k, self.other = [k], {"of": self}

    def __call__(self, t, g, xi, p):
        return 0.5 * xi @ xi - 0.5 * self.other["of"].k[0] * g @ g


class InSlotsToo:
    __slots__ = ("k",)

    def __init__(self, k):
        self.k = k


def in_slots(k):
    held = InSlotsToo(k)
    return lambda t, g, xi, p: 0.5 * xi @ xi - 0.5 * held.k * g @ g


def default_values(k):
    def lagrangian(t, g, xi, p, k=k):
        return 0.5 * xi @ xi - 0.5 * k * g @ g

    return lagrangian


BUILDERS = {
    "lambda": lambda k: lambda t, g, xi, p: 0.5 * xi @ xi - 0.5 * k * g @ g,
    "default": default_values,
    "partial": lambda k: functools.partial(with_stiffness, k),
    "method": lambda k: Spring(k).lagrangian,
    "object": Knot,
    "slots": in_slots,
    "jit": lambda k: jax.jit(lambda t, g, xi, p: 0.5 * xi @ xi - 0.5 * k * g @ g),
    "nested": nested,
    "recursive": recursive,
    "global": set_global,
    "global of a helper": set_in_a_table,
    "dictionary": lambda k: (lambda p0: lambda t, g, xi, p: 0.5 * xi @ xi - 0.5 * p0["k"] * g @ g)({"k": k, 1: None}),
}
NEED_VALUES = {
    "NumPy": lambda k: lambda t, g, xi, p: 0.5 * xi @ xi - 0.5 * float(np.sum(k)) * g @ g,
    "condition": lambda k: lambda t, g, xi, p: 0.5 * xi @ xi - 0.5 * (k if k > 1.0 else 1.0) * g @ g,
    "exponent": lambda k: lambda t, g, xi, p: 0.5 * xi @ xi - 0.5 * g[0] ** k - 0.5 * g[1] ** 2.0,
}
"""Builders of functions that need the value of their number when they are traced."""


@pytest.mark.parametrize("name", BUILDERS | NEED_VALUES)
def test_a_system_that_the_same_code_builds_again_is_the_same_program(name, fresh):
    build = (BUILDERS | NEED_VALUES)[name]
    first, other = harmonic(build(2.0)), harmonic(build(3.0))
    fresh.lowerings.clear()
    np.testing.assert_array_equal(harmonic(build(2.0)), first)
    assert not fresh.lowerings
    assert np.abs(first - other).max() > 1e-3  # other numbers are told apart


@pytest.mark.parametrize("name", [each for each in BUILDERS if each != "dictionary"])
def test_numbers_that_a_function_holds_are_inputs(name, fresh):
    """Floats and arrays in closures, defaults, partials and objects: other numbers compile nothing, JAX traces them."""
    build = BUILDERS[name]
    harmonic(build(2.0))
    fresh.lowerings.clear()
    np.testing.assert_array_equal(harmonic(build(jnp.array(3.0))), harmonic(build(np.float64(3.0))))
    np.testing.assert_array_equal(harmonic(build(jnp.array(3.0))), harmonic(build(3.0)))
    assert not fresh.lowerings
    plain = da.System(da.Euclidean(2), lambda t, g, xi, p: 0.5 * xi @ xi - 0.5 * p * g @ g, parameters=3.0)
    state = plain.state(jnp.ones(2), jnp.array([1.0, 0.0]))
    wanted = da.simulate(plain, da.RungeKutta(), state, step=0.1, steps=2).g
    np.testing.assert_allclose(harmonic_run(build(3.0)).g, wanted, rtol=1e-14)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        slope = jax.grad(lambda k: harmonic_end(build(k)))(jnp.array(3.0))
        again = jax.jit(jax.vmap(jax.grad(lambda k: harmonic_end(build(k)))))(jnp.array([2.0, 3.0]))
    ends = [harmonic_end(build(k)) for k in (3.0 + 1e-5, 3.0 - 1e-5)]
    np.testing.assert_allclose(slope, (ends[0] - ends[1]) / 2e-5, rtol=1e-8)
    np.testing.assert_allclose(again[1], slope, rtol=1e-14)
    system = jax.vmap(lambda k: da.System(da.Euclidean(2), build(k)))(jnp.array([2.0, 3.0]))
    assert {leaf.shape for leaf in jax.tree.leaves(system)} == {(2,)}


def test_only_the_numbers_that_are_needed_stay(fresh):
    def build(k, n, start):
        return lambda t, g, xi, p: 0.5 * xi @ xi - k * jnp.sum(jnp.abs(g) ** n) - max(start, 0.0)

    harmonic(build(2.0, 2.0, 0.3))
    fresh.lowerings.clear()
    first = harmonic(build(3.0, 2.0, 0.3))
    assert not fresh.lowerings
    other = harmonic(build(3.0, 3.0, 0.3))
    assert fresh.lowerings and np.abs(first - other).max() > 1e-3
    assert [len(found[1]) for found in da.System(da.Euclidean(2), build(3.0, 2.0, 0.3))._closures.values()] == [1]


def test_a_number_that_was_known_may_be_traced_later():
    """A function with an integer, then with a traced number in its place."""
    build = BUILDERS["lambda"]
    for k in (2, 3.0, jnp.array(2.5)):
        slope = jax.grad(lambda k: harmonic_end(build(k)))(2.5)
        assert np.isfinite(harmonic_end(build(k))) and np.isfinite(slope)


def test_what_is_asked_which_object_it_is_stays_that_object():
    """An object that was put together again would be another one: `is` and members of an Enum are asked for it."""

    class Law(enum.Enum):
        LINEAR = 1.5
        CUBIC = 3.5

    def build(law, k):
        return lambda t, g, xi, p: 0.5 * xi @ xi - (k * g @ g if law is Law.LINEAR else k * jnp.sum(g**4))

    spring = Spring(0.7)
    chosen = lambda held, k: lambda t, g, xi, p: 0.5 * xi @ xi - (k if held is spring else 0.1 * k) * g @ g
    assert np.abs(harmonic(build(Law.LINEAR, 2.0)) - harmonic(build(Law.CUBIC, 2.0))).max() > 1e-3
    plain = harmonic(lambda t, g, xi, p: 0.5 * xi @ xi - p * g @ g, parameters=2.0)
    np.testing.assert_allclose(harmonic(build(Law.LINEAR, 2.0)), plain, rtol=1e-14)
    np.testing.assert_allclose(harmonic(chosen(spring, 2.0)), plain, rtol=1e-14)


def test_systems_whose_functions_hold_a_one_are_members_of_an_ensemble():
    """0 and 1 are structure where a system is alone; other members have other numbers there."""
    values = [0.5, 1.0, 2.0, 0.0]
    for kind in (float, jnp.array):
        systems = [da.System(da.Euclidean(2), BUILDERS["lambda"](kind(k))) for k in values]
        starts = [each.state(jnp.ones(2), jnp.array([1.0, 0.0])) for each in systems]
        many = da.ensemble(systems, da.RungeKutta(), starts, step=0.1, steps=2)
        for k, system in enumerate(systems):
            alone = da.simulate(system, da.RungeKutta(), starts[k], step=0.1, steps=2)
            np.testing.assert_allclose(many.g[k], alone.g, rtol=1e-14)


def test_a_table_of_floats_is_no_set_of_parameters():
    """It would be traced number by number."""
    table = [0.01 * k for k in range(500)]
    system = da.System(da.Euclidean(2), lambda t, g, xi, p: 0.5 * xi @ xi - jnp.array(table)[7] * g @ g)
    assert not jax.tree.leaves(system)


def harmonic_run(lagrangian, **options):
    system = da.System(da.Euclidean(2), lagrangian, **options)
    state = system.state(jnp.ones(2), jnp.array([1.0, 0.0]))
    return da.simulate(system, da.RungeKutta(), state, step=0.1, steps=2)


def harmonic_end(lagrangian):
    system = da.System(da.Euclidean(2), lagrangian)
    state = system.state(jnp.ones(2), jnp.array([1.0, 0.0]))
    return da.simulate(system, da.RungeKutta(), state, step=0.1, steps=2).g[-1, 0]


def test_a_function_that_cannot_be_recognised_is_told_once():
    stream = object()

    def odd(t, g, xi, p):
        return 0.5 * xi @ xi + 0.0 * len(str(type(stream)))

    with pytest.warns(UserWarning, match="odd cannot be recognised"):
        harmonic(odd)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        harmonic(odd)


PROCESS = """
import sys
import jax
from dalembert.kernels import cache, lower, problem
cache.IMPORT_TIME, cache._versions = float("inf"), lambda: ("test",)  # the sources may be under work
done = []
problem.lower = lambda *args, **options: done.append("lowering") or lower(*args, **options)
jax.monitoring.register_event_duration_secs_listener(
    lambda name, seconds, **_: done.append(name) if "backend_compile" in name else None)
from dalembert.io.config import parse_job
from dalembert.models.registry import MODELS
from dalembert.cli.runs import run_report
from dalembert.simulation import simulate
for name in sys.argv[1:]:
    model = MODELS[name]
    job = parse_job({"system": {"name": name, **model.example}, "method": dict(model.method),
                 "initial": dict(model.initial),
                 "run": {"step": model.step, "steps": 3}})
    run = simulate(job.system, job.integrator, job.state, step=job.run["step"], steps=3, monitor=True)
    run_report(run, job.names)
    xla = len(done) - done.count("lowering")
    # |phi| of the report is XLA's
    print(name, run.backend, done.count("lowering"), xla if not job.system.holonomic_constraints else 0)
    done.clear()
"""


def second_process(names, folder):
    """What `dalembert run` of these systems traces and compiles in a process when another one has run them before."""
    for _ in range(2):
        done = subprocess.run(
            [sys.executable, "-c", PROCESS, *names],
            capture_output=True,
            text=True,
            check=True,
            env=os.environ | {"DALEMBERT_CACHE": str(folder)},
        )
    return [line.split() for line in done.stdout.splitlines()]


def test_a_second_process_traces_and_compiles_nothing(tmp_path):
    names = ["suslov", "ball-on-table"]  # in the second power enters, and its report has an energy balance
    assert second_process(names, tmp_path / "objects") == [[name, "llvm", "0", "0"] for name in names]


@pytest.mark.heavy
def test_no_model_traces_or_compiles_in_a_second_process(tmp_path):
    assert second_process(list(MODELS), tmp_path / "objects") == [[name, "llvm", "0", "0"] for name in MODELS]


@compile_function
def spread(values):
    return {"sum": jnp.sum(values), "turned": jnp.stack([-values[1], values[0]])}


@compile_function
def largest_singular_value(matrix):
    return jnp.linalg.svd(matrix, compute_uv=False)[0]


def test_a_compiled_function_gives_its_value():
    values = np.array([0.25, 3.0])
    result = spread(values)
    assert isinstance(result["sum"], jax.Array) and result["sum"] == 3.25
    np.testing.assert_array_equal(result["turned"], [-3.0, 0.25])


def test_a_compiled_function_can_be_transformed():
    np.testing.assert_array_equal(jax.vmap(spread)(np.eye(2))["sum"], [1.0, 1.0])
    np.testing.assert_array_equal(jax.grad(lambda v: spread(v)["turned"][0])(np.ones(2)), [0.0, -1.0])
    assert jax.jit(spread)(np.ones(2))["sum"] == 2.0


def test_what_the_kernels_cannot_do_goes_to_xla():
    assert largest_singular_value(np.diag([3.0, 4.0])) == pytest.approx(4.0)


def test_the_text_of_a_state_does_not_depend_on_what_came_before():
    """A state that was made by hand has a structure that equals every other's, and a text of its own."""
    rest = np.zeros(3)
    by_hand, planar = (
        jax.tree.structure(da.State(np.zeros(()), np.eye(3), rest, rest, rest, group))
        for group in (None, da.groups.SE2())
    )
    assert by_hand == planar and recognition.fingerprint(by_hand) != recognition.fingerprint(planar)


def helper(x):
    return FACTOR * x


FACTOR = 2.0


def test_a_function_that_is_seen_again_is_known_by_what_it_is_made_of(monkeypatch):
    """Without its text; but another number, array of structure, global, or function there makes another one."""
    written = []
    plain = recognition._write_all
    monkeypatch.setattr(recognition, "_write_all", lambda *given, **words: written.append(1) or plain(*given, **words))

    def make(mask, number, inputs):
        return lambda x: helper(x) @ inputs[0] + jnp.sum(mask) * number

    mask, given = np.array([0.0, 1.0]), [np.array([0.3, 0.4])]
    recognise = lambda *parts: recognition.recognise(make(*parts), take="arrays")
    first, arrays = recognise(mask, 3, given)
    assert arrays[0] is given[0]
    written.clear()
    other = [jnp.array([0.7, 0.8])]
    again, arrays = recognise(mask.copy(), 3, other)
    assert again is first and arrays[0] is other[0] and not written
    assert recognise(mask, 4, given)[0] is not first
    assert recognise(mask, 3, [np.array([1.0, 0.0])])[0] is not first
    assert recognise(mask, 3, [*given, 5.0])[0] is not first
    assert recognise(mask, 3, given)[0] is first
    mask[0] = 1.0
    assert recognise(mask, 3, given)[0] is not first
    mask[0] = 0.0
    assert recognise(mask, 3, given)[0] is first
    monkeypatch.setitem(globals(), "FACTOR", 5.0)
    assert recognise(mask, 3, given)[0] is not first
    monkeypatch.setitem(globals(), "FACTOR", 2.0)
    monkeypatch.setitem(globals(), "helper", lambda x: x)
    assert recognise(mask, 3, given)[0] is not first


def test_an_attribute_with_the_name_of_a_global_is_no_global(monkeypatch):
    """A loop of a script changes its variable; a function that reads an attribute of this name stays the same."""

    class Spring:
        row = 2

        def pull(self, q):
            return self.row * q

    spring, written, read = Spring(), [], []
    for value in (1, "another"):
        monkeypatch.setitem(globals(), "row", value)
        monkeypatch.setitem(globals(), "FACTOR", value)
        written.append([recognition.fingerprint(it) for it in (spring.pull, lambda q: spring.row * q)])
        read.append(recognition.fingerprint(helper))
    assert written[0] == written[1] and read[0] != read[1]


def test_an_object_may_change_what_its_functions_do_not_read(fresh):
    """It may hold the system, count its runs, and remember them; what a function reads needs another system."""

    class Robot:
        def __init__(self):
            self.power, self.runs = 2, []
            self.system = da.System(da.Euclidean(1), self.lagrangian)

        def lagrangian(self, t, q, v, p):
            return 0.5 * v @ v - q[0] ** self.power

        def run(self, method):
            self.runs.append(da.simulate(self.system, method, self.system.state([1.0], [0.0]), step=0.1, steps=3))
            self.last = self.runs[-1]
            return self.last.check().g[-1, 0]

    robot = Robot()
    first = [robot.run(method) for method in (da.Leapfrog(), da.RungeKutta())]
    fresh()
    assert [robot.run(method) for method in (da.Leapfrog(), da.RungeKutta())] == first
    robot.power = 3
    with pytest.raises(ValueError, match="build the system again"):
        robot.run(da.DormandPrince())
    assert Robot().run(da.DormandPrince()) == pytest.approx(first[1], abs=1e-4)


def test_numbers_of_objects_are_inputs_whatever_they_are_multiplied_by(fresh):
    """A product of two of Python's floats is one too; of one of NumPy's it is not, and the program looks different."""

    class Spring:
        def __init__(self, stiffness):
            self.stiffness = stiffness

    def make(spring, gravity=9.81):
        def lagrangian(t, q, v, p):
            return 0.5 * p * v @ v - 0.5 * spring.stiffness * q @ q - p * gravity * (p * q[0])

        return da.System(da.Euclidean(1), lagrangian, parameters=jnp.asarray(1.3))

    found = []
    for stiffness in (2.0, 3.0):
        system = make(Spring(stiffness))
        run = da.simulate(system, da.Leapfrog(), system.state([1.0], [0.0]), step=0.1, steps=3)
        found.append((run.g[-1, 0], list(fresh.lowerings)))
        fresh.lowerings.clear()
    assert found[0][0] != found[1][0] and found[0][1] and not found[1][1]


@pytest.mark.parametrize("model", [da.models.differential_drive, da.models.ackermann_car])
def test_a_function_that_holds_a_vehicle_is_seen_again(model, monkeypatch):
    """A drawing consists of named tuples and some 60 floats: its text took 3 ms of every call with `tangents=`."""
    written = []
    leaves, structure = jax.tree.flatten((model(), np.array([0.3, 0.4])))
    recognise = lambda: recognition.recognise(lambda s: jax.tree.unflatten(structure, leaves), take="numbers")
    first, _ = recognise()
    monkeypatch.setattr(recognition, "_write_all", lambda *given, **words: written.append(1))
    assert recognise()[0] is first and not written


@pytest.mark.parametrize("array", [np.array, jnp.array])
def test_a_function_is_known_again_by_what_its_arrays_hold_and_its_numbers_are(array):
    def make(mask, number):
        x = np.array([0.5, 0.7, 0.9])
        return lambda s: x * s + number * mask

    def template(mask, number):
        return recognition.recognise(make(array(mask), number), take="arrays", tell=False)[0]

    first = template([0, 1, 1], 1)
    assert template([0, 1, 1], 1) is first
    for other in (([1, 1, 1], 1), ([0.0, 1.0, 1.0], 1), ([0, 1, 1], 1.0), ([0, 1, 1], True), ([0, 1], 1)):
        assert template(*other) is not first


@pytest.mark.parametrize("kind", [jax.custom_jvp, jax.custom_vjp], ids=["jvp", "vjp"])
def test_rules_of_derivatives_are_part_of_a_fingerprint(kind):
    """A rule may close over more than its function: the derivative of one crossing was computed by another's rule."""

    def make(slope):
        @kind
        def clip(x):
            return jnp.maximum(x, 0.0)

        if kind is jax.custom_jvp:
            clip.defjvp(lambda primals, tangents: (clip(*primals), slope * tangents[0]))
        else:
            clip.defvjp(lambda x: (clip(x), None), lambda _, change: (slope * change,))
        return lambda x: clip(x)

    one, other = (recognition.fingerprint(make(slope)) for slope in (1.0, 2.0))
    assert one == recognition.fingerprint(make(1.0)) and one != other


def read_module(module):
    return lambda q: -module.TABLE["k"] * q


def import_when_called(q):
    import own_physics

    return -own_physics.TABLE["k"] * q


def import_a_name_when_called(q):
    from own_physics import friction

    return friction(q)


CHANGES = [("TABLE", {"k": 3.0}), ("LIST", [3.0]), ("Held", type("Held", (), {"k": 3.0})), ("friction", lambda q: q)]


@pytest.fixture
def own_module(tmp_path, monkeypatch):
    """A module of the user's, which imports another one."""
    (tmp_path / "own_data.py").write_text("def damp(q):\n    return -2.0 * q\n")
    text = "from own_data import damp\nTABLE, LIST = {'k': 2.0}, [2.0]\n\nclass Held:\n    k = 2.0\n\n"
    (tmp_path / "own_physics.py").write_text(f"{text}def friction(q):\n    return damp(q)\n")
    monkeypatch.syspath_prepend(tmp_path)
    yield __import__("own_physics")
    for name in ("own_physics", "own_data"):
        sys.modules.pop(name, None)


@pytest.mark.parametrize(("name", "value"), CHANGES)
def test_what_a_function_reads_of_the_users_modules_is_part_of_its_fingerprint(name, value, own_module, monkeypatch):
    code = f"lambda q: (own_physics.TABLE, own_physics.LIST, own_physics.Held.k, own_physics.friction(q))  # {name}"
    reads = eval(code, {"own_physics": own_module})  # as a global; read_module has it in its closure
    before = [recognition.fingerprint(each) for each in (reads, read_module(own_module), import_when_called)]
    monkeypatch.setattr(own_module, name, value)
    after = [recognition.fingerprint(each) for each in (reads, read_module(own_module), import_when_called)]
    assert before[0] != after[0]
    assert name != "TABLE" or (before[1] != after[1] and before[2] != after[2])


@pytest.mark.parametrize("loaded", [True, False])
def test_a_module_that_a_module_imports_is_part_of_a_fingerprint(loaded, own_module, monkeypatch, tmp_path):
    through = eval("lambda q: own_physics.friction(q)", {"own_physics": own_module})
    before = [recognition.fingerprint(each) for each in (through, import_a_name_when_called)]
    for name in ("own_physics", "own_data"):  # as in another process
        monkeypatch.delitem(sys.modules, name)
    (tmp_path / "own_data.py").write_text("def damp(q):\n    return -33.0 * q\n")
    again = __import__("own_physics") if loaded else own_module
    through = eval("lambda q: own_physics.friction(q)", {"own_physics": again})
    assert recognition.fingerprint(import_a_name_when_called) != before[1]
    assert not loaded or recognition.fingerprint(through) != before[0]


class Slotted:
    __slots__ = ("k",)


class InSlots(Slotted):
    pass


class Table(dict):
    pass


class Number(float):
    pass


def measure(q):
    return -measure.k * q


@pytest.mark.parametrize("held", [InSlots(), Table(a=1.0), Number(1.0), measure])
def test_attributes_of_what_a_function_holds_are_part_of_its_fingerprint(held):
    held.k = 2.0
    function = lambda q: -held.k * q
    before = [recognition.fingerprint(function), recognition.recognise(function)[0], recognition.recognise(held)]
    held.k = 3.0
    assert recognition.fingerprint(function) != before[0]
    assert recognition.recognise(lambda q: -held.k * q)[0] is not before[1]
    assert recognition.recognise(function)[0] is not before[1]


def test_a_builtin_that_a_global_hides_is_read_again():
    space = {"np": np}
    make = eval("lambda a: lambda q: a[0] * abs(2.0) * q", space)
    known = [recognition.recognise(make(np.array([0.7])), take="arrays")[0] for _ in range(3)]
    space["abs"] = lambda x: 3.0
    assert known[0] is known[1] is known[2]
    assert recognition.recognise(make(np.array([0.7])), take="arrays")[0] is not known[0]


def spring(force):
    """A function of a spring with this force."""
    return lambda t, g, xi, p: 0.5 * xi @ xi - 0.5 * force(g) @ g


def ends_as(lagrangian, stiffness):
    """Whether a run is that of a spring whose stiffness is a parameter."""
    wanted = harmonic(lambda t, g, xi, p: 0.5 * xi @ xi - 0.5 * (p * g) @ g, parameters=jnp.asarray(stiffness) + 0.0)
    return np.abs(harmonic(lagrangian) - wanted).max() < 1e-12


def by_instance(k):
    return spring(lambda g: (k if isinstance(k, float) else 7.0) * g)


def by_type(k):
    return spring(lambda g: (k if type(k) is float else 7.0) * g)


def by_shape(k):
    return spring(lambda g: (7.0 if hasattr(k, "shape") else k) * g)


def by_name(k):
    table = {"2.0": 2.0, "3.0": 3.0}
    return spring(lambda g: table.get(f"{k}", 7.0) * g)


def by_trial(k):
    def force(g):
        try:
            return float(k) * g
        except TypeError:
            return 7.0 * g

    return spring(force)


def by_a_shared_list(k):
    terms = []

    def add(term):
        terms.append(term)

    def lagrangian(t, g, xi, p):
        terms[:] = [0.5 * xi @ xi]
        add(-0.5 * k * g @ g)
        return sum([terms.pop() for _ in range(len(terms))])

    return lagrangian


def by_a_shared_variable(k):
    total = 0.0

    def add(term):
        nonlocal total
        total = total + term

    def lagrangian(t, g, xi, p):
        nonlocal total
        total = 0.5 * xi @ xi
        add(-0.5 * k * g @ g)
        return total

    return lagrangian


ASKERS = [by_instance, by_type, by_shape, by_name, by_trial, by_a_shared_list, by_a_shared_variable]


@pytest.mark.filterwarnings("ignore:.*cannot be recognised")
@pytest.mark.parametrize("build", ASKERS)
def test_a_function_that_tells_a_traced_number_from_a_known_one_keeps_it(build, fresh):
    """And so does one whose parts share what they change: put together again they would share nothing."""
    for k in (2.0, 3.0, 2.0):
        assert ends_as(build(k), k)


def test_which_numbers_are_needed_may_follow_from_another(fresh):
    build = lambda a, b: spring(lambda g: (float(a) if b > 0.0 else 2.0 * a) * g)
    for a, b in ((2.0, -1.5), (3.0, -1.5), (3.0, 2.0), (2.0, 2.0)):
        assert ends_as(build(a, b), a if b > 0.0 else 2.0 * a)


def test_a_dictionary_keeps_its_order(fresh):
    """JAX puts dictionaries in the order of their keys; a user's function may go through the values."""
    build = lambda masses: spring(lambda g: sum(k * np.eye(2)[i] * g[i] for i, k in enumerate(masses.values())))
    assert ends_as(build({"x": 2.0, "a": 3.0}), [2.0, 3.0])
    fresh.lowerings.clear()
    assert ends_as(build({"x": 4.0, "a": 5.0}), [4.0, 5.0])
    assert len(fresh.lowerings) == 0


class Gears:
    """An object with an integer, which stays a constant."""

    def __init__(self, n):
        self.n = n

    def lagrangian(self, t, g, xi, p):
        return 0.5 * xi @ xi - 0.5 * self.n * g @ g

    __call__ = lagrangian


@pytest.mark.parametrize("function", [lambda gears: gears.lagrangian, lambda gears: gears])
def test_an_object_that_changed_is_another_function(function, fresh):
    """Methods of one object are equal, whatever it holds: JAX took the second for the first."""
    gears = Gears(2)
    assert ends_as(function(gears), 2)
    gears.n = 4
    assert ends_as(function(gears), 4)
    fresh()
    assert ends_as(function(Gears(2)), 2)  # whose first function reads 4 now


def test_what_changed_after_a_system_was_built_is_said(fresh):
    """A program of the other value was stored under the name of the first, for all processes."""
    systems = [da.System(da.Euclidean(2), lambda t, g, xi, p: 0.5 * xi @ xi - 0.5 * n * g @ g) for n in (2, 3)]
    with pytest.raises(ValueError, match="build the system again"):
        systems[0].state(np.ones(2), [1.0, 0.0])
        da.simulate(systems[0], da.RungeKutta(), systems[0].state(np.ones(2), [1.0, 0.0]), step=0.1, steps=2)
    array = np.array([2, 2])
    build = lambda array: spring(lambda g: array * g)
    assert ends_as(build(array), 2)
    array[:] = 5
    fresh()
    assert ends_as(build(np.array([2, 2])), 2)


CLASSES = {
    "namedtuple": "class Law(typing.NamedTuple):\n    k: int = 1\n    def force(self, g): return {} * self.k * g",
    "dataclass": "@dataclasses.dataclass\nclass Law:\n    k: int = 1\n    def force(self, g): return {} * self.k * g",
    "enum": "class Laws(enum.Enum):\n    A = 1\n    def force(self, g): return {} * g\nLaw = lambda: Laws.A",
    "int": "class Law(int):\n    def force(self, g): return {} * g",
    "dict": "class Law(dict):\n    __getattr__ = dict.__getitem__\n    def force(self, g): return {} * g",
    "array": "class Own(np.ndarray):\n    def force(self, g): return {} * g\nLaw = lambda: np.zeros(1).view(Own)",
    "set": "class Own:\n    k = {}\n    __repr__ = lambda self: 'own'\n"
    "class Law:\n    each = frozenset([Own()])\n    def force(self, g): return sum(one.k for one in self.each) * g",
    "default": "class Law:\n    table = collections.defaultdict(lambda: {})\n"
    "    def force(self, g): return self.table['k'] * g",
    "settable": "class Law:\n    k = property(lambda self: self.n, lambda self, n: setattr(self, 'n', {} * n))\n"
    "    def force(self, g):\n        own = type(self)()\n        own.k = 1\n        return own.k * g",
    "meta": "class Meta(type):\n    k = property(lambda kind: {})\n"
    "class Law(metaclass=Meta):\n    def force(self, g): return type(self).k * g",
    "abstract": "class Law(abc.ABC):\n    def force(self, g): return {} * g",
}


@pytest.mark.parametrize("name", CLASSES)
def test_the_functions_of_a_class_are_part_of_a_fingerprint(name):
    """Whatever it derives from: another method of an Enum or a NamedTuple ran the program of the old one."""

    def recognise(factor):
        names = {"__name__": "own_laws", "np": np}
        header = "import abc, collections, dataclasses, enum, typing\n"
        exec(f"{header}{CLASSES[name].format(factor)}\nlaw = Law()", names)
        law = names["law"]
        return recognition.recognise(spring(lambda g: law.force(g)))[0]

    assert recognise(2) is recognise(2) is not recognise(3)


def decorated(k):
    def force(g):
        return k * g

    return spring(functools.wraps(force)(lambda g: force(g)))


class Slice:
    """An abstract class, slices and ranges stay what they are."""

    def __init__(self, k):
        self.k, self.part, self.count = k, slice(0, 2), range(1)

    def lagrangian(self, t, g, xi, p):
        return 0.5 * xi @ xi - sum(0.5 * self.k * g[self.part] @ g[self.part] for _ in self.count)


@pytest.mark.parametrize("build", [decorated, lambda k: Slice(k).lagrangian])
def test_decorated_functions_slices_and_ranges_compile_once(build, fresh):
    assert ends_as(build(2.0), 2.0)
    fresh.lowerings.clear()
    assert ends_as(build(3.0), 3.0) and not fresh.lowerings


def test_a_curve_of_problems_that_asks_what_a_number_is_keeps_it():
    system = da.System(da.Euclidean(2), lambda t, g, xi, p: 0.5 * xi @ xi - 0.5 * p * g @ g, parameters=2.0)
    start = system.state(np.ones(2), [1.0, 0.0])

    def slopes(make):
        run = da.simulate(system, da.RungeKutta(), start, step=0.1, steps=2, tangents=make)
        return np.concatenate([np.ravel(leaf).astype(float) for leaf in jax.tree.leaves(run.tangents)])

    plain = lambda c: lambda s: (dataclasses.replace(system, parameters=2.0 + c * s), start, 0.1)
    asks = lambda c: lambda s: (
        dataclasses.replace(system, parameters=2.0 + (c if isinstance(c, float) else 9.0) * s), start, 0.1
    )  # fmt: skip
    for c in (2.0, 3.0):
        np.testing.assert_allclose(slopes(asks(c)), slopes(plain(c)), rtol=1e-12)


@pytest.mark.filterwarnings("ignore")
def test_a_traced_number_that_cannot_be_taken_out_is_told_in_a_sentence():
    """It ended in a traceback of JAX."""

    def end(k):
        held = functools.lru_cache(lambda n: k * n)
        return harmonic_end(spring(lambda g: held(1) * g))

    with pytest.raises(ValueError, match="make it a parameter"):
        jax.grad(end)(2.0)

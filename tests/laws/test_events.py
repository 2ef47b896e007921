"""Laws of events and dense output: watching changes nothing, lanes are single runs, and the states between belong to
the method.
"""

from __future__ import annotations

import os
import shutil

import jax
import numpy as np
import pytest
from emulation import compile_for_cpu
from registry import case, gap

import dalembert as da
from dalembert.kernels import cuda
from dalembert.kernels.llvm import NativeSession
from dalembert.kernels.problem import Buffers, make_layout

METHODS = {
    "particle": da.LagrangeDAlembert(),
    "suslov": da.EulerPoincareSuslov(),
    "sleigh": da.LagrangeDAlembert(nodes="velocity"),
    "disk": da.Composition("yoshida-4"),
}
CROSS = {
    "particle": da.Quantity("configuration", (0,)),
    "suslov": da.Quantity("configuration", (0, 2)),
    "sleigh": da.Quantity("angles", (0,), 4.5),
    "disk": da.Quantity("angles", (0,), 2.0),
}
STOP = {
    "particle": da.Event(da.Quantity("momentum", (1,)), 1, True, "end"),
    "suslov": da.Event(da.Quantity("time", (), 4.03), 0, True, "end"),
    "sleigh": da.Event(da.Quantity("velocity", (1,), 0.8), 0, True, "end"),
    "disk": da.Event(da.Quantity("configuration", (0, 0, 2), 0.1), -1, True, "end"),
}
KEYS = [pytest.param(key, marks=pytest.mark.heavy if key in ("sleigh", "disk") else ()) for key in METHODS]


def events(key):
    return [da.Event(CROSS[key], name="cross"), STOP[key]]


def same(a, b) -> bool:
    return all(np.array_equal(x, y) for x, y in zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True))


@pytest.mark.parametrize("key", KEYS)
def test_watching_changes_no_state_and_members_are_single_runs_bit_for_bit(key):
    (system, state), method = case(key), METHODS[key]
    pairs = [system.state(state.g, state.xi * scale) for scale in (1.0, 0.6, 1.3)]
    options = {"step": 0.1, "steps": 60, "save_every": 7}
    members = da.ensemble(system, method, pairs, events=events(key), **options)
    for k, each in enumerate(pairs[:2]):
        plain = da.simulate(system, method, each, **options)
        run = da.simulate(system, method, each, events=events(key), **options)
        whole = len(run.t) - (run.stopped_by is not None)
        assert same(
            jax.tree.map(lambda leaf: leaf[:whole], plain.records), jax.tree.map(lambda leaf: leaf[:whole], run.records)
        )
        assert same(jax.tree.map(lambda leaf: leaf[k, : len(run.t)], members.records), run.records)
        assert same(jax.tree.map(lambda leaf: leaf[k], members.final), run.final)
        for name, found in run.events.items():
            assert same(members.events[name].of(k).record, found.record)
        assert members.stopped_by[k] == (run.stopped_by or "")
    assert len(members.events["cross"]) > 0 and "end" in members.stopped_by


@pytest.mark.parametrize("key", KEYS)
def test_the_states_between_belong_to_the_method(key):
    """Saved states are among them, however seldom they were saved; a step to t and on from there is a step of the
    method.
    """
    (system, state), method = case(key), METHODS[key]
    fine, seldom = (da.simulate(system, method, state, step=0.1, steps=30, save_every=every) for every in (1, 11))
    assert same(fine.at(fine.t).g, fine.g) and same(seldom.at(seldom.t).xi, seldom.xi)
    times = np.linspace(0.0, 3.0, 17)
    here, there = fine.at(times), seldom.at(times)
    tolerance = 1e-13 if method.carry_is_step_free else 2e-3
    for a, b in zip(jax.tree.leaves((here.g, here.xi)), jax.tree.leaves((there.g, there.xi)), strict=True):
        np.testing.assert_allclose(a, b, atol=tolerance)
    np.testing.assert_allclose(here.t, times, atol=1e-14)
    middle = fine.at(0.04)
    alone = da.simulate(system, method, state, step=0.04, steps=1)
    assert gap(alone.last, middle) < 1e-14


@pytest.mark.heavy
def test_the_portable_backend_finds_the_same_events():
    (system, state), method = case("particle"), METHODS["particle"]
    options = {"step": 0.1, "steps": 60, "events": events("particle")}
    native = da.simulate(system, method, state, backend="llvm", **options)
    portable = da.simulate(system, method, state, backend="xla", **options)
    for name, found in native.events.items():
        np.testing.assert_allclose(portable.events[name].t, found.t, rtol=1e-14)
    assert native.stopped_by == portable.stopped_by and len(native.t) == len(portable.t)


@pytest.mark.skipif(shutil.which(os.environ.get("CC", "cc")) is None, reason="no C compiler")
def test_the_c_of_the_gpu_finds_the_same_events_bit_for_bit(monkeypatch):
    """Compiled here by the C compiler: watching, locating, stopping and starting again are all programs of the
    backend.
    """

    def emulated(described, lowered):
        function = compile_for_cpu(cuda.cuda_source(lowered.program, make_layout(described, lowered)))
        return NativeSession("cuda", function, Buffers(described, lowered, 1), 1, 1)

    monkeypatch.setattr(cuda, "has_gpu", lambda: True)
    monkeypatch.setattr(cuda, "CudaSession", emulated)
    (system, state), method = case("particle"), METHODS["particle"]
    members = [system.state(state.g, state.xi * scale) for scale in (1.0, 0.6, 1.3, 0.2, 0.3)]
    options = {"step": 0.1, "steps": 60, "save_every": 7, "events": events("particle")}
    native, c = (da.ensemble(system, method, members, backend=backend, **options) for backend in ("llvm", "cuda"))
    assert c.backend == "cuda" and same((native.records, native.final, native.events), (c.records, c.final, c.events))

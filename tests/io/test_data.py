"""Trajectories in files: equal when read back, whole or not there, and clear about what is wrong with them."""

from __future__ import annotations

import errno
import json
import os
import resource
import subprocess

import h5py
import jax
import numpy as np
import pytest
import xarray

import dalembert as da
from dalembert.cli import main
from dalembert.errors import InvalidInput, WriteFailure
from dalembert.io.atomic import atomic_path, output_lock
from dalembert.io.config import parse_job
from dalembert.io.dataset import NotPortable, decode, encode, open_dataset
from dalembert.models import MODELS
from dalembert.studio.requests import config_of_file, frames_of_file

METHOD = da.EulerPoincareSuslov()


@pytest.fixture(scope="module")
def run():
    sleigh = da.models.chaplygin_sleigh(a=0.3, b=0.2)
    return da.simulate(sleigh, METHOD, sleigh.state(xi=[0.5, -1.0, 0.0]), step=0.1, steps=20)


@pytest.fixture
def saved(run, tmp_path):
    run.save(tmp_path / "run.nc")
    return tmp_path / "run.nc"


def equal(a, b) -> bool:
    """The same tree with the same bits."""
    leaves = [(np.asarray(x), np.asarray(y)) for x, y in zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True)]
    same = all(x.dtype == y.dtype and x.shape == y.shape and x.tobytes() == y.tobytes() for x, y in leaves)
    return same and jax.tree.structure(a) == jax.tree.structure(b)


@pytest.mark.parametrize("suffix", ["nc", "zarr"])
def test_what_is_loaded_is_what_was_saved_and_goes_on_bit_for_bit(run, suffix, tmp_path):
    if suffix == "zarr":
        pytest.importorskip("zarr")
    path = tmp_path / f"run.{suffix}"
    run.save(path)
    run.save(path)  # over the first
    back = da.load(path)
    assert equal(run, back) and os.listdir(tmp_path) == [path.name]
    on = [da.simulate(r.system, r.integrator, r, step=0.1, steps=5) for r in (run, back)]
    assert equal(*on)


def test_an_ensemble_comes_back(tmp_path):
    free = da.InvariantSystem(da.Euclidean(1) * da.SO2(), [1.0, 2.0])
    states = [free.state(xi=[v, 0.5]) for v in (0.3, 0.8)]
    many = da.ensemble(free, da.RungeKutta(), states, step=0.1, steps=3)
    many.save(tmp_path / "many.nc")
    assert equal(many, da.load(tmp_path / "many.nc"))
    with xarray.open_dataset(tmp_path / "many.nc", engine="h5netcdf") as data:
        assert data["configuration_0"].dims[:2] == ("member", "save") and data["time"].shape == (2, 4)


def test_the_dataset_says_what_everything_is(run):
    data = run.to_xarray()
    assert list(data["component"].values) == ["w", "v1", "v2"]
    assert list(data["velocity_unit"].values) == ["rad s-1", "m s-1", "m s-1"]
    assert list(data["force_unit"].values) == ["N m", "N", "N"]
    assert data["time"].attrs["units"] == "s" and all("long_name" in data[name].attrs for name in data)
    assert {"dalembert", "jax", "numpy", "python", "backend", "method", "step", "status", "created"} <= set(data.attrs)
    np.testing.assert_array_equal(data["position"], np.asarray(run.g)[:, :2, 2])


def test_the_reaction_is_the_force_that_bends_the_path():
    """The blade is the only force on a sleigh: m a of its centre of mass, by second differences of an accurate path."""
    mass, centre, h = 1.7, np.array([0.3, 0.2]), 1e-3
    sleigh = da.models.chaplygin_sleigh(mass=mass, a=centre[0], b=centre[1])
    run = da.simulate(sleigh, da.RungeKutta(), sleigh.state(xi=[0.9, -1.0, 0.0]), step=h, steps=10)
    poses = np.asarray(run.g)
    path = poses[:, :2, :2] @ centre + poses[:, :2, 2]
    acceleration = (path[2:] - 2 * path[1:-1] + path[:-2]) / h**2
    felt = mass * np.einsum("kji,kj->ki", poses[1:-1, :2, :2], acceleration)
    reaction = run.to_xarray(reaction=True)["reaction"].values[1:-1]
    np.testing.assert_allclose(reaction[:, 1:], felt, atol=1e-5)
    assert np.abs(reaction[:, 2]).min() > 0.1
    np.testing.assert_array_equal(reaction[:, :2], 0.0)  # at the blade: no torque, nothing along it


# -- whole or not there -----------------------------------------------------------------------------------------------
@pytest.mark.parametrize("fault", [OSError(errno.ENOSPC, "x"), KeyboardInterrupt(), RuntimeError("H5Fclose failed")])
def test_what_stops_a_save_leaves_the_file_of_before(run, saved, fault, monkeypatch):
    before = saved.read_bytes()

    def half(dataset, path, **options):
        path.write_bytes(b"\x89HDF half a file")
        raise fault

    monkeypatch.setattr("xarray.Dataset.to_netcdf", half)
    with pytest.raises(KeyboardInterrupt if isinstance(fault, KeyboardInterrupt) else WriteFailure):
        run.save(saved)
    assert saved.read_bytes() == before and os.listdir(saved.parent) == ["run.nc"]


def test_a_file_that_may_not_grow_is_a_clear_failure(run, tmp_path):
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    try:
        resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, hard))
        with pytest.raises(WriteFailure, match=r"could not write .*run\.nc: File too large; there is no run\.nc"):
            run.save(tmp_path / "run.nc")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert not os.listdir(tmp_path)


@pytest.mark.parametrize("suffix", ["nc", "zarr"])
def test_a_full_disk(run, suffix, tmp_path, capfd):
    if suffix == "zarr":
        pytest.importorskip("zarr")
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", tmp_path], capture_output=True)
    if mounted.returncode:
        pytest.skip("may not mount a small disk here")
    try:
        with pytest.raises(WriteFailure, match="No space left on device; there is no run"):
            run.save(tmp_path / f"run.{suffix}")
        assert not os.listdir(tmp_path)
    finally:
        subprocess.run(["umount", tmp_path], check=True)
    assert not capfd.readouterr().err


def test_two_runs_cannot_hold_one_file(tmp_path):
    path = tmp_path / "run.nc"
    with output_lock(path):
        with pytest.raises(InvalidInput, match=rf"another run \(process {os.getpid()}\) is writing"), output_lock(path):
            pass
        assert (tmp_path / ".run.nc.lock").exists()
    with output_lock(path), atomic_path(path) as temporary:
        temporary.write_text("x")
    assert os.listdir(tmp_path) == ["run.nc"]


# -- what is wrong with a file ----------------------------------------------------------------------------------------
def test_a_truncated_file_is_refused_wherever_it_ends(saved):
    whole = saved.read_bytes()
    for share in (0.0, 0.01, 0.3, 0.7, 0.99):
        saved.write_bytes(whole[: int(share * len(whole))])
        with pytest.raises(InvalidInput, match="not a readable NetCDF file"):
            da.load(saved)


def test_a_missing_column_is_named(saved):
    with h5py.File(saved, "a") as file:
        del file["velocity"]
    with pytest.raises(InvalidInput, match=r"velocity is missing. `dalembert show --force`"):
        da.load(saved)


def test_changed_numbers_do_not_pass(saved):
    with h5py.File(saved, "a") as file:
        file["velocity"][3, 1] += 1e-12
    with pytest.raises(InvalidInput, match="damaged"):
        da.load(saved)


def test_other_files_are_refused(tmp_path):
    (tmp_path / "text.nc").write_text("not a NetCDF file")
    xarray.Dataset({"x": ("t", np.ones(3))}).to_netcdf(tmp_path / "other.nc", engine="h5netcdf")
    (tmp_path / "empty.zarr").mkdir()
    cases = {
        "text.nc": "not a readable",
        "other.nc": "not a whole trajectory",
        "none.nc": "no file",
        "x.csv": "no data",
    }
    for name, message in cases.items():
        with pytest.raises(InvalidInput, match=message):
            da.load(tmp_path / name)
    pytest.importorskip("zarr")
    with pytest.raises(InvalidInput, match="Zarr"):
        da.load(tmp_path / "empty.zarr")


def test_a_system_of_ones_own_is_given_again(tmp_path):
    own = da.System(da.Euclidean(1), lambda t, g, xi, p: 0.5 * xi @ xi)
    run = da.simulate(own, da.RungeKutta(), own.state(xi=[1.0]), step=0.1, steps=2)
    run.save(tmp_path / "own.nc")
    with pytest.raises(InvalidInput, match=r"load\(path, system="):
        da.load(tmp_path / "own.nc")
    assert equal(run, da.load(tmp_path / "own.nc", system=own))


SAVED = (
    "rigid-body",
    "suslov",
    "chaplygin-sleigh",
    "unicycle",
    "veselova",
)


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[] if name in SAVED else [pytest.mark.heavy]) for name in MODELS]
)
def test_a_run_of_every_model_saved_from_python_is_loaded_and_goes_on_bit_for_bit(name, tmp_path):
    model = MODELS[name]
    config = {"system": {"name": name, **model.example}, "method": model.method, "initial": model.initial}
    job = parse_job(config | {"run": {"step": model.step, "steps": 3}})
    run = da.simulate(job.system, job.integrator, job.state, step=model.step, steps=3)
    run.save(tmp_path / "run.nc")
    back = da.load(tmp_path / "run.nc")
    assert equal(run.records, back.records) and equal(run.system.constants(), back.system.constants())
    on = [da.simulate(r.system, r.integrator, r, step=model.step, steps=2) for r in (run, back)]
    assert equal(on[0].records, on[1].records)


# -- trees in files ---------------------------------------------------------------------------------------------------
def test_systems_of_dalembert_need_no_code():
    for name in ("rigid-body", "suslov", "suslov-n", "nonholonomic-particle", "vertical-disk", "knife-edge"):
        system, arrays = MODELS[name].make(MODELS[name].example), {}
        form = json.loads(json.dumps(encode(system, "system", arrays)))
        assert equal(system, decode(form, arrays)), name


@pytest.mark.parametrize(
    "form",
    [
        {"function": "os:system"},
        {"data": "subprocess:Popen", "fields": {"args": "true"}},
        {"named": "dalembert.io.dataset:os", "fields": {}},
        {"data": "dalembert.errors:UnknownName", "fields": {}},
        {"function": "dalembert.none:at_all"},
    ],
)
def test_a_file_cannot_name_anybody_elses_code(form):
    with pytest.raises(InvalidInput):
        decode(form, {})


def test_a_file_of_another_version_says_so():
    with pytest.raises(InvalidInput, match="another version of dalembert"):
        decode({"named": "dalembert.simulation.results:Record", "fields": {"state": 1.0, "of_old": 2.0}}, {})


def test_a_lambda_is_not_portable():
    with pytest.raises(NotPortable, match="lambda"):
        encode(lambda x: x, "f", {})


# -- one reader, which checks everything ------------------------------------------------------------------------------
def edit_attribute(group, name, old, new):
    def damage(file):
        owner = file[group] if group else file
        assert old in owner.attrs[name]
        owner.attrs[name] = owner.attrs[name].replace(old, new)

    return damage


def edit_number(column):
    def damage(file):
        file[column][...] = np.where(np.arange(file[column].size).reshape(file[column].shape) == 7, 12345, file[column])

    return damage


DAMAGES = {
    "a number of the run": (edit_number("velocity"), "velocity differs"),
    "a number that follows from the run": (edit_number("energy"), "energy differs"),
    "the time": (edit_number("time"), "time differs"),
    "where it came from": (edit_attribute("", "backend", "llvm", "cuda"), "an attribute"),
    "a unit": (edit_attribute("energy", "units", "J", "K"), "energy differs"),
    "the method": (edit_attribute("carry", "trajectory", '"node": 0.5', '"node": 0.75'), "the system or the method"),
    "the group": (edit_attribute("carry", "trajectory", "groups.se:SE2", "groups.so:SO3"), "the system or the method"),
    "a checksum": (edit_attribute("carry", "checksums", '"energy": ', '"energy": 1'), "energy differs"),
    "the checksums": (lambda file: file["carry"].attrs.__delitem__("checksums"), "has no sense"),
    "a column": (lambda file: file.__delitem__("position"), "position is missing"),
    "a column more": (lambda file: file.create_dataset("more", data=np.ones(3)), "more differs"),
}


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    path = tmp_path_factory.mktemp("whole") / "run.nc"
    sleigh = da.models.chaplygin_sleigh(a=0.3, b=0.2)
    method = da.LagrangeDAlembert(node=0.5)
    da.simulate(sleigh, method, sleigh.state(xi=[0.5, -1.0, 0.0]), step=0.1, steps=20).save(path)
    return path


@pytest.mark.parametrize("damage", DAMAGES)
def test_damage_is_named_with_what_is_left(damage, whole, tmp_path):
    change, message = DAMAGES[damage]
    path = tmp_path / "run.nc"
    path.write_bytes(whole.read_bytes())
    with h5py.File(path, "a") as file:
        change(file)
    with pytest.raises(InvalidInput, match=rf"damaged: .*{message}.*`dalembert show --force`"):
        da.load(path)
    assert message in open_dataset(path, unchecked=True).attrs["damage"]


COMMANDS = (["show"], ["show", "--csv", "energy"], ["show", "--config"], ["animate"], ["studio", "--no-browser"])


def test_a_damaged_file_is_refused_by_every_command(whole, tmp_path, monkeypatch, capsys):
    path = tmp_path / "run.nc"
    path.write_bytes(whole.read_bytes())
    with h5py.File(path, "a") as file:
        edit_number("energy")(file)
    for read in (da.load, open_dataset, frames_of_file, config_of_file):
        with pytest.raises(InvalidInput, match="energy differs"):
            read(path)
    for command in (*COMMANDS, ["show", "--force", "--json"]):
        monkeypatch.setattr("sys.argv", ["dalembert", command[0], str(path), *command[1:]])
        with pytest.raises(SystemExit) as ended:
            main()
        said = capsys.readouterr()
        forced = "--force" in command
        assert ended.value.code == (0 if forced else 2) and "energy differs" in said.err and bool(said.out) == forced
    assert json.loads(said.out)["columns"]["energy"]["max"] == 12345 and os.listdir(tmp_path) == ["run.nc"]


def test_what_is_read_unchecked_says_so_and_keeps_saying_it(whole, tmp_path):
    path = tmp_path / "run.nc"
    path.write_bytes(whole.read_bytes())
    assert da.load(path, unchecked=True).note == ""  # nothing is wrong with it
    with h5py.File(path, "a") as file:
        file["velocity"][3, 1] = 12345.0
    run = da.load(path, unchecked=True)
    assert run.xi[3, 1] == 12345.0 and run.note == "unchecked: velocity differs from what was saved (checksum)"
    run.save(tmp_path / "again.nc")
    assert da.load(tmp_path / "again.nc").note == run.note


def test_a_damaged_zarr_file_is_refused(run, tmp_path):
    pytest.importorskip("zarr")
    run.save(tmp_path / "run.zarr")
    chunk = tmp_path / "run.zarr" / "velocity" / "0.0"
    before = chunk.read_bytes()
    for content in (before[:-9], b"", None):
        chunk.unlink() if content is None else chunk.write_bytes(content)
        with pytest.raises(InvalidInput, match="damaged: velocity"):
            da.load(tmp_path / "run.zarr")
    chunk.write_bytes(before)
    assert equal(run, da.load(tmp_path / "run.zarr"))


def test_a_damaged_sweep_is_refused(tmp_path):
    zarr = pytest.importorskip("zarr")
    config = {"system": {"name": "rigid-body", "inertia": [1, 2, 3]}, "method": {"name": "discrete-moser-veselov"}}
    config |= {"initial": {"momentum": [1.0, 0.2, 0.3]}, "run": {"step": 0.1, "steps": 5}}
    path = tmp_path / "sweep.zarr"
    da.sweep(config | {"sweep": {"run.step": {"linspace": [0.1, 0.2, 6]}, "chunk": 4}}, out=path)
    assert open_dataset(path).sizes["run_step"] == 6
    group = zarr.open_group(path, mode="r+")
    name = next(name for name in ("final_velocity", "final_momentum") if name in group)
    before = group[name][5]
    group[name][5] = before + 1.0
    with pytest.raises(InvalidInput, match=r"damaged: block 1 differs"):
        open_dataset(path)
    group[name][5] = before
    about = json.loads((path / "zarr.json").read_text())
    about["attributes"]["config"] += "# edited"
    (path / "zarr.json").write_text(json.dumps(about))
    with pytest.raises(InvalidInput, match=r"an attribute \(what made the sweep\) differs"):
        open_dataset(path)
    assert "an attribute" in open_dataset(path, unchecked=True).attrs["damage"]


def test_bytes_that_change_are_noticed_or_mean_nothing(whole, tmp_path):
    """Whichever byte of a file changes: what is loaded is what was saved, or the file is refused."""
    rng, path, good = np.random.default_rng(3), tmp_path / "run.nc", whole.read_bytes()
    before, refused = da.load(whole), 0
    for _ in range(15):
        content = bytearray(good)
        for place in rng.integers(len(content), size=rng.integers(1, 4)):
            content[place] ^= int(rng.integers(1, 256))
        path.write_bytes(bytes(content))
        try:
            assert equal(before, da.load(path))
        except InvalidInput:
            refused += 1
    assert refused > 3

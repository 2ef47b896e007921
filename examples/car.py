"""A car on a winding path with drag: a closed loop, its distance from the path, and where the energy went.

`python car.py`, or `dalembert run car.toml --json`, which takes the system from `make`.
"""

import jax
import jax.numpy as jnp
import numpy as np

import dalembert as da


def path(x):
    """y = sin(x): the zero set of any function, followed with the function growing to the left."""
    return x[1] - jnp.sin(x[0])


def make(speed=1.0, drag=0.05):
    """A car with viscous drag on v1 and feedback that keeps its rear axle on the path."""
    car = da.models.car(mass=1.4, inertia=0.6, length=1.2, centre=0.5, steering=0.2)
    loop = da.models.car_on_path(car, path, speed=speed, quickness=15.0)
    return da.with_friction(loop, viscous=drag, along=[0, 1, 0, 0])


def main():
    system = make()
    state = system.state([[0.4, 0.0, 0.8], 0.0], [0.0, 0.5, 0.0, 0.0])
    run = da.simulate(system, da.LagrangeDAlembert(), state, step=0.02, t_end=16.0).check()
    places = jnp.asarray(run.g[0][:, :2, 2])
    value, slope = jax.vmap(jax.value_and_grad(path))(places)
    distance = np.abs(value / jnp.linalg.norm(slope, axis=1))
    for k in range(0, len(distance), 100):
        where = f"t = {float(run.t[k]):5.1f} s   x = {places[k, 0]:6.2f} m   speed = {run.xi[k, 1]:.3f} m/s"
        print(f"{where}   off the path by {distance[k]:.1e} m")
    given = run.work()[-1]
    missing = np.abs(da.analysis.energy_balance(run)).max()
    print(f"work of motor and drag {given:.4f} J, gain of energy {run.energy_error()[-1]:.4f} J")
    print(f"the two are never apart by more than {missing:.1e} J")
    return distance


if __name__ == "__main__":
    main()

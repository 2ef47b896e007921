"""Flags with which XLA compiles as fast as it can: for tests and measurements, which compute little of much code."""

from importlib.metadata import version

QUICK = "--xla_backend_optimization_level=0"
if version("jaxlib").startswith("0.10."):  # later ones do not know this flag, and end the process
    QUICK += " --xla_cpu_use_fusion_emitters=false"
WITHOUT_PLACES = {"JAX_TRACEBACK_IN_LOCATIONS_LIMIT": "0", "JAX_INCLUDE_FULL_TRACEBACKS_IN_LOCATIONS": "0"}
"""Variables with which JAX leaves out where in Python an operation was written: 6 % of the time of laws."""

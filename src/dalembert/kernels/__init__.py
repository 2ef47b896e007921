"""Kernels: a step written in JAX becomes native code for a CPU or a GPU; see docs/kernels.md."""

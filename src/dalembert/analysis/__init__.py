"""Analyses of discretisations and integrators."""

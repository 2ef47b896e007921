"""Every claim of every method, measured: `python -m tools.claims` writes docs/claims.md.

cases (systems, methods with options) -> measure (figures) -> store (tasks, JSON, resumable) -> page (verdicts, tables).
"""

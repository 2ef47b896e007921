"""Every claim of every method, measured: `python -m tools.claims` writes docs/claims.md.

cases (systems) x variants (methods with options) -> measure (figures) -> store (JSON, resumable) -> verdicts -> page.
"""

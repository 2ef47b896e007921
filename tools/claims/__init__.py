"""Every claim of every method, measured: `python -m dalembert.verification` writes docs/claims.md.

cases (systems) x variants (methods with options) -> measure (figures) -> store (JSON, resumable) -> verdicts -> page.
"""

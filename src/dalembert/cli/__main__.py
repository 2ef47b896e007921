"""`python -m dalembert.cli`."""

from . import main

main()

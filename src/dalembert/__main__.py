"""`python -m dalembert`: the command line, where the script `dalembert` is not on the path."""

from .cli import main

main()

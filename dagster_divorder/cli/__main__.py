"""`python -m dagster_divorder.cli`."""

import sys

from dagster_divorder.cli import main

if __name__ == "__main__":
    sys.exit(main())

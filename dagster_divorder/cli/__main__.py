"""`python -m dagster_divorder.cli`."""

import sys

from dagster_divorder.cli import main

sys.exit(main())

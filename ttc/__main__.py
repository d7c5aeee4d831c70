"""`python -m ttc`: the same as the command `ttc`, also from a checkout that is not installed."""

import sys

from ttc.cli.process import main

sys.exit(main())

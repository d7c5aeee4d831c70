"""What a command of ttc loads in an interpreter of its own."""

from __future__ import annotations

import subprocess
import sys

_CODE = """
import sys
from ttc.cli.cli import main
code = main(sys.argv[1:])
print(*(name for name in ("torch", "transformers") if name in sys.modules), file=sys.stderr)
sys.exit(code)
"""


def heavy_modules_of(*arguments: object) -> list[str]:
    """Run `ttc ARGUMENTS`, which must succeed; return which of torch and transformers it has loaded."""
    command = [sys.executable, "-c", _CODE, *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return done.stderr.splitlines()[-1].split()

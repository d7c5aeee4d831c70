"""The packaged model family: weights that ship with the toolkit.

`teacher` thinks or not, `prm` scores its steps, `student` is the small base that distillation starts from; each is a
Hugging Face folder. `README.md` beside them is the model card; `python -m train.nano` makes them.
"""

from importlib import resources
from pathlib import Path

from ttc.errors import UnknownName

__all__ = ["NAMES", "path"]

NAMES = ("teacher", "prm", "student")


def path(name: str) -> Path:
    """Return the folder of one model of the family.

    Raises:
        UnknownName: no such model; names the nearest.
    """
    if name not in NAMES:
        raise UnknownName("packaged model", name, NAMES)
    return Path(str(resources.files(__name__))) / name

"""Datasets on the disk as a test needs them: JSON lines, and copies of hub repositories."""

from __future__ import annotations

import gzip
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any


def write_lines(path: Path, rows: Sequence[dict[str, Any]]) -> None:
    """Rows as JSON lines, gzipped when the name says so."""
    path.parent.mkdir(parents=True, exist_ok=True)
    opener = gzip.open if path.suffix == ".gz" else open
    with opener(path, "wt", encoding="utf-8") as file:
        file.writelines(json.dumps(row) + "\n" for row in rows)


def write_hub_copy(
    repository: Path, rows: Sequence[dict[str, Any]], *, split: str = "test", config: str | None = None
) -> None:
    """One parquet file and the card whose header names the configuration, as hub repositories have."""
    import pyarrow
    import pyarrow.parquet

    folder = config or "data"
    (repository / folder).mkdir(parents=True)
    table = pyarrow.Table.from_pylist(list(rows))
    pyarrow.parquet.write_table(table, repository / folder / f"{split}-00000-of-00001.parquet")
    (repository / "README.md").write_text(
        f"---\nconfigs:\n- config_name: {config or 'default'}\n  data_files:\n  - split: {split}\n"
        f"    path: {folder}/{split}-*\n---\n# A dataset card\n"
    )

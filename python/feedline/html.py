"""How a pipeline looks in a notebook."""

from __future__ import annotations

import json
from html import escape
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .dataset import Dataset


def dataset_html(dataset: Dataset) -> str:
    """The steps with their arguments, and what is delivered."""
    rows = []
    for call in json.loads(dataset.to_json())["steps"]:
        name = call.pop("step")
        args = ", ".join(f"{key}={json.dumps(value)}" for key, value in sorted(call.items()))
        if len(args) > 120:
            args = args[:117] + "…"
        rows.append(f"<tr><td><b>{escape(name)}</b></td><td><code>{escape(args)}</code></td></tr>")
    delivered = "".join(f"<li><code>{escape(field)}</code></li>" for field in dataset.spec)
    return (
        '<table style="text-align:left">'
        + "".join(rows)
        + f"</table><p>delivers</p><ul>{delivered}</ul>"
    )

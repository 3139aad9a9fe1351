"""Where figures go: a section of `results.json`, and the table of that name in `docs/reports/performance.md`."""

import json
import os
import platform
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

LINUX = platform.system() == "Linux"
RESULTS = Path(__file__).with_name("results.json")
PAGE = Path(__file__).parents[1] / "docs" / "reports" / "performance.md"


@dataclass(frozen=True)
class Table:
    """Rows of a table as people read it."""

    head: list[str]
    rows: list[list[str]]

    def __str__(self) -> str:
        lines = [self.head, ["---"] * len(self.head), *self.rows]
        return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def record(section: str, figures: Any, table: Table, command: str) -> None:
    """Write the figures and put the table in its place in the page, with the command and the machine beside it."""
    everything = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
    everything[section] = {"command": command, "machine": machine(), "figures": figures}
    RESULTS.write_text(json.dumps(everything, indent=1) + "\n")
    put(PAGE, section, f"{table}\n\n`{command}`, {about()}.")


def put(page: Path, section: str, text: str) -> None:
    """Put a text in its place on a page."""
    place = re.compile(rf"(<!-- {section} -->\n).*?(<!-- end -->)", re.S)
    whole, found = place.subn(lambda at: f"{at[1]}\n{text}\n\n{at[2]}", page.read_text())
    if not found:
        raise SystemExit(f"{page.name} has no place for this: <!-- {section} --> … <!-- end -->")
    page.write_text(whole)


def machine() -> dict[str, Any]:
    processors = re.findall(r"^model name\s*: (.*)$", Path("/proc/cpuinfo").read_text(), re.M) if LINUX else []
    return {
        "processor": processors[0] if processors else platform.processor(),
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "torch": str(torch.__version__),
    }


def about() -> str:
    has = machine()
    return f"{has['processor']}, {has['cores']} cores, {has['threads']} threads, PyTorch {has['torch']}"

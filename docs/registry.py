"""Write docs/registry.md from the registries: `make docs`."""

from pathlib import Path

from doubly.cli.listing import registries

TARGET = Path(__file__).with_name("registry.md")


def page() -> str:
    """Every member of every registry, in tables."""
    lines = ["# What there is to choose from", "", "Made from the registries by `make docs`.", ""]
    for title, members in registries().items():
        if title in ("kernels", "versions"):
            continue
        lines += [f"## {title.capitalize()}", "", "| name | what it is | options |", "|---|---|---|"]
        for name, entry in members.items():
            options = ", ".join(f"`{key}={value}`" for key, value in entry["options"].items())
            about = entry["about"].replace("|", "\\|")
            lines.append(f"| `{name}` | {about} | {options} |")
        lines.append("")
    return "\n".join(lines)


if __name__ == "__main__":
    TARGET.write_text(page())
    print(f"written: {TARGET.name}")

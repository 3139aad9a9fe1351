"""Write docs/registry.md from the registries: `make docs`."""

from pathlib import Path

from doubly.cli.listing import registries

TARGET = Path(__file__).with_name("registry.md")


def page() -> str:
    """Every member of every registry, in tables."""
    lines = [
        "# Registry: what can be chosen by name",
        "",
        "Written by `make docs` from the registries; do not edit it by hand. `doubly list` shows the same. Options are",
        "given after a colon: `--model nade:width=20`. [CONTRIBUTING.md](../CONTRIBUTING.md) says how to add a member.",
        "",
    ]
    for title, members in registries().members.items():
        lines += [f"## {title.capitalize()}", "", "| name | what it is | options |", "|---|---|---|"]
        for name, entry in members.items():
            options = ", ".join(f"`{key}={value}`" for key, value in entry.options.items())
            about = entry.about.replace("|", "\\|")
            lines.append(f"| `{name}` | {about} | {options} |")
        lines.append("")
    return "\n".join(lines)


if __name__ == "__main__":
    TARGET.write_text(page())
    print(f"written: {TARGET.name}")

"""The command `flopwatch`: finds its subcommands by entry points, so any part can be installed."""

import sys
from importlib.metadata import entry_points


def main() -> int:
    """Run `flopwatch NAME ...`: the function behind entry point NAME, called without arguments.

    It finds its own arguments in `sys.argv`, from which NAME has been joined to the program name.
    """
    commands = {entry.name: entry for entry in entry_points(group="flopwatch.commands")}
    name = sys.argv[1] if len(sys.argv) > 1 else ""
    if name not in commands:
        print(f"usage: flopwatch {{{','.join(sorted(commands))}}} ...", file=sys.stderr)
        return 0 if name in ("-h", "--help") else 2
    try:
        command = commands[name].load()
    except ModuleNotFoundError as missing:
        print(
            f"flopwatch {name} needs the package {missing.name}, which is not installed; "
            "install Flopwatch with the extra that holds it, such as 'flopwatch[all]'",
            file=sys.stderr,
        )
        return 1
    sys.argv[:2] = [f"flopwatch {name}"]
    return command() or 0

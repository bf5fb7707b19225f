"""The command line: one verb per module, thin over the benchmarks."""

from __future__ import annotations

import sys


def main(arguments: list[str] | None = None) -> None:
    """Run the command line and exit: 0 done, 1 a failed or regressed result, 2 bad input, 130 Ctrl-C."""
    from meta500.cli.application import application
    from meta500.errors import UserError

    try:
        application(args=arguments, prog_name="meta500")
    except UserError as error:
        sys.stderr.write(f"meta500: error: {error}\n")
        sys.exit(2)
    except KeyboardInterrupt:
        sys.stderr.write("meta500: interrupted\n")
        sys.exit(130)
    except BrokenPipeError:
        sys.stderr.close()
        sys.exit(141)

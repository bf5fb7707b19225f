"""The command line: one verb per module, thin over the benchmarks."""

from __future__ import annotations

import os
import sys

INTERRUPTED = 130


def main(arguments: list[str] | None = None) -> None:
    """Run the command line and exit: 0 done, 1 a failed or regressed result, 2 bad input, 130 Ctrl-C."""
    from meta500.cli.application import application
    from meta500.distributed.mpi import launched_rank
    from meta500.errors import UserError

    if launched_rank():
        # Of many ranks only the first one prints; faults of the others are told through their own stream.
        sys.stdout = sys.stderr = open(os.devnull, "w")  # noqa: SIM115
    try:
        application(args=arguments, prog_name="meta500")
    except UserError as error:
        sys.stderr.write(f"meta500: error: {error}\n")
        sys.exit(2)
    except (KeyboardInterrupt, SystemExit) as stop:
        # Typer turns Ctrl-C into exit code 130 without a word.
        if isinstance(stop, SystemExit) and stop.code != INTERRUPTED:
            raise
        sys.stderr.write("meta500: interrupted; the rows so far are in the run folder\n")
        sys.exit(INTERRUPTED)
    except BrokenPipeError:
        sys.stderr.close()
        sys.exit(141)

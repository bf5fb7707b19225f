"""``meta500 serve``: a page that starts training runs and shows them live."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def serve(
    host: Annotated[
        str, typer.Option(help="Address to listen on; any but loopback demands a token.")
    ] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port; 0: any that is free.")] = 8500,
    runs: Annotated[Path, typer.Option(help="Folder for runs, uploads and logs.")] = Path("runs"),
    token_file: Annotated[
        Path | None, typer.Option(help="Demand the token in this file, which only you may read.")
    ] = None,
    allow_host: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME", help="Further name by which browsers call it, as a proxy; demands a token."
        ),
    ] = None,
    max_upload: Annotated[float, typer.Option(help="MiB of an uploaded file.")] = 200,
    max_uploads: Annotated[int, typer.Option(help="Uploaded files that are kept.")] = 50,
    max_running: Annotated[int, typer.Option(help="Runs at the same time; more share the cores.")] = 1,
    max_queued: Annotated[int, typer.Option(help="Runs that wait.")] = 20,
    max_memory: Annotated[
        float | None,
        typer.Option(
            help="GiB of memory of one run, and of the check before it. "
            "Default: 4/5 of the machine's, divided by --max-running.",
            show_default=False,
        ),
    ] = None,
    max_clients: Annotated[int, typer.Option(help="Pages that watch at the same time.")] = 200,
    keep_running: Annotated[
        bool, typer.Option("--keep-running", help="Leave runs going when the server is stopped.")
    ] = False,
) -> None:
    """Serve a page that takes ONNX files, starts training runs, shows their curves live and ranks them."""
    from meta500.errors import UserError

    try:
        from meta500.web.limits import GIBI, MEBI, Limits, share_of_memory
        from meta500.web.server import Serving, serve
    except ModuleNotFoundError as error:
        if (error.name or "").split(".")[0] == "meta500":
            raise
        raise UserError(
            f"the live page needs the package '{error.name}': pip install 'meta500[web]'"
        ) from None
    limits = Limits(
        upload=int(max_upload * MEBI),
        uploads=max_uploads,
        running=max_running,
        queued=max_queued,
        memory=share_of_memory(max_running) if max_memory is None else int(max_memory * GIBI),
        clients=max_clients,
    )
    serve(Serving(host, port, runs, token_file, tuple(allow_host or ()), keep_running), limits)

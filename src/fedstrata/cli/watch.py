"""fedstrata watch: show the page of a running experiment."""

from __future__ import annotations

from contextlib import suppress
from typing import Annotated

import typer

from fedstrata.cli.terminal import AnyFolder, say


def watch(
    folder: AnyFolder,
    port: Annotated[int, typer.Option(min=0, max=65535, help="0 is one that is free.")] = 0,
) -> None:
    """Serve the page of a run while it goes on, on 127.0.0.1 alone; Ctrl-C ends it."""
    from fedstrata.report.live import LiveServer

    with LiveServer(folder, port) as server, suppress(KeyboardInterrupt):
        say(f"watching: {server.url} (Ctrl-C ends it)")
        server.serve_forever()

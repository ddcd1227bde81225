"""`shardwright serve` and `shardwright mcp`."""

from __future__ import annotations

from contextlib import suppress
from typing import Annotated

from shardwright.cli.measurements import Calibration
from shardwright.cli.output import note, write
from shardwright.commands import option
from shardwright.errors import bad

LOOPBACK, PORT = "127.0.0.1", 8639


def serve(
    host: Annotated[
        str, option(metavar="ADDRESS", help="Address to listen on; other machines cannot reach the default.")
    ] = (LOOPBACK),
    port: Annotated[int, option(metavar="N", help="The port; 0 takes a free one.")] = PORT,
    calibration: Calibration = None,
    open_page: Annotated[bool, option("--open", help="Open the page in the browser.")] = False,
) -> None:
    """Serve a page on this machine: change the question by hand, and the plan follows.

    Choose model and GPUs, drag their numbers, the batch, deadline and budget; a first plan is there at once, and better
    as the search ends. The address of the page holds the question: copy it to share or keep it.

    Programs call every command that does not train at /api/NAME, in JSON, with the parameters of the command line, and
    get what --json prints; /openapi.json describes it.

    Examples:

    \b
      shardwright serve
      shardwright serve --port 0 --open
    """
    import webbrowser

    from shardwright.cli.tools import toolbox
    from shardwright.cost.site.file import load_calibration
    from shardwright.serving.what_if.server import Server

    site = None if calibration is None else load_calibration(calibration)
    if site is not None and site.profiles:
        raise bad("--calibration", "was made with a machine profile, which the page does not have", "make it without")
    with Server(host, port, site, toolbox(), str(calibration or "")) as server:
        if server.exposed:
            note(f"warning: whoever reaches {host} can use this page; it has no password")
        write(f"{server.url}  (Ctrl-C ends)")
        if open_page:
            webbrowser.open(server.url)
        with suppress(KeyboardInterrupt):
            server.serve_forever()


def mcp() -> None:
    """Serve the commands to an assistant by the Model Context Protocol, over standard input and output.

    Every command that does not train is a tool, with its own parameters and its own JSON. Add it to an assistant as a
    server with the command `shardwright mcp`; docs/assistant.md has a skill text that teaches when and how to use it.
    Needs the extra `mcp`: pip install 'shardwright[mcp]'.

    Examples:

    \b
      shardwright mcp
      claude mcp add shardwright -- shardwright mcp
    """
    from tempfile import TemporaryDirectory

    from shardwright.cli.tools import toolbox

    try:
        from shardwright.serving.assistant import serve
    except ImportError as error:
        raise bad("shardwright mcp", f"needs the package {error.name}", "pip install mcp") from None
    with TemporaryDirectory(prefix="shardwright-") as folder:
        serve(toolbox(), folder)

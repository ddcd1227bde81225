"""`shardwright mcp`."""

from __future__ import annotations

from shardwright.errors import bad


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

"""`shardwright mcp`."""

from __future__ import annotations

from shardwright.errors import bad


def mcp() -> None:
    """Serve the planner to an assistant by the Model Context Protocol, over standard input and output.

    Add it to an assistant as a server with the command `shardwright mcp`; docs/assistant.md has a skill text that
    teaches when and how to use it. Needs the extra `mcp`: pip install 'shardwright[mcp]' from a checkout or wheel.

    Examples:

    \b
      shardwright mcp
      claude mcp add shardwright -- shardwright mcp
    """
    try:
        from shardwright.serving.assistant import server
    except ImportError as error:
        raise bad("shardwright mcp", f"needs the package {error.name}", "pip install mcp") from None
    server().run("stdio")

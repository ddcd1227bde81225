"""The command line: parse, call the library, print. Everything it does, the library does in one call.

Heavy imports stand inside the commands, so that `--help` and errors are immediate. Nothing imports this package.
"""

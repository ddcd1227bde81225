"""Proposes strategies, legal by construction, asks `cost` for their time and memory, keeps the best and bounds the
rest.

`space` declares what is searched, `layouts` enumerates it, `refine` expands a layout into complete strategies,
`uniform` drives the search best-first, `baselines` holds what an expert would try, `assemble` turns rows into plans.
Nothing here knows of output.
"""

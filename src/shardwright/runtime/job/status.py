"""How ranks end: their exit statuses, and the failures that all of them share. Needs no PyTorch."""

from __future__ import annotations

BAD_INPUT = 2  # the message of one rank says what
VERDICT = 70  # a rank is dead or stuck, and the one that found it said which
ORPHANED = 71  # what started the ranks has ended
DIVERGED = 72  # losses or gradients are no numbers
NOT_SAVED = 73  # trained to the end, but something could not be written
TOLD = (VERDICT, ORPHANED, DIVERGED, NOT_SAVED)  # a rank has said why


class DivergedError(Exception):
    """Steps in a row had to be left out, by all ranks alike."""

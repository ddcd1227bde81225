"""Tests that train need PyTorch; those of groups and data do not."""

from __future__ import annotations

from importlib.util import find_spec

collect_ignore_glob = [] if find_spec("torch") else ["test_[!gd]*.py"]

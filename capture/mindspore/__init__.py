"""Capture for MindSpore: a drop-in for ``msprobe.mindspore``."""

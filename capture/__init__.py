"""Framework hooks that turn a running model into a dump. Nothing is here yet: this release reads, converts and writes
dumps (:mod:`msformat`); the hooks for PyTorch and MindSpore follow and will write through
:class:`msformat.DumpWriter`.
"""

"""Framework hooks that turn a running model into a dump: what ran between ``start`` and ``stop`` of a step becomes a
unit, written through :class:`msformat.DumpWriter` behind the training.

``capture.pytorch`` is for PyTorch. What stands here knows no framework: the configuration, the session of a debugger,
the observer that hooks call, the walk over recorded values, and the writing thread. docs/capture.md is for users.
"""

"""Directories that ``save``, ``save_grad`` and ``ops.TensorDump`` of MindSpore write: one ``.npy`` a call, no document.

Everything that is known stands in the file names, in four shapes by release (:mod:`.names`). :mod:`.find` tells such a
directory, :mod:`.store` gives its files as tensors and makes the ``debug.json`` that nobody wrote.
"""

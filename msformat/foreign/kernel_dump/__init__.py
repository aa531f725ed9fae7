"""Kernel dumps of Ascend (level L2), read without CANN: see :mod:`.store` for the way in.

==================================================  ===================================================================
what a file says                                    ``wire``, ``header``, ``nano``, ``atb``, ``binary``, ``record``
where blocks lie, and what they mean                ``placing``, ``elements``, ``enums``, ``device_layout``, ``tensors``
what names, directories and tables say              ``filenames``, ``places``, ``tables``, ``side_files``
how files become kernels, and kernels a document    ``pieces``, ``kernels``, ``slices``, ``atb_operators``,
                                                    ``arguments``, ``overflow``, ``collect``, ``store``
==================================================  ===================================================================
"""

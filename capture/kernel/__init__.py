"""Kernel dumps (level L2): what is to be dumped, and the device switched on and off around it.

The device writes the files, this package only says when: around one API, forward or backward (:mod:`.session`), or
while a static graph of MindSpore runs (:mod:`.graph`). Afterwards files may be taken into the dump's store
(:mod:`.conversion`). Nothing here knows a framework; what a device is asked to do is :class:`.device.KernelDevice`.
"""

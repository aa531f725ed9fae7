"""``python -m capture run``: runs a script as Python would, and captures the training in it.

Nothing here imports a framework, nor anything that the program could want to configure before it imports it itself.
"""

"""Comparing two dumps: which entries belong together, how far their tensors are apart, and where they part first."""

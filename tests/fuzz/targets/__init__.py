"""What is fuzzed: one module each, with a :class:`~tests.fuzz.target.Target` called ``TARGET``."""

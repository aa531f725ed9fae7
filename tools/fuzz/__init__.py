"""Coverage-guided fuzzing of the readers: ``make fuzz``, or ``python -m tools.fuzz [TARGET ...]``."""

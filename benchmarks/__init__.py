"""pytest-aorta measured against what it replaces, as ratios within one run: ``python -m benchmarks``."""

"""First-party workloads of pytest-aorta: real PyTorch work that checks its own results.

Importing a module of this package imports torch but computes nothing, starts no thread and touches no GPU, so that a
process which has imported it can be forked.
"""

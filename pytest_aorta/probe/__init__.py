"""What a trial ran on: the host, the interpreter, torch, the accelerator, the packages, the variables that matter.

``collect.collect_static()`` is called once per zygote, ``collect.collect_env(static)`` once per trial in its own
process before the workload's code, ``collect.collect_end()`` after its ``run()``. None of them raises, computes
on a GPU, creates a GPU context or uses the network; what could not be found out is named in ``partial_reasons``.
"""

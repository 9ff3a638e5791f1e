"""Processes that run tasks: a zygote prepares once and forks one fresh child per task.

A *zygote* is a single-threaded process, started with its environment variables already set, that prepares once (an
import, usually) and then forks one fresh child per task. The child speaks to whoever submitted the task over a channel
of its own; the zygote adopts, ends and reaps whatever the task leaves behind.
"""

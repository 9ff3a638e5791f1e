"""What a trial is: the workload's contract, the request for one trial, its life in the child process, its result.

Nothing here imports pytest, torch or the runtime, so that a child process stays as small as its workload.
"""

"""The statistics behind the table: pure functions of counts and times, without any type of a trial.

``docs/statistics.md`` says in plain words what each of them means. A *rate* is always that of failures; a *difference*
is the cell's rate less the baseline's, so that a negative one is an improvement.
"""

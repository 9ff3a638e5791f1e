"""What a run has shown: from the records of its trials to the table of verdicts.

Pure functions over records; nothing here imports pytest, starts a process or needs torch.
"""

"""The ranks of a distributed trial on one node: who starts them, what each tells of itself, and how they ended."""

"""The private parts of torch that launches depend on: its elastic agent, torchrun, and the worker server.

``tests/launch/child/test_torch_compat.py`` has a test for each private name, which says what breaks without it. Several
modules, because ranks must not import the agent.
"""

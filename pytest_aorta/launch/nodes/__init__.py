"""Trials that run on several nodes: the rank of this node, the store of their rendezvous, the exchange of records."""

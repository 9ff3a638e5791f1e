"""A store in which only nodes that know the secret of the run can write."""

from __future__ import annotations

from typing import Any

from pytest_aorta.launch.nodes.seal import Seal


class SealedStore:
    """The few methods of a ``Store`` that the exchange and torch's ``C10dRendezvousBackend`` need.

    Args:
        store: of torch.
        seal: of the run.
        name: of this part of the store; a value is accepted only in the part that it was written for.
    """

    def __init__(self, store: Any, seal: Seal, name: str) -> None:
        self._store = store
        self._seal = seal
        self._name = name

    def set(self, key: str, value: str) -> None:
        """As ``Store.set``."""
        self._store.set(key, self._close(key, value))

    def check(self, keys: list[str]) -> bool:
        """As ``Store.check``."""
        return bool(self._store.check(keys))

    def get(self, key: str) -> bytes:
        """As ``Store.get``.

        Raises:
            ForgedValue: the value is not one of this run.
        """
        return self._open(key, self._store.get(key))

    def compare_set(self, key: str, expected: str, desired: str) -> bytes:
        """As ``Store.compare_set``, where an ``expected`` value that is empty stands for none.

        Raises:
            ForgedValue: the value that is there is not one of this run.
        """
        known = self._close(key, expected) if expected else ""
        return self._open(key, self._store.compare_set(key, known, self._close(key, desired)))

    def _close(self, key: str, value: str) -> str:
        return self._seal.close(f"{self._name}/{key}", value.encode()).decode()

    def _open(self, key: str, sealed: bytes) -> bytes:
        return self._seal.open(f"{self._name}/{key}", sealed)

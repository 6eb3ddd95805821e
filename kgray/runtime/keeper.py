"""A deployment that stays keeps itself up: missing actors are started again by those that are there.

Ray starts again what dies, except where an actor was killed for good, or its creation failed while a node
was away. Every sequencer and every writer looks, so that one of them is enough.
"""

from __future__ import annotations

import threading

from kgray.runtime import logs
from kgray.runtime.spec import DeploymentSpec

_EVERY_S = 5.0


class Keeper:
    """Looks again and again, in a thread, until it is ended."""

    def __init__(self, spec: DeploymentSpec) -> None:
        """Begin; the first look is after _EVERY_S seconds: those that start together find each other."""
        self._spec, self._ended = spec, threading.Event()
        threading.Thread(target=self._keep, name="kgray-keeper", daemon=True).start()

    def end(self) -> None:
        """Look no more: the deployment is being ended."""
        self._ended.set()

    def _keep(self) -> None:
        from kgray.runtime.deploy import restore

        while not self._ended.wait(_EVERY_S):
            try:
                if started := restore(self._spec):
                    logs.LOGGER.warning("missing, and started again: %s", ", ".join(started))
            except Exception as error:  # noqa: BLE001 - whatever Ray raises while its head is away
                logs.LOGGER.warning("cannot look for missing actors: %s", type(error).__name__)

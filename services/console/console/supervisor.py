"""All child processes of a stack, started in order and stopped layer by layer in reverse."""

import asyncio
from collections.abc import Callable, Sequence

from console.process import ManagedProcess, ProcessSpec, Report


class Supervisor:
    """Keeps processes running until `stop`. `on_change` is called when a process comes or goes."""

    def __init__(self, report: Report, on_change: Callable[[], None] = lambda: None) -> None:
        self._report = report
        self._on_change = on_change
        self._layers: list[dict[str, ManagedProcess]] = []

    @property
    def processes(self) -> dict[str, ManagedProcess]:
        """Every process by name, in the order they were started."""
        return {name: process for layer in self._layers for name, process in layer.items()}

    async def start(self, specs: Sequence[ProcessSpec]) -> None:
        """Start a layer: these processes, at once, on top of the layers before it.

        Raises:
            UnavailableError: one did not become ready. The others of the layer run on until `stop`.
        """
        layer: dict[str, ManagedProcess] = {}
        self._layers.append(layer)
        for spec in specs:
            if spec.name in self.processes:
                raise ValueError(f"there is a process named {spec.name} already")
            layer[spec.name] = ManagedProcess(spec, self._report, self._on_change)
        results = await asyncio.gather(
            *(process.start() for process in layer.values()), return_exceptions=True
        )
        for result in results:
            if isinstance(result, BaseException):
                raise result

    async def remove(self, name: str) -> None:
        """Stop one process for good."""
        for layer in self._layers:
            if process := layer.pop(name, None):
                await process.stop()
                self._on_change()
                return
        raise KeyError(name)

    async def stop(self) -> None:
        """Stop everything, the last layer first, each layer's processes together."""
        while self._layers:
            layer = self._layers[-1]
            await asyncio.gather(*(process.stop() for process in layer.values()))
            self._layers.pop()

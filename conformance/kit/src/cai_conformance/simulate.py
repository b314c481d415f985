"""Starting a command on the simulated driver.

The driver must be there before anything in the process looks for libcuda, so the command is
started afresh with the loader's path set; nothing is patched in a running process.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Mapping
from dataclasses import dataclass

from cai_conformance.library import is_simulator, library_folder, library_path


@dataclass(frozen=True)
class Settings:
    """Configures the simulated machine. `None` keeps the simulator's default."""

    devices: int = 2
    schedule: str = "threaded"
    protect: bool = False
    reuse: bool = False
    queue: int | None = None
    driver_version: int | None = None
    memory: int | None = None
    # Each as `[DEVICE:]NUMBER=VALUE`.
    attributes: tuple[str, ...] = ()

    def environment(self) -> dict[str, str]:
        """The variables that the simulator reads when it is loaded."""
        chosen = {
            "CUSIM_DEVICES": str(self.devices),
            "CUSIM_SCHEDULE": self.schedule,
            "CUSIM_PROTECT": str(int(self.protect)),
            "CUSIM_REUSE": str(int(self.reuse)),
        }
        rest = {
            "CUSIM_QUEUE": self.queue,
            "CUSIM_DRIVER_VERSION": self.driver_version,
            "CUSIM_MEMORY": self.memory,
            "CUSIM_ATTRIBUTES": ",".join(self.attributes) or None,
        }
        return chosen | {name: str(value) for name, value in rest.items() if value is not None}


def environment(settings: Settings, base: Mapping[str, str] | None = None) -> dict[str, str]:
    """The environment of a process that runs on the simulator."""
    env = dict(os.environ if base is None else base)
    paths = [str(library_folder()), env.get("LD_LIBRARY_PATH", "")]
    env["LD_LIBRARY_PATH"] = os.pathsep.join(path for path in paths if path)
    # Whatever else the caller's environment hides, the simulated devices are all visible.
    env.pop("CUDA_VISIBLE_DEVICES", None)
    return env | settings.environment()


def start(settings: Settings, command: list[str]) -> None:
    """Replaces this process by the command, on the simulator. Does not return."""
    if not is_simulator(ctypes.CDLL(str(library_path()))):
        raise SystemExit(f"{library_path()}: not the simulated driver")
    os.execvpe(command[0], command, environment(settings))

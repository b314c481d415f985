"""Device memory between two actors of Ray by CUDA IPC, beside the store; the driver is simulated."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from conformance.tests.interpreter.process import ROOT


def test_device_memory_is_shared_with_who_has_the_key_and_stored_for_others() -> None:
    command = [sys.executable, "-m", "conformance.reach.shared"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "shared between actors: right" in done.stdout


def test_the_key_is_this_users_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    from cai_dlpack import ray

    monkeypatch.setattr(os, "geteuid", lambda: 4_000_000)
    name = Path("/dev/shm/cai-dlpack-4000000.key")
    try:
        with pytest.raises(PermissionError, match="not this user's alone"):
            ray._users_key()  # Its owner is who runs this test.
        monkeypatch.undo()
        assert stat.S_IMODE(name.stat().st_mode) == 0o600
        assert ray._users_key() == ray._users_key()
        assert len(ray._users_key()) == 32
    finally:
        name.unlink(missing_ok=True)


@pytest.mark.parametrize("is_folder", [False, True])
def test_what_another_user_has_made_of_the_name_is_refused(is_folder: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    from cai_dlpack import ray

    monkeypatch.setattr(os, "geteuid", lambda: 4_000_001)
    name, before = Path("/dev/shm/cai-dlpack-4000001.key"), len(os.listdir("/proc/self/fd"))
    name.mkdir() if is_folder else os.mkfifo(name)
    try:
        with pytest.raises(PermissionError, match="not this user's alone"):
            ray._users_key()
    finally:
        name.rmdir() if is_folder else name.unlink()
    assert len(os.listdir("/proc/self/fd")) == before

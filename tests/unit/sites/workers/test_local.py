"""Blocks of workers on this machine: they end with all they started, whenever that is interrupted."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

import pytest

from hpcagent import lifeline
from hpcagent.sites.workers.local import LocalBlocks

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="processes are looked up in /proc")


def test_ctrl_c_while_a_block_is_ended_leaves_no_process_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    looked = lifeline._descendants

    def interrupted(root: int) -> list[int]:
        monkeypatch.setattr(lifeline, "_descendants", looked)
        os.kill(os.getpid(), signal.SIGINT)  # the second Ctrl-C: the block is stopped, not yet killed
        return looked(root)

    blocks = LocalBlocks()
    blocks.script_dir, blocks.mark = str(tmp_path), f"test-{os.getpid()}"
    job = blocks.submit("sleep 300", 1)
    process = blocks.resources[job]["process"]
    monkeypatch.setattr(lifeline, "_descendants", interrupted)
    before = signal.getsignal(signal.SIGINT)
    try:
        with pytest.raises(KeyboardInterrupt):
            blocks.cancel([job])
        assert process.poll() == -signal.SIGKILL
        assert signal.getsignal(signal.SIGINT) is before
    finally:
        process.kill()
        process.wait()

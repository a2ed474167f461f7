"""A private RabbitMQ: Debian's package, a node of its own on loopback, without systemd and without root.

Nothing of a system service of the same name is used or touched: own folder, own cookie, own ports, own epmd.
"""

from __future__ import annotations

import contextlib
import os
import random
import shutil
import socket
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

__all__ = ["Broker", "free_ports", "missing_packages"]

SERVER = "/usr/lib/rabbitmq/bin/rabbitmq-server"  # the one in sbin changes to another user
PACKAGE = "rabbitmq-server"
# Half a second to a few seconds of an idle machine; twenty where others use it, too.
WITHIN_S = 120.0


def missing_packages() -> list[str]:
    """Return the apt packages that a broker needs and this machine has not."""
    return [] if Path(SERVER).is_file() and shutil.which("epmd") else [PACKAGE]


def free_ports(count: int) -> list[int]:
    """Ports below the range from which the kernel gives ports away, so that nobody takes them meanwhile."""
    ports: list[int] = []
    while len(ports) < count:
        port = random.SystemRandom().randrange(20000, 32000)
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind(("127.0.0.1", port))
            if port not in ports:
                ports.append(port)
    return ports


class Broker:
    """Start a broker and wait until it answers; `close` ends it.

    Args:
        folder: An existing folder of its own; queues and messages are kept there while it is stopped.

    Attributes:
        url: For clients: amqp://guest:guest@127.0.0.1:PORT/%2F.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._port, self._distribution, self._epmd_port = free_ports(3)
        self.url = f"amqp://guest:guest@127.0.0.1:{self._port}/%2F"
        self._epmd: subprocess.Popen[bytes] | None = None
        self._node: subprocess.Popen[bytes] | None = None
        self.on_stop: Callable[[], None] = lambda: None
        (folder / "rabbitmq.conf").write_text(
            f"listeners.tcp.1 = 127.0.0.1:{self._port}\nlog.file.level = warning\n"
            "disk_free_limit.absolute = 1MB\nvm_memory_high_watermark.absolute = 1GB\n"
        )
        (folder / "plugins").write_text("[].\n")
        self.start()

    def _environment(self) -> dict[str, str]:
        f = self.folder
        own = {
            "HOME": str(f),  # of the cookie
            "RABBITMQ_NODENAME": "rig@localhost",
            "RABBITMQ_NODE_IP_ADDRESS": "127.0.0.1",
            "RABBITMQ_CONFIG_FILE": str(f / "rabbitmq.conf"),
            "RABBITMQ_ENABLED_PLUGINS_FILE": str(f / "plugins"),
            "RABBITMQ_CONF_ENV_FILE": str(f / "none.conf"),  # not /etc/rabbitmq's
            "RABBITMQ_MNESIA_BASE": str(f / "data"),
            "RABBITMQ_LOG_BASE": str(f / "log"),
            "RABBITMQ_PID_FILE": str(f / "pid"),
            "RABBITMQ_DIST_PORT": str(self._distribution),
            "RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS": "+S 1:1 -kernel inet_dist_use_interface {127,0,0,1}",
            "RABBITMQ_CTL_DIST_PORT_MIN": str(self._distribution + 1),
            "ERL_EPMD_PORT": str(self._epmd_port),
            "ERL_EPMD_ADDRESS": "127.0.0.1",
            "RUNNING_UNDER_SYSTEMD": "1",  # one process that is Erlang itself, not a shell around it
        }
        kept = {
            k: v
            for k, v in os.environ.items()
            if not k.startswith(("RABBITMQ_", "ERL_", "NOTIFY_SOCKET", "HPCAGENT_"))
        }
        return {**kept, "LC_ALL": "C.UTF-8", **own}

    def _popen(self, name: str, *command: str) -> subprocess.Popen[bytes]:
        with (self.folder / f"{name}.out").open("ab") as out:
            # Should the tests be killed, the kernel ends it, too.
            return subprocess.Popen(
                ["setpriv", "--pdeathsig", "TERM", *command],
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=out,
                env=self._environment(),
                cwd=self.folder,
                start_new_session=True,
            )

    def start(self) -> None:
        """Start it, with the messages that it had, and wait until it takes connections."""
        if self._epmd is None:
            self._epmd = self._popen("epmd", "epmd", "-port", str(self._epmd_port), "-address", "127.0.0.1")
            self._wait("epmd", self._epmd, self._epmd_port)
        self._node = self._popen("rabbitmq", SERVER)
        self._wait("RabbitMQ", self._node, self._port)

    def _wait(self, name: str, process: subprocess.Popen[bytes], port: int) -> None:
        begun = time.monotonic()
        while True:
            with socket.socket() as probe:
                if probe.connect_ex(("127.0.0.1", port)) == 0:
                    return
            said = "\n".join((self.folder / f).read_text(errors="replace")[-3000:] for f in self._outputs())
            assert process.poll() is None, f"{name} ended with {process.returncode}:\n{said}"
            assert time.monotonic() - begun < WITHIN_S, f"{name}: not within {WITHIN_S:g} s.\n{said}"
            time.sleep(0.05)

    def _outputs(self) -> list[str]:
        return [name for name in ("epmd.out", "rabbitmq.out") if (self.folder / name).exists()]

    @property
    def runs(self) -> bool:
        """Whether it takes connections."""
        return self._node is not None

    def stop(self) -> None:
        """End it; clients lose their connections, its queues are kept."""
        self.on_stop()
        node, self._node = self._node, None
        _end(node)

    def close(self) -> None:
        """End all of it."""
        self.stop()
        epmd, self._epmd = self._epmd, None
        _end(epmd)


def _end(process: subprocess.Popen[bytes] | None) -> None:
    if process is None:
        return
    process.terminate()
    try:
        process.wait(20)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()

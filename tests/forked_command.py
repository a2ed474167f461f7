"""`MODULE.main()` in a fork of the process of tests/warm.py: `forked_command.py ADDRESS [--before=CODE] MODULE WORDS`.

For pages of the docs, whose commands (`hpcagent.cli`) and code (`tests.page`) are many and short, and for servers, whose
imports take longer than what is tested. It has the streams, folder and environment of this process, and its exit code.
The code is run in the fork before.
"""

import json
import os
import signal
import socket
import sys

address, *words = sys.argv[1:]
before = words.pop(0).removeprefix("--before=") if words[0].startswith("--before=") else ""
module, *words = words
line = socket.socket(socket.AF_UNIX)
line.connect(address)
mask = os.umask(0o077)
os.umask(mask)
asked = {
    "module": module,
    "arguments": words,
    "before": before,
    "numbers": [0, 1, 2],
    "own_session": False,
    "cwd": os.getcwd(),  # noqa: PTH109 - without imports
    "env": dict(os.environ),
    "mask": mask,
    "paths": None,
    "told": json.dumps([[], []]),
}
data = json.dumps(asked).encode()
socket.send_fds(line, [len(data).to_bytes(8, "big")], [0, 1, 2])
line.sendall(data)
answers = line.makefile("r")
number = int(answers.readline())
for each in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
    signal.signal(each, lambda got, frame: os.kill(number, got))
code = int(answers.readline())
sys.exit(code if code >= 0 else 128 - code)

"""Run by an endpoint's own Python, as a Core Endpoint does it: render the template with what the user chose, then be the endpoint.

stdin: JSON {name, template, schema, options, runtime, amqp_creds}. A template that refuses the options is told through the broker.
"""

from __future__ import annotations

import json
import os
import pwd
import sys
from pathlib import Path


def main() -> None:
    """Render, and start."""
    given = json.loads(sys.stdin.read())
    from globus_compute_endpoint.endpoint.config import CoreEndpointConfig
    from globus_compute_endpoint.endpoint.config.utils import render_config_user_template
    from globus_compute_endpoint.endpoint.identity_mapper import MappedPosixIdentity
    from globus_compute_endpoint.endpoint.utils import send_endpoint_startup_failure_to_amqp

    try:
        config = render_config_user_template(
            CoreEndpointConfig(),
            given["template"],
            Path.home() / "user_config_template.yaml.j2",
            MappedPosixIdentity(pwd.getpwuid(os.getuid()), [], None),
            given["schema"],
            given["options"],
            given["runtime"],
        )
    except Exception as error:
        # The Core Endpoint's words.
        words = f"Failed to start or render user endpoint: ({type(error).__name__}) {error}"
        send_endpoint_startup_failure_to_amqp(given["amqp_creds"], msg=words)
        raise
    stdin = os.memfd_create("stdin")
    info = {"endpoint_id": given["amqp_creds"]["endpoint_id"]}
    told = {"amqp_creds": given["amqp_creds"], "config": config, "ep_info": info}
    os.write(stdin, json.dumps(told).encode())
    os.lseek(stdin, 0, os.SEEK_SET)
    os.dup2(stdin, 0)
    sys.stdin = os.fdopen(0)
    sys.argv = [
        str(Path(sys.executable).with_name("globus-compute-endpoint")),
        "_start-user-endpoint",
        given["name"],
    ]
    from globus_compute_endpoint.cli import cli_run

    cli_run()


if __name__ == "__main__":
    main()

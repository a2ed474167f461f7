"""A campaign as a user's script runs it; prints what came of it as JSON."""

from __future__ import annotations

import json
import os
import sys
import time

from work import square

import hpcagent as ha

site, run_dir, runs, seconds, eats = sys.argv[1], sys.argv[2], int(sys.argv[3]), sys.argv[4], sys.argv[5]
campaign = ha.Campaign(
    square,
    ha.maximize("square"),
    name="faults",
    space={"n": {"low": 0, "high": runs - 1}},
    fixed={"seconds": float(seconds), "eats_mb": int(eats)},
    policy={"name": "grid", "levels": runs},
    until={"max_runs": runs},
    batch_size=runs,
)
news: list[str] = []


def note(event: ha.types.Event) -> None:
    if event.kind == "site":
        news.append(f"{time.time():.2f} {event.reason}")


answer: dict[str, object] = {"pid": os.getpid(), "error": None}
try:
    result = ha.run(campaign, site=site, run_dir=run_dir, watch=note)
    answer["results"] = [
        {
            "n": r.manifest.params["n"],
            "ok": r.ok,
            "square": r.metrics.get("square"),
            "failure": r.failure.name if r.failure else None,
            "message": r.failure.message if r.failure else None,
            "attempt": r.attempt,
            "ended_at": r.ended_at,
        }
        for r in result.results
    ]
    answer["reason"] = result.reason
except ha.errors.HpcAgentError as error:
    answer["error"] = f"{type(error).__name__}: {error}"
answer["news"] = news
answer["at"] = time.time()
print(json.dumps(answer))

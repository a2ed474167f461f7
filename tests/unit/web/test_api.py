"""What a page asks, and how it is refused."""

from __future__ import annotations

import base64
from pathlib import Path

import hpcagent as ha
from hpcagent.web import api
from hpcagent.web.guard import TOKEN_HEADER
from hpcagent.workspace.client import Workspace


def test_a_form_is_made_of_the_contract(page):
    found = page.get("apps/lj_argon")
    timestep = found["schema"]["properties"]["timestep"]
    assert (timestep["unit"], timestep["minimum"], timestep["maximum"]) == ("ps", 0.00025, 0.03)
    assert {m["name"]: m["unit"] for m in found["metrics"]}["ns_per_day"] == "ns/day"
    assert (found["walltime_s"], page.get("apps/synthetic")["walltime_s"]) == (300.0, None)
    assert "lj_argon" in {one["name"] for one in page.get("apps")["apps"]}


def test_apps_are_called_by_name_never_by_path_or_module(page):
    for app in ("/etc/passwd", "os:system", "../x", "no_such_app"):
        assert page.client.get(f"/api/apps/{app.replace('/', '%2F')}").status_code in (400, 404)
        said = page.post("run", {"app": app}, status=422)
        assert "app" in said["fields"], said
        said = page.post(
            "campaigns", {"app": app, "metric": "value", "direction": "maximize", "max_runs": 3}, status=422
        )
        assert "app" in said["fields"], said


def test_a_run_is_estimated_started_followed_and_found_again(page):
    asked = {"app": "synthetic", "params": {"x": 0.3}, "site": "threads", "why": "a look"}
    estimate = page.post("run/estimate", asked)
    assert estimate["refused"] is None
    begun = page.post("run", asked)
    done = page.until(f"run/{begun['id']}", lambda r: r["state"] == "completed")
    assert done["metrics"]["value"] == 25.2
    assert done["param_units"]["run_time_s"] == "s"
    assert page.post("run", asked)["found"]
    files = page.get(f"run/{begun['id']}/files")["files"]
    assert "result.json" in {one["path"] for one in files}
    piece = page.get(f"run/{begun['id']}/file", path="result.json")
    assert base64.b64decode(piece["data"]).startswith(b"{")
    assert (
        page.client.get(f"/api/run/{begun['id']}/file", params={"path": "../../workspace.toml"}).status_code == 400
    )


def test_what_is_out_of_bounds_is_named_by_its_field(page):
    said = page.post("run", {"app": "synthetic", "params": {"x": 7.0}}, status=422)
    assert [*said["fields"]] == ["x"]
    assert "7" in said["error"]
    said = page.post("run", {"app": "synthetic", "params": {"no_such": 1.0}}, status=422)
    assert "no_such" in said["error"]


def test_what_has_another_form_is_named_by_its_field(page):
    said = page.post("run", {"app": "synthetic", "walltime_s": -1, "surprise": True, "seed": "1"}, status=422)
    assert {*said["fields"]} == {"walltime_s", "surprise", "seed"}
    assert (
        page.client.post("/api/run", content=b"{", headers={"content-type": "application/json"}).status_code == 422
    )
    assert "site" in page.post("run", {"app": "synthetic", "site": "/tmp/profile.toml"}, status=422)["fields"]


CAMPAIGN = {
    "app": "synthetic",
    "metric": "value",
    "direction": "maximize",
    "limits": {"error": {"at_most": 1.0}},
    "space": {"x": {"low": 0.02, "high": 1.0}, "y": {"low": 0.0, "high": 1.0}},
    "max_runs": 8,
}


def written(path, text):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def test_a_campaign_is_estimated_started_followed_explained_and_extended(page, workspace):
    estimate = page.post("campaigns/estimate", CAMPAIGN)
    assert (estimate["runs"], estimate["refused"]) == (8, None)
    begun = page.post("campaigns", CAMPAIGN)
    path = f"campaign/{begun['id']}"
    done = page.until(path, lambda c: c["state"] == "completed" and c["answer_state"] == "done")
    assert done["runs"]["done"] == 8
    assert done["question"] == "maximize value subject to error <= 1"
    table = page.get(f"{path}/runs")
    assert sorted(table["runs"]["index"]) == [*range(8)]
    run = page.get(f"{path}/run/{table['runs']['id'][0]}")
    assert run["params"]["x"] == table["runs"]["params"]["x"][0]
    assert page.client.get(f"/api/{path}/run/nothing").status_code == 404
    inside = f"work/{run['id']}"
    assert page.get(f"{path}/run/{run['id']}/files") == {"files": [], "more": 0}  # it has written none
    folder = Path(workspace.status(begun["id"])["workdir"])
    written(folder / inside / "log.lammps", "Step 1")
    written(folder / f"work/{table['runs']['id'][1]}/other", "x")
    assert page.get(f"{path}/run/{run['id']}/files")["files"] == [{"path": f"{inside}/log.lammps", "bytes": 6}]
    why = page.post(f"{path}/explain", {"run": 2})
    why = page.until(f"answer/{why['handle']}", lambda a: a["state"] != "running")
    assert why["answer"]["why"]
    assert page.post(f"{path}/stop")["state"] == "completed"
    on_top = page.post(f"{path}/extend/estimate", {"max_runs": 10})
    assert (on_top["runs"], on_top["runs_in_all"], on_top["node_hours_at_most"]) == (2, 10, None)
    assert on_top["node_hours"] > 0 and on_top["from"] == "the mean of 8 runs of this campaign"
    assert page.post(f"{path}/extend/estimate", {"max_runs": 10, "node_hours": 0.5})["node_hours_at_most"] < 0.5
    page.post(f"{path}/extend/estimate", {"max_runs": 0}, status=422)
    page.post(f"{path}/extend", {"max_runs": 10})
    page.until(path, lambda c: c["state"] == "completed" and c["runs"]["done"] == 10)


def test_a_file_comes_in_pieces_as_it_is_and_a_text_without_secrets(workspace: Workspace, page, monkeypatch):
    monkeypatch.setattr(api, "LARGEST_FILE", 7)
    monkeypatch.setattr(api, "LARGEST_TEXT", 40)
    run = workspace.run("synthetic", {"x": 0.3})["id"]
    workspace.wait(run, 60)
    folder = next(path for path in workspace.folder.work.iterdir() if path.is_dir())
    log = b"Step 1\x1b[31m\npassword=hunter22\n"
    (folder / "in.lammps").write_bytes(log)
    (folder / "long.txt").write_bytes(39 * b"x" + "Å".encode())
    (folder / "raw.bin").write_bytes(b"\x89PNG\0")
    got, offset = b"", 0
    while offset is not None:
        piece = page.get(f"run/{run}/file", path="in.lammps", offset=str(offset))
        data, offset = base64.b64decode(piece["data"]), piece["next"]
        assert len(data) <= 7
        got += data
    assert got == log
    assert page.get(f"run/{run}/text", path="in.lammps")["text"] == "Step 1\npassword=(hidden)\n"
    assert page.get(f"run/{run}/text", path="long.txt") == {"text": 39 * "x", "bytes": 41, "more": 1}
    assert page.get(f"run/{run}/text", path="raw.bin") == {"text": None, "bytes": 5, "more": 0}
    for offset in ("-1", "x", "1e3", "²"):
        query = {"path": "in.lammps", "offset": offset}
        assert page.client.get(f"/api/run/{run}/file", params=query).status_code == 400
    for what in ("file", "text"):
        assert page.client.get(f"/api/run/{run}/{what}", params={"path": "../x"}).status_code == 400
        query = {"path": "in.lammps"}
        assert (
            page.client.get(f"/api/run/{run}/{what}", params=query, headers={TOKEN_HEADER: ""}).status_code == 401
        )


def test_an_approval_is_decided_with_a_note_by_who_may(workspace: Workspace, page, served):
    ada = ha.Workspace(workspace.folder.root, as_="ada")
    asked = {"app": "lj_argon", "params": {"steps": 200}, "why": "which is fastest?", "walltime_s": 600}
    hers = served(as_="ada")
    said = hers.post("run", asked, status=409)
    assert said["approval"]
    path = f"approval/{said['approval']}"
    assert "may not approve" in hers.post(path, {"grant": True}, status=403)["error"]
    page.post(path, {"grant": "yes"}, status=422)
    done = page.post(path, {"grant": True, "note": "go ahead"})
    assert (done["state"], done["note"]) == ("granted", "go ahead")
    begun = hers.post("run", asked)
    assert ada.status(begun["id"], lines=0)["approval"] == said["approval"]
    hers.post(f"run/{begun['id']}/cancel")


def test_a_viewer_looks_and_starts_nothing(served):
    page = served(as_="bob")
    assert page.get("snapshot")["me"]["may"] == ["read"]
    assert page.post("run", {"app": "synthetic"}, status=403)["check"] == "caller"


def test_control_characters_and_secrets_do_not_reach_the_page(workspace: Workspace, page):
    run = workspace.run("synthetic", {"x": 0.2}, label="a <img src=x onerror=alert(1)>")["id"]
    workspace.wait(run, 60)
    workspace.tell("on_message", {"text": "hello"})
    found = page.until("snapshot", lambda s: run in s["runs"].get("id", []))
    assert "a <img src=x onerror=alert(1)>" in found["runs"]["label"]  # as it is: the page sets it as text
    log = workspace.folder.work
    folder = next(path for path in log.iterdir() if path.is_dir())
    (folder / "log.lammps").write_text("x\x1b[31m red\x07\npassword=hunter22\n")
    tail = page.get(f"run/{run}")["log_tail"]
    assert tail == ["x red\\x07", "password=(hidden)"]


def test_what_is_not_there_is_404_and_what_is_wrong_is_400_whatever_the_words(workspace, page):
    for path in ("run/r-none", "campaign/c-none", "answer/none", "tool/none", "run/r-none/files"):
        assert page.client.get(f"/api/{path}").status_code == 404, path
    assert page.client.post("/api/approval/a-none", json={"grant": True}).status_code == 404
    run = workspace.run("synthetic", {"x": 0.3})["id"]
    workspace.wait(run, 60)
    assert page.client.get(f"/api/run/{run}/file", params={"path": "none"}).status_code == 404
    assert page.client.get(f"/api/run/{run}/file", params={"path": "../there is no"}).status_code == 400

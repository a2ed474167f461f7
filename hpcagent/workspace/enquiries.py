"""What is asked of campaigns and runs: progress, answers in the background, estimates, the same again."""

from __future__ import annotations

import contextlib
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from hpcagent.campaign.recorded import Snapshot, snapshot
from hpcagent.campaign.sweep_runs import PlannedRuns
from hpcagent.contexts.calls import NewCall, again
from hpcagent.contexts.document import Call, Document
from hpcagent.errors import BadInput, HpcAgentError, NotThere, StoreFull
from hpcagent.gate.not_allowed import NotAllowed
from hpcagent.gate.rules import Caller
from hpcagent.model.records import Manifest
from hpcagent.workspace.campaigns import MOST_POINTS
from hpcagent.workspace.extending import Extending
from hpcagent.workspace.only_data import check_only_data
from hpcagent.workspace.plain_campaigns import check_policy
from hpcagent.workspace.questions import COSTLY, Questions
from hpcagent.workspace.rows import Row

__all__ = ["Enquiries"]

MOST_POLICIES = 8
MOST_SEEDS = 50
# While a campaign goes on its answer is worked out anew so often, where somebody asks and it is not known what
# the last one took; else once so many times of that have gone by, or sooner where the runs have grown by much.
FRESH_S = 30.0
FRESH_TIMES = 10.0


class Enquiries(Extending):
    """Questions about campaigns and runs, behind the gate.

    Args:
        root: The workspace's folder.
        clock: Unix time, in seconds.
        apart: Sites are kept by processes of their own, which outlive this one.
    """

    def __init__(self, root: Path, *, clock: Callable[[], float] = time.time, apart: bool = False) -> None:
        super().__init__(root, clock=clock, apart=apart)
        self.questions = Questions(root, clock=clock)
        self._snapshots: dict[str, tuple[object, Snapshot]] = {}

    # -- campaigns ----------------------------------------------------------------------------

    def campaign(self, caller: Caller, identity: str, *, timeout_s: float = 0.0) -> dict[str, Any]:
        """How a campaign stands, and its newest answer: a new one is worked out meanwhile.

        Args:
            caller: Who asks.
            identity: The campaign.
            timeout_s: Wait so long for a new answer, in seconds.

        Returns:
            Progress and state at once; `answer` as `answer_of` has it, of `answer_of_runs` runs, or None;
            `answer_handle` of the answer that is newer, if one is being worked out. On a full disk no new answer
            is asked for; `answer_error` says so.
        """
        row = self._campaign(caller, identity)
        found = self._standing(row)
        handle, error = "", None
        try:
            handle = self._answer_handle(caller, row)
        except StoreFull as full:  # progress is known without it
            error = {"kind": "StoreFull", "message": full.message}
        newest, still = self.questions.newest("answer", identity)
        if handle:
            said = self.questions.read(handle, timeout_s)
            if said["state"] != "running":
                newest, still = self.questions.question(handle), None
                later = handle
                with contextlib.suppress(StoreFull):
                    later = self._answer_handle(caller, row) if row.over else handle
                if later != handle:  # that one was asked for before the last runs had ended
                    still = self.questions.question(later)
        said = {} if newest is None else self.questions.read(newest.handle)
        return found | {
            "answer": said.get("answer"),
            "answer_state": said.get("state", "running") if handle or newest else "failed" if error else "none",
            "answer_error": error or said.get("error"),
            "answer_of_runs": None if newest is None else newest.facts.get("done"),
            "answer_handle": None if still is None else still.handle,
        }

    def _answer_handle(self, caller: Caller, row: Row) -> str:
        """The question for a campaign's answer: one at a time, and while it goes on one in a while.

        That is by what the last one took, and by how much the runs have grown: a quick campaign is followed, and
        a long one has at most a tenth of a core taken.
        """
        of = self._state_of(row)  # before the runs are counted: what comes in between is another question
        there = self._snapshot(row)
        if there is None or not there.state.finished:
            return ""
        newest, still = self.questions.newest("answer", row.id)
        if still is not None:
            return still.handle
        if newest is not None and not row.over:
            known, done = int(newest.facts.get("done", 0)), there.state.finished
            if done == known or self._clock() - newest.at < rest_s(
                self.questions.took_s(newest.handle), known, done
            ):
                return newest.handle
        return self._asked_of(caller, row, "answer", {}, {"done": there.state.finished}, of=of)

    def _asked_of(
        self,
        caller: Caller,
        row: Row,
        what: str,
        args: Mapping[str, Any],
        facts: Mapping[str, Any] | None = None,
        *,
        of: list[Any] | None = None,
    ) -> str:
        state = self._state_of(row) if of is None else of
        return self.questions.ask(
            what, row.id, by=caller.name, args=args, app=row.reference, state=state, facts=facts
        )

    def _state_of(self, row: Row) -> list[Any]:
        """What a question about a campaign is of: asked in another state it is another question."""
        return [self._journal_of(row), row.over]

    def _journal_of(self, row: Row) -> list[int]:
        """What changes whenever something is added to a campaign's journal."""
        try:
            seen = (self._workdir(row) / "events.jsonl").stat()
        except OSError:
            return [0, 0]
        return [seen.st_size, seen.st_mtime_ns]

    def _standing(self, row: Row) -> dict[str, Any]:
        counts: dict[str, int] = {}
        found: dict[str, Any] = {
            "id": row.id,
            "name": row.app,
            "app": row.app,
            "site": row.site,
            "state": row.state,
            "owner": row.owner,
            "asked_at": row.asked_at,
            "ended_at": row.ended_at or None,
            "note": (row.note or None) if row.over else None,
            "question": "",
            "policy": "",
            "runs": {"done": 0, "most": row.request.get("runs"), "by_state": counts},
            "failures": {},
            "node_hours": 0.0,
            "node_hours_at_most": row.node_hours_at_most,
        }
        there = self._snapshot(row)
        if there is None:
            return found
        state, campaign = there.state, there.campaign
        for manifest in state.manifests:
            word = state.state_of(manifest.execution_id, attended=there.attended)
            counts[word] = counts.get(word, 0) + 1
        return found | {
            "name": campaign.name,
            "question": campaign.question,
            "policy": campaign.policy.name,
            "note": found["note"] if row.over and row.in_vain else there.reason or found["note"],
            "runs": {
                "done": state.finished,
                "most": PlannedRuns(campaign).count(state.manifests),
                "by_state": counts,
            },
            "failures": dict(Counter(r.failure.name for r in there.results if r.failure is not None)),
            "node_hours": state.node_hours + state.overhead,
        }

    def _snapshot(self, row: Row) -> Snapshot | None:
        """What is on record of a campaign, read once for each state of its journal; None before it has begun."""
        now = [*self._journal_of(row), row.state]
        known = self._snapshots.get(row.id)
        if known is not None and known[0] == now:
            return known[1]
        try:
            found = snapshot(self._workdir(row))
        except HpcAgentError:  # it has not begun, never will, or its record is damaged: the row says what is known
            return None
        self._snapshots[row.id] = now, found
        while len(self._snapshots) > 32:
            self._snapshots.pop(next(iter(self._snapshots)), None)
        return found

    def ask_later(
        self, caller: Caller, identity: str, *, what: str, args: Mapping[str, Any], timeout_s: float = 0.0
    ) -> dict[str, Any]:
        """Ask something about a campaign that takes longer than a moment; see `hpcagent.workspace.questions`.

        Args:
            caller: Who asks.
            identity: The campaign.
            what: `explain` (`run`), `recommend` (`n`), `replay` (`policies`, `seeds`), `report`, `answer`,
                `slices`.
            args: Of the question.
            timeout_s: Wait so long for the answer, in seconds.

        Returns:
            `handle`, `what`, `campaign`, `state` (running, done, failed), `answer`, `error`.

        Raises:
            BadInput: The campaign is not there for this caller, an argument is wrong, or too many wait.
            NotAllowed: The role may not run, which `replay` and `report` need.
        """
        check = CHECKS.get(what)
        if check is None:
            raise BadInput(f"what={what!r} is none of {', '.join(CHECKS)}.", value=what)
        if (
            what in COSTLY
        ):  # minutes of processor time, or files in the campaign's folder: not for whoever may look
            with self.gate.recorded(caller, what=f"{what} of {identity}"):
                self.gate.require(caller, "run")
        row = self._campaign(caller, identity)
        try:
            wanted = check(**args)
        except TypeError:
            raise BadInput(f"{what} has other arguments than {', '.join(args) or 'none'}.") from None
        return self.questions.read(self._asked_of(caller, row, what, wanted), timeout_s)

    def get_answer(self, caller: Caller, handle: str, *, timeout_s: float = 0.0) -> dict[str, Any]:
        """The answer of a handle, for whoever may see its campaign; fields as `ask_later`."""
        unknown = NotThere(
            f"there is no answer {handle[:80]!r}; ask again for what it was about.", value=handle[:80]
        )
        try:
            self._campaign(caller, self.questions.question(handle).campaign)
        except BadInput:
            raise unknown from None
        return self.questions.read(handle, timeout_s)

    def estimate_campaign(
        self,
        caller: Caller,
        campaign: str | Mapping[str, Any],
        *,
        changes: Mapping[str, Any] | None = None,
        site: str = "",
    ) -> dict[str, Any]:
        """What a campaign would take as a whole, and what the gate would say; nothing is run. See `start`."""
        if not isinstance(campaign, str) and not isinstance(campaign.get("app", ""), str):
            self.gate.require(caller, "run")  # an app that comes along is kept
        try:
            found, _, reference, given = self._campaign_of(caller, campaign, changes)
            with self._turn:
                where = site or self.rules.default_site
                profile = self.sites.known(where)
            self.sites.refuse_misfit(where, profile, found.largest)
            asked, forecast = self._asked_as_a_whole(found, where, reference, given, caller)
        except NotAllowed:
            raise
        except BadInput as error:
            raise NotAllowed("contract", error.message, do="correct it and ask again") from None
        with self._turn:
            why, refused = self.rules.approval_for(asked, caller), self.gate.refusal(asked, caller)
            try:
                self._refuse_no_run(found, where, asked)
            except NotAllowed as error:
                refused = refused or error
            known = [r for r in self._same_work(asked.work) if r.owner == caller.name and r.kind == "campaign"]
        return {
            "app": asked.app,
            "site": asked.site,
            "digest": asked.digest,
            "runs": asked.runs,
            "wall_s_per_run": forecast.each_s,
            "from": forecast.source,
            "node_hours": forecast.node_hours,
            "node_hours_at_most": asked.node_hours,
            "usd_at_most": asked.usd,
            "approval": why,
            "refused": None if refused is None else refused.plain(),
            "known": known[0].id if known else None,
        }

    def estimate_extension(
        self,
        caller: Caller,
        identity: str,
        *,
        changes: Mapping[str, Any] | None = None,
        data_only: bool = False,
    ) -> dict[str, Any]:
        """What going on with a campaign would take on top, and what the gate would say; nothing is run.

        Args:
            identity: The campaign.
            changes: As of `extend`.
            data_only: As of `extend`.

        Returns:
            `app`, `site`; of what is on top `runs` (that have room under the cap; None: nothing bounds them),
            `node_hours` as expected by the campaign's own runs (None: not known), `node_hours_at_most` and
            `usd_at_most`; `runs_in_all`, `wall_s_per_run`, `from`, `approval`, `refused`.

        Raises:
            NotAllowed: A change is not allowed.
        """
        with self._turn:
            row = self._campaign(caller, identity)
            _, _, asked, forecast = self._extension(row, changes or {}, caller, data_only=data_only)
            why, refused = self.rules.approval_for(asked, caller), self.gate.refusal(asked, caller)
        return {
            "app": asked.app,
            "site": asked.site,
            "runs": forecast.runs,
            "runs_in_all": asked.runs,
            "wall_s_per_run": forecast.each_s,
            "from": forecast.source,
            "node_hours": forecast.node_hours,
            "node_hours_at_most": asked.node_hours,
            "usd_at_most": asked.usd,
            "approval": why,
            "refused": None if refused is None else refused.plain(),
        }

    # -- runs ---------------------------------------------------------------------------------

    def repeat(
        self,
        caller: Caller,
        *,
        changes: Sequence[str],
        identity: str = "",
        other_version: bool = False,
        why: str = "",
        data_only: bool = False,
    ) -> dict[str, Any]:
        """An earlier run with something changed: `["skin=1 angstrom", "temperature +50 K"]`.

        Args:
            caller: Who asks.
            changes: As `hpcagent.contexts.calls.read_change` has them; units are checked.
            identity: The run; empty: the newest that the caller has asked for.
            other_version: Go on where the app has another version now.
            why: What it is for.
            data_only: What is changed may name no file of this machine.

        Returns:
            As `run`, with `since`, `app`, `version`, `params`, `units`, `changes`, `notes`.

        Raises:
            NotAllowed: A change is wrong, or the gate refuses the run.
        """
        earlier = self.answered.earlier
        identity = identity if earlier is None else earlier["since"]  # since then another run is the newest
        with self.gate.recorded(caller, what=f"repeat {identity or 'the newest run'}"):
            row, new, more = self._repetition(
                caller, changes, identity, other_version=other_version, data_only=data_only
            )
        self.answered.also(since=row.id)
        why = why or f"{row.id} with {', '.join(new.changes)}"
        begun = self.run(caller, row.reference, new.params, label=row.label, why=why, **more)
        return begun | {
            "since": row.id,
            "app": new.app,
            "version": new.version,
            "params": new.params,
            "units": new.units,
            "changes": list(new.changes),
            "notes": list(new.notes),
        }

    def estimate_repeat(
        self,
        caller: Caller,
        *,
        changes: Sequence[str],
        identity: str = "",
        other_version: bool = False,
        data_only: bool = False,
    ) -> dict[str, Any]:
        """What `repeat` with these arguments would take, as `estimate` says it; nothing is run.

        Raises:
            NotAllowed: A change is wrong.
        """
        row, new, more = self._repetition(
            caller, changes, identity, other_version=other_version, data_only=data_only
        )
        return self.estimate(caller, row.reference, new.params, **more)

    def _repetition(
        self, caller: Caller, changes: Sequence[str], identity: str, *, other_version: bool, data_only: bool
    ) -> tuple[Row, NewCall, dict[str, Any]]:
        """An earlier run, the call with something changed, and what else of it `run` takes."""
        with self._turn:
            row = self._row(caller, identity) if identity else self._newest_run(caller)
        if row.kind != "run":
            raise BadInput(f"{row.id} is a campaign; a single run is repeated.", value=row.id)
        manifest = Manifest.model_validate(row.manifest)
        app = self.references.app(row.reference)
        units = {p.name: p.unit for p in app.contract.space.parameters}
        call = Call(row.id, manifest.app, manifest.app_version, row.params, units)
        document = Document("run", 1, row.asked_at, {}, {}, (), (), (call,))
        try:
            new = again(document, list(changes), lambda _: app, other_version=other_version)
        except BadInput as error:
            said = "; ".join(map(str, changes))
            raise NotAllowed(
                "contract", error.message, field="changes", value=said, do="correct it and ask again"
            ) from None
        if data_only:
            changed = {n: v for n, v in new.params.items() if row.params.get(n) != v}
            check_only_data(app, changed, {})
        asked, own = manifest.resources, app.manifest(new.params).resources
        differ = {
            name: value
            for name, value in asked.model_dump(mode="json").items()
            if value != own.model_dump(mode="json").get(name)
        }
        return (
            row,
            new,
            {
                "site": row.site,
                "seed": manifest.seed,
                "replicate": manifest.replicate,
                "inputs": row.inputs,
                "settings": row.settings or None,
                "resources": differ or None,
            },
        )

    def _newest_run(self, caller: Caller) -> Row:
        mine = (self.rows[identity] for identity in reversed(self._newest))
        found = next((row for row in mine if row.kind == "run" and row.owner == caller.name), None)
        if found is None:
            raise NotThere("there is no run of yours that could be repeated; run_job starts one.")
        return found


def rest_s(took_s: float | None, known: int, done: int) -> float:
    """How long after a question for a campaign's answer the next one is asked, in seconds.

    Args:
        took_s: What the last answer took; None: not known.
        known: Runs that it knows.
        done: Runs that have ended by now.

    Example:
        >>> rest_s(2.0, 1, 2), rest_s(2.0, 100, 120), rest_s(2.0, 100, 101), rest_s(None, 1, 2)
        (2.0, 10.0, 20.0, 30.0)
    """
    if took_s is None:
        return FRESH_S
    return took_s * min(FRESH_TIMES, max(1.0, known / max(1, done - known)))


def _nothing() -> dict[str, Any]:
    return {}


def _explain(*, run: str | int) -> dict[str, Any]:
    text = str(run).strip()
    if not text or len(text) > 100:
        raise BadInput("run is a number, or at least 4 characters of an execution id.", value=text[:100])
    return {"run": text}


def _recommend(*, n: int = 1) -> dict[str, Any]:
    if isinstance(n, bool) or not isinstance(n, int) or not 1 <= n <= MOST_POINTS:
        raise BadInput(f"n={n!r} must be 1 to {MOST_POINTS}.", value=n)
    return {"n": n}


def _replay(*, policies: Sequence[str] = (), seeds: int = 10) -> dict[str, Any]:
    if isinstance(policies, str) or not all(isinstance(one, str) for one in policies):
        raise BadInput("policies is a list of names, e.g. ['random', 'ucb:buckets=4'].")
    if len(policies) > MOST_POLICIES:
        raise BadInput(f"{len(policies)} policies, {MOST_POLICIES} at most.", value=len(policies))
    if isinstance(seeds, bool) or not isinstance(seeds, int) or not 1 <= seeds <= MOST_SEEDS:
        raise BadInput(f"seeds={seeds!r} must be 1 to {MOST_SEEDS}.", value=seeds)
    for one in policies:
        check_policy(one)
    return {"policies": list(policies), "seeds": seeds}


CHECKS: Mapping[str, Callable[..., dict[str, Any]]] = {
    "answer": _nothing,
    "explain": _explain,
    "recommend": _recommend,
    "replay": _replay,
    "report": _nothing,
    "slices": _nothing,
}
"""What may be asked of a campaign later -> its arguments, checked."""

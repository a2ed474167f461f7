"""What scripts and the shell ask of a workspace about campaigns."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from hpcagent.apps.base import App
from hpcagent.campaign.record import Campaign
from hpcagent.workspace.apps_here import AppsHere
from hpcagent.workspace.connection import Answer

__all__ = ["CampaignCalls"]


class CampaignCalls(AppsHere):
    """Calls of `Workspace` about campaigns, and questions about them."""

    def start(
        self,
        campaign: Campaign | str | Path,
        *,
        changes: Mapping[str, Any] | None = None,
        site: str = "",
        why: str = "",
        data_only: bool = False,
        at_once: bool = False,
    ) -> Answer:
        """Start a campaign in a process of its own; `ha.attach(workdir)` follows it.

        Args:
            campaign: A campaign, the path of its TOML, or the name of a packaged one.
            changes: Dotted key -> value, in place of what stands there.
            site: Where it runs.
            why: What it is for, for whoever approves it.
            data_only: The campaign is the name of a packaged one, or a TOML text (not a path), and may name no
                code and no file: for campaigns that come from a client.
            at_once: Return when it is let through; why it does not begin is noted with it.

        Raises:
            NotAllowed: The gate refuses it.
        """
        whole = self._whole(campaign, changes, data_only)
        rest = {"changes": dict(changes or {})} if data_only else {}
        return self._one("start", campaign=whole, site=site, why=why, at_once=at_once, **rest)

    def estimate_campaign(
        self,
        campaign: Campaign | str | Path,
        *,
        changes: Mapping[str, Any] | None = None,
        site: str = "",
        data_only: bool = False,
    ) -> Answer:
        """What a campaign would take as a whole, and what the gate would say; nothing is run. See `start`."""
        whole = self._whole(campaign, changes, data_only)
        rest = {"changes": dict(changes or {})} if data_only else {}
        return self._one("estimate_campaign", campaign=whole, site=site, **rest)

    def bayesian_optimize(
        self,
        objective_function: str | App,
        objective: Mapping[str, Any],
        budget: int,
        *,
        search_space: Mapping[str, Any] | None = None,
        constraints: Sequence[str] = (),
        fixed: Mapping[str, Any] | None = None,
        node_hours: float | None = None,
        seed: int = 0,
        site: str = "",
        why: str = "",
        at_once: bool = False,
    ) -> Answer:
        """Look for the best point of an app with Gaussian processes: a campaign, approved as a whole.

        Args:
            objective_function: An app by the name that it has everywhere: never code.
            objective: E.g. `{"maximize": "value", "subject_to": {"error": {"at_most": 1.0}}}`.
            budget: Runs at most.
            search_space: Parameter -> `{"low": ..., "high": ...}`; by default what the app varies.
            constraints: Conditions between parameters.
            fixed: Values of other parameters.
            node_hours: Cap.
            seed: Of the policy.
            site: Where it runs.
            why: What it is for.
            at_once: As of `start`.

        Returns:
            As `start`; `answer` has the best point, `recommend` the next ones with their expected improvement.
        """
        return self._one(
            "bayesian_optimize",
            objective_function=self._named(objective_function),
            objective=dict(objective),
            budget=budget,
            search_space=search_space and dict(search_space),
            constraints=list(constraints),
            fixed=dict(fixed or {}),
            node_hours=node_hours,
            seed=seed,
            site=site,
            why=why,
            at_once=at_once,
        )

    def campaign(self, identity: str, *, timeout_s: float = 0.0) -> Answer:
        """How a campaign stands, at once, with its newest answer; a newer one is worked out in the background.

        Args:
            identity: The campaign.
            timeout_s: Wait so long for a newer answer, in seconds.

        Returns:
            `state`, `runs` (`done`, `most`, `by_state`), `node_hours`, `question`, `policy`; `answer` as `answer`
            has it or None, of `answer_of_runs` runs; `answer_handle` of one that is being worked out.
        """
        return self._one("campaign", identity=identity, timeout_s=timeout_s)

    def ask_later(self, identity: str, what: str, *, timeout_s: float = 0.0, **args: Any) -> Answer:
        """Ask something about a campaign that takes longer than a moment; a process of its own answers.

        Args:
            identity: The campaign.
            what: `explain` (`run`: a number or the beginning of an execution id), `recommend` (`n`), `replay`
                (`policies`, `seeds`), `report` (writes it into the campaign's folder), `answer`,
                `slices` (the models along each parameter through the answer).
            timeout_s: Wait so long for the answer, in seconds.
            args: Of the question.

        Returns:
            `handle`, `state` (running, done, failed), `answer`, `error`. Asked again while the campaign's
            journal is the same, it is the same question.

        Raises:
            BadInput: An argument is wrong.
        """
        return self._one("ask_later", identity=identity, what=what, args=args, timeout_s=timeout_s)

    def get_answer(self, handle: str, *, timeout_s: float = 0.0) -> Answer:
        """The answer to a question of `ask_later`, for whoever may see the campaign."""
        return self._one("get_answer", handle=handle, timeout_s=timeout_s)

    def answer(self, identity: str) -> Answer:
        """A campaign's answer so far: the best point with errors, P(feasible), expected regret, node-hours."""
        return self._one("answer", identity=identity)

    def recommend(self, identity: str, n: int = 1) -> Answer:
        """Points that a campaign's policy would run next, with their expected improvement; nothing is run."""
        return self._one("recommend", identity=identity, n=n)

    def extend(
        self,
        identity: str,
        changes: Mapping[str, Any] | None = None,
        *,
        why: str = "",
        data_only: bool = False,
        at_once: bool = False,
    ) -> Answer:
        """Go on with a campaign that has ended or was stopped; what it is to take on top is let through anew.

        Args:
            identity: The campaign.
            changes: Dotted key -> value, e.g. `{"until.max_runs": 40}`.
            why: What it is for.
            data_only: As of `start`.
            at_once: As of `start`.

        Raises:
            NotAllowed: The gate refuses it, or it goes on at this moment.
        """
        more = {"changes": dict(changes or {}), "why": why, "data_only": data_only, "at_once": at_once}
        return self._one("extend", identity=identity, **more)

    def estimate_extension(
        self, identity: str, changes: Mapping[str, Any] | None = None, *, data_only: bool = False
    ) -> Answer:
        """What `extend` with these changes would take on top of what was taken; nothing is run.

        Returns:
            `app`, `site`; of what is on top `runs` (None: nothing says how many), `node_hours` as expected (None:
            not known), `node_hours_at_most` and `usd_at_most` (None: nothing bounds it); `runs_in_all`,
            `wall_s_per_run`, `from` (what the expectation is from, in words: the campaign's own runs, where some
            have finished), `approval` (why a person has to say yes), `refused` (why it would be).

        Raises:
            NotAllowed: A change is not allowed.
        """
        more = {"changes": dict(changes or {}), "data_only": data_only}
        return self._one("estimate_extension", identity=identity, **more)

    def stop(self, identity: str, *, at_once: bool = False) -> Answer:
        """Stop a campaign; what has finished is kept.

        Args:
            identity: The campaign.
            at_once: Do not wait for its end.
        """
        return self._one("stop", identity=identity, at_once=at_once)

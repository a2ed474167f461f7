"""Whether an endpoint works, from the login to a probe in a worker; each finding with what to do.

Everything that the endpoint says is a stranger's text: looked at, cut short, and shown without control characters.
"""

from __future__ import annotations

import statistics
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any

from hpcagent.errors import BadInput, HpcAgentError
from hpcagent.shown import plain
from hpcagent.sites.doctor_check import Check
from hpcagent.sites.endpoint import protocol
from hpcagent.sites.endpoint.answers import error_of
from hpcagent.sites.endpoint.reaping import errand_resources
from hpcagent.sites.endpoint_settings import destination

if TYPE_CHECKING:
    from hpcagent.sites.endpoint.link import AnyLink, Sent
    from hpcagent.sites.profile import Profile

__all__ = ["examine_endpoint"]

_LEAST_MPI = {"num_nodes": 1, "ranks_per_node": 1, "num_ranks": 1}
_ERRANDS = 3
_ERRAND_S = 300.0
"""A process for errands may have to be started there first: half a minute on an idle login node."""
_SKEW_S = 5.0
_LITTLE_GB = 1.0
_ASK_S = 10.0
_START = "start it there: `globus-compute-endpoint start NAME` (`globus-compute-endpoint list` shows it)"
_INSTALL = "pip install it there, into the environment that the endpoint's worker_init activates"

MakeLink = Callable[["Profile", str], "AnyLink"]


def examine_endpoint(
    profile: Profile,
    here: Mapping[str, str],
    *,
    submit: bool = True,
    within_s: float | None = None,
    link: MakeLink | None = None,
) -> Iterator[Check]:
    """Look at an endpoint part by part; nothing is raised, and it is left as it was.

    Args:
        profile: With `kind = "globus_compute"`.
        here: Versions on this side.
        submit: Whether tasks are sent: a probe through each executor, and errands.
        within_s: How long to wait for each probe, its wait in a queue included; None: until it comes.
        link: Makes the link of an executor; the one over Globus Compute if not given.
    """
    if link is None:
        ready, check = _credentials()
        yield check
        if not ready:
            return
    links: dict[str, AnyLink] = {}
    try:
        try:
            for label in profile.executors:
                links[label] = (link or _link)(profile, label)
        except HpcAgentError as error:
            yield Check("FAIL", "link", plain(error.message), "see hpcagent globus whoami")
            return
        first = next(iter(links))
        status = links[first].status()
        if not status.online:
            todo = _START if status.known else "is there a network? is endpoint_id right? try again"
            yield Check("FAIL", "endpoint", status.words, todo)
            return
        yield Check("ok", "endpoint", status.words)
        yield _control(profile, first)
        if submit:
            root = f"{profile.work_dir}/doctor-{uuid.uuid4().hex[:12]}"
            trip = _errands(profile, first, links[first], root)
            yield trip
            answers = trip.status == "ok"
            try:
                for label, one in links.items():
                    if answers or destination(profile, label) != destination(profile, first, control=True):
                        yield from _Probed(profile, label, one, root, here, within_s).checks()
            finally:
                if answers:
                    _remove(profile, first, links[first], root)
    finally:
        for one in links.values():
            one.close()


def _link(profile: Profile, label: str) -> AnyLink:
    from hpcagent.sites.endpoint.link import Link

    return Link(profile, label)


def _credentials() -> tuple[bool, Check]:
    from hpcagent.sites.endpoint import credentials

    try:
        credentials.require_sdk()
        credentials.app()
        return True, Check("ok", "Globus login", plain(credentials.identity().words))
    except BadInput as error:  # no SDK, or half of a client's credentials; says what to do
        return False, Check("FAIL", "Globus login", plain(error.message))
    except HpcAgentError as error:
        return False, Check("FAIL", "Globus login", plain(error.message), "`hpcagent globus login` in a terminal")


def _control(profile: Profile, label: str) -> Check:
    to = destination(profile, label, control=True)
    if to != destination(profile, label):
        return Check("ok", "errands", f"go to endpoint {to.endpoint_id} with values of their own")
    return Check(
        "warn",
        "errands",
        "putting, getting and cancelling wait in the same queue as the runs",
        'write [control.user_endpoint_config] into the profile, for our templates role = "control"',
    )


def _answered(sent: Sent, within_s: float) -> dict[str, Any]:
    """The answer of an errand.

    Raises:
        HpcAgentError: There is none; the endpoint's own error is one.
        TimeoutError: None came in time.
    """
    answer = sent.future.result(within_s)
    error = error_of(answer)
    if error is not None:
        raise error
    return answer


def _errands(profile: Profile, label: str, link: AnyLink, root: str) -> Check:
    """Some round trips; the first may start a process there, and is not counted."""
    resources = errand_resources(profile, label)
    times: list[float] = []
    for index in range(1 + _ERRANDS):
        begun = time.monotonic()
        try:
            _answered(link.submit(protocol.look(root), resources=resources, control=True), _ERRAND_S)
        except TimeoutError:
            return Check(
                "FAIL",
                "round trip",
                f"no answer to an errand within {_ERRAND_S:g} s",
                "do its workers start? see the endpoint's log there (~/.globus_compute/NAME/endpoint.log)",
            )
        except HpcAgentError as error:
            return Check("FAIL", "round trip", plain(error.message)[:1000], _todo(error.message))
        if index:
            times.append(time.monotonic() - begun)
    return Check("ok", "round trip", f"{statistics.median(times):.2g} s, the median of {_ERRANDS}")


def _remove(profile: Profile, label: str, link: AnyLink, root: str) -> None:
    """Remove what the probes made there; without waiting for long, for somebody may have pressed Ctrl-C."""
    try:
        request = protocol.remove(root, everything=True)
        link.submit(request, resources=errand_resources(profile, label), control=True).future.result(10.0)
    except (HpcAgentError, TimeoutError):
        pass  # an empty folder of its own is left there


def _todo(words: str) -> str:
    if "ModuleNotFoundError" in words or "No module named" in words:
        return f"hpcagent is not there: {_INSTALL}"
    if "protocol" in words:
        return "install the same hpcagent on both sides"
    if "schema" in words or "ValidationError" in words or "is a required property" in words:
        return "correct [user_endpoint_config], or that of [control], by the endpoint's template"
    if "resource_specification" in words or "InvalidResource" in words:
        return 'the engine there is not the one that the executor\'s mode wants: role = "mpi" in our templates'
    return "correct the profile, or the endpoint's template; its log is in ~/.globus_compute/NAME there"


def _version(text: str) -> str:
    """LAMMPS says its whole name before its date.

    Example:
        >>> _version("Large-scale Atomic/Molecular Massively Parallel Simulator - 22 Jul 2025"), _version("3.12.1")
        ('22 Jul 2025', '3.12.1')
    """
    return (text.partition(" - ")[2] or text)[:60]


class _Probed:
    """A probe through one executor, and what it tells."""

    def __init__(
        self,
        profile: Profile,
        label: str,
        link: AnyLink,
        root: str,
        here: Mapping[str, str],
        within_s: float | None,
    ) -> None:
        self.profile, self.label, self.link, self.root = profile, label, link, root
        self.here, self.within_s = here, within_s
        self.mpi = profile.executors[label].mode == "mpi"
        self.what = f"executor {label}"

    def checks(self) -> Iterator[Check]:
        apps = {name: app.model_dump(mode="json") for name, app in self.profile.apps.items()}
        request = protocol.probe(self.root, site={"apps": apps})
        sent_at = time.time()
        try:
            sent = self.link.submit(request, resources=dict(_LEAST_MPI) if self.mpi else None)
        except HpcAgentError as error:
            yield Check("FAIL", self.what, plain(error.message)[:1000], _todo(error.message))
            return
        yield from self._waiting(sent.future)
        if not sent.future.done():
            return
        try:
            told = _answered(sent, 0.0)
        except HpcAgentError as error:
            yield Check("FAIL", self.what, plain(error.message)[:1000], _todo(error.message))
            return
        yield self._versions(told)
        yield from self._missing(told)
        yield self._folder(told)
        yield self._clock(told, sent_at)
        if self.mpi:
            yield self._mpi(told)

    def _waiting(self, future: Future[dict[str, Any]]) -> Iterator[Check]:
        """Wait for the probe; says once that it waits, and at once that the endpoint has gone."""
        begun = asked = time.monotonic()
        said = False
        while not future.done():
            time.sleep(0.05)
            now = time.monotonic()
            if self.within_s is not None and now - begun > self.within_s:
                found = f"no answer within {self.within_s:g} s"
                yield Check("FAIL", self.what, found, "is its queue full? do workers start? see its log there")
                return
            if now - asked > _ASK_S:
                asked, status = now, self.link.status()
                if status.known and not status.online:
                    yield Check("FAIL", self.what, status.words, _START)
                    return
                if not said:
                    said = True
                    yield Check(
                        "ok", self.what, "the probe waits for a worker; in a batch queue that takes its time"
                    )

    def _versions(self, told: Mapping[str, Any]) -> Check:
        versions = told.get("versions")
        told_as = versions if isinstance(versions, dict) else {}
        there = {str(k)[:40]: _version(plain(str(v))) for k, v in told_as.items()}
        ours, theirs = self.here.get("hpcagent", "?"), plain(str(told.get("hpcagent")))[:40]
        names = ("python", "parsl", "hpcagent", "globus-compute-endpoint", "LAMMPS")
        words = ", ".join(f"{name} {there[name]}" for name in names if name in there)
        cores = told.get("cores")
        words += f"; {cores} cores for a worker" if isinstance(cores, int) and 0 < cores < 10**6 else ""
        words = f"on {plain(str(told.get('host')))[:80]}: {words}"
        if theirs != ours:
            return Check("warn", self.what, words, f"hpcagent here is {ours}; the same on both sides is safest")
        return Check("ok", self.what, words)

    def _missing(self, told: Mapping[str, Any]) -> Iterator[Check]:
        missing = told.get("missing")
        for sentence in missing[:20] if isinstance(missing, list) else ():
            words = plain(str(sentence))[:600]
            todo = (
                "set [apps.lammps] command, or load its module in the template" if "LAMMPS" in words else _INSTALL
            )
            # An executor of analyses needs no LAMMPS.
            needed = words.startswith(("numpy", "pydantic"))
            yield Check("FAIL" if needed else "warn", f"programs of {self.label}", words, todo)

    def _folder(self, told: Mapping[str, Any]) -> Check:
        root = told.get("root")
        about: Mapping[str, Any] = root if isinstance(root, dict) else {}
        what = f"work_dir of {self.label}"
        if about.get("writable") is not True:
            why = plain(str(about.get("why", "it did not say")))[:300]
            return Check("FAIL", what, f"{self.profile.work_dir}: {why}", "choose another work_dir in the profile")
        free = about.get("free_gb")
        words = f"{self.profile.work_dir} can be written"
        if not isinstance(free, int | float):
            return Check("ok", what, words)
        little = free < _LITTLE_GB
        return Check(
            "warn" if little else "ok", what, f"{words}, {free:.3g} GB free", "make room" if little else ""
        )

    def _clock(self, told: Mapping[str, Any], sent_at: float) -> Check:
        at, what = told.get("at"), f"clock of {self.label}"
        if not isinstance(at, int | float):
            return Check(
                "warn", what, "not told: an older hpcagent there", "install the same hpcagent on both sides"
            )
        off = max(sent_at - at, at - time.time(), 0.0)
        if off > _SKEW_S:
            return Check("warn", what, f"{off:.0f} s off", "times in results may be odd")
        return Check("ok", what, f"agrees within {_SKEW_S:g} s")

    def _mpi(self, told: Mapping[str, Any]) -> Check:
        mpi, what = told.get("mpi"), f"MPI of {self.label}"
        prefix = mpi.get("PARSL_MPI_PREFIX") if isinstance(mpi, dict) else None
        if not prefix:
            todo = 'the values of this executor have to give it a GlobusMPIEngine: role = "mpi" in our templates'
            return Check("FAIL", what, "the engine there places no ranks (no PARSL_MPI_PREFIX)", todo)
        return Check("ok", what, plain(str(prefix))[:200])

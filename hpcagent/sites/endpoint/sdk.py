"""The web service of Globus Compute, by Globus's own packages: the only place that speaks to it.

Documents (functions, payloads, batches) are made by globus-compute-sdk, requests by globus-sdk's documented
clients, with public names only. The SDK's `Executor` is not used to submit: after one submission that fails it is
dead, its batches know no bytes, and its rate limit holds back a chain of single tasks by seconds. Nor to listen:
its watcher gives up after five attempts, loses a result if a warning is an error, and looks every half second.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from hpcagent.lifeline import FORKS
from hpcagent.sites.endpoint import credentials
from hpcagent.sites.endpoint.refusals import Outage, of_service

if TYPE_CHECKING:
    from globus_compute_sdk.serialize import ComputeSerializer
    from globus_sdk import ComputeClientV2, ComputeClientV3, GlobusApp

__all__ = ["BURST", "PER_S", "Pace", "Service"]

# The service allows a user 20 requests in 10 s: BURST + 10 * PER_S of them here, by all links of this process.
BURST = 5
PER_S = 1.4

_T = TypeVar("_T")

_RETRIES = 2
"""Of globus-sdk's own; then it is an outage, which is told and waited for."""
_TIMEOUT_S = 60.0
_QUICK_TIMEOUT_S = 10.0


class Pace:
    """Lets requests through: some at once, then one after the other.

    Args:
        burst: So many at once.
        per_s: So many a second in the long run.
    """

    def __init__(self, burst: float = BURST, per_s: float = PER_S) -> None:
        self.burst = burst
        self.per_s = per_s
        self._lock = threading.Lock()
        self._left = float(burst)
        self._at = time.monotonic()

    def delay(self) -> float:
        """Take the next turn, and say in how many seconds it is."""
        with self._lock:
            now = time.monotonic()
            self._left = min(self.burst, self._left + (now - self._at) * self.per_s) - 1
            self._at = now
            return max(0.0, -self._left / self.per_s)

    def wait(self) -> None:
        """Sleep until the next turn."""
        time.sleep(self.delay())


_PACE = Pace()
_FUNCTIONS: dict[tuple[str, str, str], str] = {}  # (address, identity, source) -> id; registered once a process
_REGISTERING = threading.Lock()


def serializer() -> ComputeSerializer:
    """JSON for data and source text for functions, on their way to an endpoint.

    Never for what comes back: its list of what may be read must have a kind of code in it, and to read that is to
    run it.
    """
    from globus_compute_sdk.serialize import ComputeSerializer, JSONData, PureSourceTextInspect

    return ComputeSerializer(strategy_code=PureSourceTextInspect, strategy_data=JSONData)


class Service:
    """Requests to the service, from any thread; each keeps the pace, and raises what `refusals.of_service` says.

    Args:
        pace: That of the process if not given.

    Raises:
        BadInput: The SDK is not installed, or half of a client's credentials.
        SiteFailed: No login.
    """

    def __init__(self, *, pace: Pace | None = None) -> None:
        self._app: GlobusApp = credentials.app()
        self._identity = credentials.identity().words
        from globus_compute_sdk import Client
        from globus_compute_sdk.sdk.batch import create_user_runtime

        with FORKS:
            # Only for the address: the SDK's own idea of which service it is.
            self.address: str = Client(app=self._app, do_version_check=False).web_service_address
        self.serializer = serializer()
        self._runtime = create_user_runtime()
        self._pace = pace or _PACE
        self._own = threading.local()  # a session of requests is not for several threads

    def __repr__(self) -> str:
        return f"<Globus Compute at {self.address}>"

    def payload(self, request: Mapping[str, Any]) -> str:
        """A request as an argument of the registered function."""
        serialized = [self.serializer.serialize([request]), self.serializer.serialize({})]
        return str(self.serializer.pack_buffers(serialized))

    @staticmethod
    def answer(data: str) -> Any:  # whatever JSON has
        """What a task gave, if it is JSON; what is pickled, or is code, is refused unread.

        Raises:
            ValueError: It is not.
        """
        from globus_compute_sdk.serialize import JSONData

        if not data.startswith(JSONData.identifier):
            raise ValueError(f"a serialization that is not JSON, {data[:2]!r}")
        try:
            return json.loads(data[len(JSONData.identifier) :])
        except (ValueError, RecursionError) as error:
            raise ValueError(f"JSON that cannot be read: {error}") from None

    def function(self) -> str:
        """Id of the one function that endpoints run; registered with the first call in a process."""
        from globus_compute_sdk.sdk.client import FunctionRegistrationData

        from hpcagent.sites.endpoint.entry import hpcagent_entry

        data: Any = FunctionRegistrationData(function=hpcagent_entry, serializer=self.serializer)
        document: dict[str, Any] = data.to_dict()
        name = (self.address, self._identity, str(document["function_code"]))
        with _REGISTERING:
            if name not in _FUNCTIONS:
                found = self._asked("", lambda: self._v3().register_function(document)["function_uuid"])
                _FUNCTIONS[name] = str(found)
            return _FUNCTIONS[name]

    def forget_function(self) -> None:
        """It is not there any more: it is registered again with the next submission."""
        with _REGISTERING:
            for name in [name for name in _FUNCTIONS if name[0] == self.address]:
                del _FUNCTIONS[name]

    def submit(
        self,
        endpoint_id: str,
        payloads: Sequence[str],
        *,
        config: Mapping[str, Any] | None,
        resources: Mapping[str, Any] | None,
        task_group_id: str,
    ) -> tuple[str, list[str]]:
        """Submit requests in one batch.

        Args:
            endpoint_id: Where to.
            payloads: Of `payload`.
            config: The user endpoint's configuration.
            resources: Resource specification of each.
            task_group_id: Empty: the service makes one. (It is not certain that it takes one from a client.)

        Returns:
            The task group's id, and the id of each task.
        """
        from globus_compute_sdk.sdk.batch import Batch
        from globus_compute_sdk.serialize import JSONData

        function = self.function()
        batch = Batch(
            task_group_id or None,
            resource_specification=dict(resources) if resources else None,
            user_endpoint_config=dict(config) if config else None,
            request_queue=True,
            serializer=self.serializer,
            user_runtime=self._runtime,
            result_serializers=[f"{JSONData.__module__}.{JSONData.__name__}"],
        )
        document = batch.prepare() | {"tasks": {function: list(payloads)}}

        def submitted() -> tuple[str, list[str]]:
            answer = self._v3().submit(endpoint_id, document).data
            return str(answer["task_group_id"]), [str(task) for task in answer["tasks"][function]]

        group, tasks = self._asked(endpoint_id, submitted)
        if len(tasks) != len(payloads):
            raise Outage(f"Globus Compute took {len(tasks)} of {len(payloads)} tasks, and does not say which.")
        return group, tasks

    def status(self, endpoint_id: str) -> dict[str, Any]:
        """What the service says of an endpoint; within seconds, or not at all."""
        return dict(self._asked(endpoint_id, lambda: self._v2(quick=True).get_endpoint_status(endpoint_id).data))

    def group(self, task_group_id: str) -> list[str]:
        """Ids of the tasks of a group."""
        answer = self._asked("", lambda: self._v2().get_task_group(task_group_id).data)
        return [str(task["id"]) for task in answer.get("tasks", []) if isinstance(task, dict) and "id" in task]

    def results(self, task_ids: Iterable[str]) -> dict[str, tuple[str, bool]]:
        """Task id -> (what it gave, whether that is an error); of those that have ended."""
        answer = self._asked("", lambda: self._v2().get_task_batch(list(task_ids)).data)
        found: dict[str, tuple[str, bool]] = {}
        for task, about in answer.get("results", {}).items():
            if not isinstance(about, dict):
                continue
            state = str(about.get("status", "")).lower()
            if "result" in about:
                found[str(task)] = (str(about["result"]), False)
            elif "exception" in about or state == "failed":
                said = about.get("exception") or about.get("reason") or "the service gives no reason"
                found[str(task)] = (str(said), True)
        return found

    def queue(self) -> tuple[str, str]:
        """Prefix of the result queues' names, and the address with its password: never to be shown."""
        answer = self._asked("", lambda: self._v2().get_result_amqp_url().data)
        return str(answer["queue_prefix"]), str(answer["connection_url"])

    def _asked(self, endpoint_id: str, what: Callable[[], _T]) -> _T:
        self._pace.wait()
        try:
            return what()
        except (KeyError, TypeError, AttributeError) as error:
            words = f"Globus Compute gives an answer of an unknown form ({type(error).__name__})."
            raise Outage(words, odd=True) from None
        except Exception as error:
            raise of_service(error, endpoint_id) from None

    def _v2(self, *, quick: bool = False) -> ComputeClientV2:
        from globus_sdk import ComputeClientV2

        name = "quick" if quick else "v2"
        if not hasattr(self._own, name):
            setattr(self._own, name, self._made(ComputeClientV2, quick=quick))
        found: ComputeClientV2 = getattr(self._own, name)
        return found

    def _v3(self) -> ComputeClientV3:
        from globus_sdk import ComputeClientV3

        if not hasattr(self._own, "v3"):
            self._own.v3 = self._made(ComputeClientV3, quick=False)
        found: ComputeClientV3 = self._own.v3
        return found

    def _made(self, kind: Any, *, quick: bool) -> Any:  # either of globus-sdk's two classes
        from globus_sdk.transport import RequestsTransport, RetryConfig

        return kind(
            app=self._app,
            app_name="hpcagent",
            base_url=self.address,
            transport=RequestsTransport(http_timeout=_QUICK_TIMEOUT_S if quick else _TIMEOUT_S),
            retry_config=RetryConfig(max_retries=0 if quick else _RETRIES),
        )

"""The stand-in that the executor's tests use does what a link does, faults included."""

import pytest

from hpcagent.errors import AppFailed, SiteFailed
from hpcagent.testing.local_link import Faults, LocalLink


def double(request):
    if request["op"] == "fail":
        raise ValueError("no")
    return {"key": request["key"], "twice": 2 * request["number"]}


def test_a_request_goes_as_json_and_its_answer_too():
    told = []
    link = LocalLink(answer=double, on_sent=lambda *ids: told.append(ids))
    sent = link.submit({"op": "run", "key": "a", "number": 4})
    assert sent.future.result(5) == {"key": "a", "twice": 8}
    assert told == [("a", link.task_group_id, sent.task_id)]
    with pytest.raises(AppFailed, match="no") as failed:
        link.submit({"op": "fail", "key": "b"}).future.result(5)
    assert failed.value.name == "ValueError"
    with pytest.raises(TypeError):
        link.submit({"op": "run", "key": "c", "number": object()})
    link.close()
    with pytest.raises(SiteFailed):
        link.submit({"op": "run", "key": "d", "number": 1})


def test_faults_are_what_they_say():
    link = LocalLink(answer=double, faults=Faults(lose=1, fail_submit=[AppFailed("too large")]))
    assert isinstance(link.submit({"op": "run", "key": "a", "number": 1}).future.exception(5), AppFailed)
    lost = link.submit({"op": "run", "key": "b", "number": 1})
    link.faults.lose_answers = 1
    unheard = link.submit({"op": "run", "key": "c", "number": 5})
    link.submit({"op": "run", "key": "d", "number": 1}).future.result(5)
    assert not lost.future.done()
    assert not unheard.future.done()
    again = {sent.key: sent for sent in link.reattach([link.task_group_id], keys={unheard.task_id: "c"})}
    assert again["c"].future.result(5)["twice"] == 10
    link.set_offline(True)
    waits = link.submit({"op": "run", "key": "e", "number": 2})
    assert not link.status().online
    assert not waits.future.done()
    link.set_offline(False)
    assert waits.future.result(5)["twice"] == 4
    link.close()

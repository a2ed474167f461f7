"""What a dry run says of chains and screenings."""

from __future__ import annotations

from hpcagent.campaign.dry_run import plan
from hpcagent.campaign.loading import load_campaign


def test_the_cost_of_chains_is_not_guessed():
    found = plan(load_campaign("dft_convergence"), site="threads")
    assert (found.expected_s, found.worst_node_hours, found.expected_node_hours) == (None, None, None)
    assert "which inner runs it makes" in " ".join(found.notes)


def test_a_screening_begins_at_its_cheap_level():
    found = plan(load_campaign("catalyst_screening"), site="threads")
    assert {m.params["engine"] for m in found.manifests} == {"emt"}
    assert len(found.manifests) == 6

"""Settings that don't go together, and variables that other parts read."""

import pytest

from flopwatch_server.settings import SettingsError, load_settings


def test_a_slurmrestd_needs_the_name_of_its_cluster(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FLOPWATCH_SLURM_REST", "http://127.0.0.1:6820")
    with pytest.raises(SettingsError, match="slurm_rest needs slurm_cluster, the cluster's name"):
        load_settings()
    monkeypatch.setenv("FLOPWATCH_SLURM_CLUSTER", "granite")
    assert load_settings().slurm_rest == "http://127.0.0.1:6820"


@pytest.mark.parametrize(
    "variable", ["AGENT_SERVER", "SOCKET", "PROLOG_DIR", "JOB_ID", "URL", "FEED_TOKEN_FILE"]
)
def test_what_jobs_agents_and_feeds_read_does_not_stop_the_server(
    variable: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(f"FLOPWATCH_{variable}", "something")
    load_settings()
    monkeypatch.setenv(f"FLOPWATCH_{variable}S", "something")
    if variable != "AGENT_SERVER":  # any further setting of the agent is the agent's business
        with pytest.raises(SettingsError, match=f"FLOPWATCH_{variable}S is no setting"):
            load_settings()

"""A balancer lists what a repository of its hub has."""

from __future__ import annotations

import httpx
from fleet import Fleet

from hub_server import Repository, hub_server
from no_tls import NO_TLS


def test_operators_see_the_models_of_a_repository_and_why_there_are_none() -> None:
    files = {"m-Q8_0.gguf": b"eight", "m-Q4_K_M.gguf": b"four", "mmproj-F16.gguf": b"sees"}
    with (
        hub_server({"org/model": Repository(files)}) as hub,
        Fleet.start(agents=0, model=None, env={"HF_ENDPOINT": hub.hub_url}) as fleet,
        httpx.Client(
            base_url=fleet.management_url, trust_env=False, verify=NO_TLS, timeout=60
        ) as http,
    ):
        found = http.get("/api/v2/hub/models?repo=org/model").raise_for_status().json()
        names = {each["name"]: each["is_default"] for each in found["quantizations"]}
        assert names == {"Q8_0": False, "Q4_K_M": True}
        assert found["projections"] == [{"path": "mmproj-F16.gguf", "size_bytes": 4}]
        missing = http.get("/api/v2/hub/models", params={"repo": "org/none"})
        assert missing.status_code == 404
        assert "org/none" in missing.text
        assert hub.hub_url not in missing.text

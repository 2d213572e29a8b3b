"""What operators and routers ask a pool's server: health, metrics, held prefixes."""

from __future__ import annotations

import concurrent.futures
import re

import httpx
import pytest

from edgecloud.pool.admission import Watermarks
from edgecloud.pool.plan import StepPlan
from edgecloud.pool.prefix import Namespace, chain_hash
from edgecloud.pool.slo import Slo
from tests.support.fake_pool import live_pool, make_pool
from tests.support.live import eventually
from tests.support.requests import client

from .server_builders import Gate, completion, is_idle


def gauges(http: httpx.Client) -> dict[str, float]:
    """The samples of /metrics without labels but the model's, by name."""
    text = http.get("/metrics").text
    found = re.findall(r'^([\w:]+)\{model_name="fake"\} ([\d.e+-]+)$', text, re.MULTILINE)
    return {name: float(value) for name, value in found}


# ---------------------------------------------------------------------------------------------------- health


# cases: E73
def test_health_of_a_stuck_engine(gate: Gate) -> None:
    engine, runner = make_pool(watchdog_s=0.05, runner={"before_step": gate})
    with live_pool(engine) as live, client(live.url) as http, concurrent.futures.ThreadPoolExecutor() as many:
        well = [http.get(f"/health/{kind}").status_code for kind in ("live", "ready")]
        running = many.submit(http.post, "/v1/completions", json=completion())
        eventually(lambda: not engine.loop.has_heartbeat)
        stuck = [http.get(f"/health/{kind}").status_code for kind in ("live", "ready", "deep")]
        shed = http.post("/v1/completions", json=completion())
        gate.open()
        assert running.result().status_code == 200
        again = [http.get(f"/health/{kind}").status_code for kind in ("live", "ready", "deep")]

    assert well == [200, 200]
    assert stuck == [503, 503, 503]
    assert (shed.status_code, shed.json()["error"]["code"]) == (503, "engine_stuck")
    assert again == [200, 200, 200]
    assert runner.num_steps == 6, "the deep check has decoded one token"


# cases: E73
def test_a_dead_step_loop_is_neither_alive_nor_ready() -> None:
    engine, runner = make_pool()

    def die(plan: StepPlan) -> None:
        raise SystemExit

    with live_pool(engine) as live, client(live.url) as http:
        runner.before_step = die
        lost = http.post("/v1/completions", json=completion())
        states = [http.get(f"/health/{kind}").status_code for kind in ("live", "ready", "deep")]

    assert lost.status_code == 503
    assert states == [503, 503, 503]


def test_a_deep_check_finds_logits_that_are_no_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tests.support.fake_runner.math.log", lambda value: float("nan"))
    engine, _ = make_pool()
    with live_pool(engine) as live, client(live.url) as http:
        sick = http.get("/health/deep")

    assert sick.status_code == 503
    assert sick.json()["error"]["code"] == "not_decoding"


# --------------------------------------------------------------------------------------------------- metrics


# cases: E74
def test_metrics_tell_the_story_in_the_fields_own_names() -> None:
    engine, _ = make_pool(num_blocks=16, slo=Slo(10.0, 10.0), facts={"kept": {"int8": 7}})
    with live_pool(engine) as live, client(live.url) as http:
        for _ in range(2):
            http.post("/v1/completions", json=completion("a long prompt"))
        http.post("/v1/completions", json=completion("x" * 99))
        http.get("/health/deep")
        eventually(lambda: is_idle(engine))
        told = gauges(http)
        text = http.get("/metrics").text

    expected_values = {
        "vllm:num_requests_running": 0,
        "vllm:num_requests_waiting": 0,
        "vllm:kv_cache_usage_perc": 0,
        "vllm:num_preemptions_total": 0,
        # A deep check draws a token too, and is no request.
        "vllm:prefix_cache_queries_total": 27,
        "vllm:prefix_cache_hits_total": 12,
        "vllm:prompt_tokens_total": 27,
        "vllm:generation_tokens_total": 11,
        "edgecloud_pool_good_requests_total": 2,
        "edgecloud_pool_kv_blocks": 16,
        "edgecloud_pool_length_coverage": 1,
    }
    assert {name: told[name] for name in expected_values} == expected_values
    for name in (
        "time_to_first_token", "request_time_per_output_token", "e2e_request_latency",
        "request_queue_time", "request_prefill_time", "request_decode_time", "request_inference_time",
    ):  # fmt: skip
        assert told[f"vllm:{name}_seconds_count"] == 2
    assert told["vllm:inter_token_latency_seconds_count"] == 8
    assert 'vllm:request_success_total{finished_reason="length",model_name="fake"} 2.0' in text
    assert re.search(r'^edgecloud_http_transport_seconds_count\{route="/v1/completions"\} 2.0$', text, re.M)
    assert 'edgecloud_pool_weight_bytes{form="int8",model_name="fake",state="kept"} 7.0' in text
    assert re.search(r"^vllm:cache_config_info\{.*num_gpu_blocks=\"16\".*\} 1.0$", text, re.M)


def test_what_is_computed_for_nobody_is_told() -> None:
    engine, runner = make_pool(num_blocks=64, context=256, slo=Slo(0.0, 0.0), runner={"step_s": 0.01})
    with live_pool(engine) as live, client(live.url) as http:
        with http.stream("POST", "/v1/completions", json=completion(max_tokens=200, stream=True)) as answer:
            pieces = answer.iter_bytes()
            next(pieces)
            eventually(lambda: runner.num_steps > 5)
        eventually(lambda: is_idle(engine))
        told, text = gauges(http), http.get("/metrics").text

    wasted = re.search(r'^edgecloud_pool_wasted_tokens_total\{.*reason="cancelled".*\} ([\d.]+)$', text, re.M)
    assert wasted
    assert float(wasted[1]) >= 4 + 5
    assert told["edgecloud_pool_cancel_seconds_count"] == 1
    assert told["edgecloud_pool_good_requests_total"] == 0


def test_what_a_lack_of_blocks_led_to_is_told() -> None:
    careless = Watermarks(cautious=0, guarded=0, urgent=0)
    engine, _ = make_pool(watermarks=careless, preemption="recompute", runner={"step_s": 0.005})
    with live_pool(engine) as live, client(live.url) as http:
        with concurrent.futures.ThreadPoolExecutor(4) as many:
            list(many.map(lambda _: http.post("/v1/completions", json=completion(max_tokens=14)), range(4)))
        eventually(lambda: is_idle(engine))
        told, text = gauges(http), http.get("/metrics").text

    counts = dict(
        re.findall(r'^edgecloud_pool_block_shortages_total\{.*remedy="(\w+)"\} ([\d.]+)$', text, re.M)
    )
    assert counts.keys() == {"swap", "recompute", "keep", "refuse"}
    assert float(counts["recompute"]) == told["vllm:num_preemptions_total"] > 0
    assert float(counts["swap"]) == 0
    assert float(counts["refuse"]) > 0


def test_where_the_time_went_is_in_the_log_of_each_request(caplog: pytest.LogCaptureFixture) -> None:
    engine, _ = make_pool(runner={"step_s": 0.002})
    with caplog.at_level("INFO", "edgecloud.access"), live_pool(engine) as live, client(live.url) as http:
        http.post("/v1/completions", json=completion())

    record = next(each for each in reversed(caplog.records) if each.name == "edgecloud.access")
    fields = record.fields  # type: ignore[attr-defined]
    parts = [fields[f"{part}_ms"] for part in ("queue", "prefill", "decode", "transport")]
    assert sum(parts) == pytest.approx(fields["ms"], abs=0.5)
    assert fields["decode_ms"] >= 4 * 2


# -------------------------------------------------------------------------------------------------- prefixes


def test_a_router_can_ask_which_prefixes_are_held() -> None:
    engine, _ = make_pool(num_blocks=16)
    with live_pool(engine) as live, client(live.url) as http:
        body = completion("a long prompt")
        before = http.post("/v1/prefixes", json=body).json()
        http.post("/v1/completions", json=body)
        after = http.post("/v1/prefixes", json=body).json()
        listed = http.get("/v1/prefixes").json()
        last = http.get("/v1/prefixes?limit=1").json()
        wrong = http.get("/v1/prefixes?limit=none")

    assert (before["prompt_tokens"], before["cached_tokens"], after["cached_tokens"]) == (13, 0, 12)
    assert (listed["block_size"], listed["num_blocks"], len(listed["heads"])) == (4, 4, 4)
    assert last["heads"] == listed["heads"][-1:]
    assert wrong.status_code == 400


def test_the_names_of_prefixes_can_be_worked_out_elsewhere() -> None:
    engine, _ = make_pool(num_blocks=16)
    with live_pool(engine) as live, client(live.url) as http:
        http.post("/v1/completions", json=completion("a long prompt"))
        heads = http.get("/v1/prefixes").json()["heads"]

    first = chain_hash(Namespace("fake").digest, tuple(b"a lo"))
    assert first.hex().startswith(heads[0])
    assert chain_hash(first, tuple(b"ng p")).hex().startswith(heads[1])


def test_the_runner_forgets_every_request() -> None:
    engine, runner = make_pool(num_blocks=64)
    bodies = [completion(f"p{n}|", n=1 + n % 3) for n in range(20)]
    with live_pool(engine) as live, client(live.url) as http:
        with concurrent.futures.ThreadPoolExecutor(8) as many:
            answers = list(many.map(lambda body: http.post("/v1/completions", json=body), bodies))
        eventually(lambda: is_idle(engine))

    assert {answer.status_code for answer in answers} == {200}
    assert not runner.requests

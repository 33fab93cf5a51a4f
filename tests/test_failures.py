"""What the refusals of many servers mean."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from miniclaw.agent.failures import error_inside, explain
from miniclaw.agent.providers import ModelInfo
from miniclaw.agent.report import read_report, retry_after
from miniclaw.errors import ModelError

INFO = ModelInfo(name="m", where="http://host/v1")


def meaning(status: int, body: object) -> ModelError:
    return explain(read_report(body), status, INFO)


def said(message: str, **fields: Any) -> dict[str, Any]:
    return {"error": {"message": message, **fields}}


def upstream(raw: str) -> dict[str, Any]:
    """What OpenRouter says of a provider's refusal."""
    return said("Provider returned error", code=400, metadata={"raw": raw, "provider_name": "X"})


@pytest.mark.parametrize(
    ("status", "body", "limit", "sent"),
    [
        (400, said("prompt is too long: 210000 tokens > 200000 maximum"), 200_000, 210_000),
        (400, [said("The input token count (1200000) exceeds the maximum number of tokens allowed (1048576).")], 1048576, 1200000),
        (400, said("Invalid request: Your request exceeded model token limit: 262144"), 262_144, None),
        (400, said("Your request exceeded model token limit: 8192 (requested: 9000)"), 8192, 9000),
        (400, {"error": "input length exceeds the context length"}, None, None),
        (500, said("prompt too long; exceeded max context length by 123 tokens"), None, None),
        (400, {"object": "error", "message": "The input (9000 tokens) is longer than the model's context length (8192 tokens)."}, 8192, 9000),
        (400, said("Requested token count exceeds the model's maximum context length of 8192 tokens. You requested a total of 9000 tokens"), 8192, 9000),
        (400, said("The decoder prompt (length 9000) is longer than the maximum model length of 8192."), 8192, 9000),
        (422, {"error": "`inputs` tokens + `max_new_tokens` must be <= 4096. Given: 5000 `inputs` tokens"}, 4096, 5000),
        (400, said("Prompt contains 40000 tokens and 0 draft tokens, too large for model with 32768 maximum context length"), 32_768, 40_000),
        (400, said("The input token count exceeds the maximum number of tokens allowed (1048576)."), 1048576, None),
        (400, said("Input prompt (9001 tokens) is too long and exceeds limit of 4096"), 4096, 9001),
        (400, said("The total number of tokens (input + output) 9001 exceeds the model's limit of 8192"), 8192, 9001),
        (400, said("Total tokens of image and text exceed max message tokens"), None, None),
        (400, said("tokens in request more than max tokens allowed: 4096"), 4096, None),
        (400, said("输入内容超过最大长度限制，最大 8192 tokens"), 8192, None),
        (400, {"error": "Trying to keep the first 4500 tokens when context the overflows. However, the model is loaded with context length of only 4096 tokens"}, 4096, 4500),
        (400, said("too many tokens: total number of tokens in the prompt cannot exceed 4081 - received 5000"), 4081, 5000),
        (413, "<html>413 Request Entity Too Large</html>", None, None),
        (413, said("Request too large for model `x` on tokens per minute (TPM): Limit 6000, Requested 7000", code="rate_limit_exceeded"), 6000, 7000),
        (429, said("Request too large for x on tokens per min (TPM): Limit 10000, Requested 20000.", code="rate_limit_exceeded"), 10_000, 20_000),
        (400, said("Your input exceeds the context window of this model.", code="context_length_exceeded"), None, None),
        (400, said("context window exceeds limit (2013)"), None, None),
        (400, said("Input is too long for requested model."), None, None),
        (400, upstream('{"error": {"message": "maximum context length is 8192 tokens. However, you requested 9000"}}'), 8192, 9000),
        (400, {"code": 20015, "message": "length of prompt_tokens (41025) must be less than max_seq_len (32768)."}, 32_768, 41_025),
        (400, said("input length and `max_tokens` exceed context limit: 190000 + 20000 > 200000, decrease"), 200_000, 210_000),
        (400, said("Prompt exceeds max length"), None, None),
        (400, said("tokens + max_new_tokens must be <= 4097"), 4097, None),
        (400, said("prompt tokens too many: 9000 > 8192"), 8192, 9000),
        (400, said("too many tokens: size limit exceeded by 100 tokens. The limit for this model is 128000 tokens."), 128_000, None),
        (400, said("Total length of messages exceeds 30720"), 30_720, None),
        (400, said("The sum of prompt tokens and max_tokens exceeds 32768"), 32_768, None),
        (400, said("ContextWindowExceededError"), None, None),
        (400, said("Unable to complete request: prompt of 9000 tokens, context 8192. context shift is disabled"), 8192, 9000),
        (400, said("input_tokens (9000) + max_tokens (1000) > max_model_len (8192)"), 8192, 10_000),
        (400, said("<400> InternalError.Algo.InvalidParameter: Range of input length should be [1, 98304]"), 98_304, None),
        (400, said("maximum context length of gpt-3.5-turbo-0125 is 8192 tokens; you requested 9000 (8000 + max_tokens=1000)"), 8192, 9000),
        (400, said("Prompt 超长", code="1261"), None, None),
        (400, said("This model's maximum context length is 128,000 tokens, however you requested 130,001 tokens"), 128_000, 130_001),
        (400, said("the request exceeds the available context size. try increasing the context size"), None, None),
        (400, said("too big", n_ctx=8192, n_prompt_tokens=9001, type="exceed_context_size_error"), 8192, 9001),
        (200, said("This model's maximum context length is 8192 tokens"), 8192, None),
    ],
)  # fmt: skip
def test_an_overflow_is_known_with_the_limit_that_it_names(
    status: int, body: object, limit: int | None, sent: int | None
) -> None:
    error = meaning(status, body)
    assert (error.code, error.kind, error.retryable) == ("context_overflow", "context_overflow", False)
    assert (error.limit, error.requested) == (limit, sent)


@pytest.mark.parametrize(("prompt", "is_told"), [(7000, True), (8000, True), (9000, False)])
def test_where_the_answers_length_makes_it_too_long_that_is_told(prompt: int, is_told: bool) -> None:
    words = f"you requested {prompt + 2000} tokens ({prompt} in the messages, 2000 in the completion)"
    error = meaning(400, said(f"This model's maximum context length is 8192 tokens. However, {words}."))
    assert (error.limit, error.requested) == (8192, prompt + 2000)
    assert ("agent.max_tokens" in str(error)) is is_told


@pytest.mark.parametrize(
    ("status", "body", "kind", "code"),
    [
        (400, said("API key not valid. Please pass a valid API key."), "auth", "model_auth"),
        (403, said("Your input was flagged for violence"), "content_filter", "model_error"),
        (403, said("no", status="PERMISSION_DENIED"), "auth", "model_auth"),
        (200, said("no", code="invalid_api_key"), "auth", "model_auth"),
        (400, {"code": "Arrearage", "message": "Access denied, please check your account."}, "quota", "model_quota"),
        (403, said("Sorry, your account balance is insufficient", code=30001), "quota", "model_quota"),
        (429, said("余额不足", code="1113"), "quota", "model_quota"),
        (429, said("Your account balance", type="exceeded_current_quota_error"), "quota", "model_quota"),
        *((status, {"code": "Some resource has been exhausted", "error": "Your team x has either used all available credits or reached its monthly spending limit. To continue"}, "quota", "model_quota") for status in (200, 403, 429)),  # xAI
        (403, {"code": "The caller does not have permission to execute the specified operation", "error": "Your newly created team doesn't have any credits or licenses yet."}, "quota", "model_quota"),
        (403, said("Key limit exceeded (monthly limit). Manage it using https://openrouter.ai/settings/keys", code=403), "quota", "model_quota"),
        (429, said("您的GLM Coding Plan套餐已到期，暂无法使用", code="1309"), "quota", "model_quota"),
        *((429, said("Usage limit reached", code=code), "quota", "model_quota") for code in ("1308", "1310")),  # Zhipu
        (429, said("You exceeded your current quota. Read the docs: https://help.aliyun.com/zh/model-studio/error-code#token-limit", code="insufficient_quota"), "rate_limited", "model_rate_limited"),
        (429, said("Allocated quota exceeded, please increase your quota limit.", type="insufficient_quota"), "rate_limited", "model_rate_limited"),
        (429, said("Allocated quota exceeded", code="Throttling.AllocationQuota"), "rate_limited", "model_rate_limited"),
        (429, said("Free allocated quota exceeded. See https://help.aliyun.com/x", code="insufficient_quota"), "quota", "model_quota"),
        (429, said("Read https://www.alibabacloud.com/help", code="AllocationQuota.FreeTierOnly"), "quota", "model_quota"),
        (429, said("You exceeded your current quota. See https://platform.openai.com/docs", code="insufficient_quota"), "quota", "model_quota"),
        (400, said("Organization has reached its spend limit.", code="blocked_api_access"), "quota", "model_quota"),
        (403, said("no", code="AccountOverdueError"), "quota", "model_quota"),
        (403, said("The request failed because your account has an overdue balance."), "quota", "model_quota"),
        (412, said("Account x is suspended, possibly due to reaching the monthly spending limit or failure to pay past invoices."), "quota", "model_quota"),
        (400, said("You have reached your specified API usage limits.", code="invalid_request_error"), "quota", "model_quota"),
        (429, said("You exceeded your current quota", status="RESOURCE_EXHAUSTED"), "rate_limited", "model_rate_limited"),
        (200, said("slow", type="rate_limit_error"), "rate_limited", "model_rate_limited"),
        (200, {"base_resp": {"status_code": 1002, "status_msg": "slow"}}, "rate_limited", "model_rate_limited"),
        (200, {"base_resp": {"status_code": 1004, "status_msg": "no"}}, "auth", "model_auth"),
        (200, {"base_resp": {"status_code": 1008, "status_msg": "no"}}, "quota", "model_quota"),
        (400, said("no", code="1002"), "auth", "model_auth"),
        (400, said("temperature: Input should be less than or equal to 2"), "refused", "model_error"),
        (400, said("Invalid 'messages[2].tool_calls[0].id': string too long. Expected a string with maximum length 40"), "refused", "model_error"),
        (400, said("Invalid 'messages[2].tool_calls[0].id': string too long. Expected a string with maximum length 40", code="string_above_max_length"), "refused", "model_error"),
        (400, said("Invalid 'tools[0].function.description': string too long. Expected a string with maximum length 1024", code="string_above_max_length"), "refused", "model_error"),
        (400, said("Invalid 'messages[1].content': string too long. Expected a string with maximum length 1048576", code="string_above_max_length"), "context_overflow", "context_overflow"),
        (400, said("<400> InternalError.Algo.DataInspectionFailed: Input text data may contain inappropriate content.", code="data_inspection_failed"), "content_filter", "model_error"),
        (400, said("<400> InternalError.Algo.InvalidParameter: The input messages do not contain elements with the role of user", code="invalid_parameter_error"), "refused", "model_error"),
        (400, said("tools.function.parameters is not a valid moonshot flavored json schema, details: <At path 'properties.context': type is not defined>"), "refused", "model_error"),
        (400, said("模型不存在，请检查模型代码。", code="1211"), "model_not_found", "model_not_found"),
        (400, said("Invalid 'tools': array too long. Expected an array with maximum length 128"), "refused", "model_error"),
        (400, said("max_tokens must be less than or equal to 4096"), "refused", "model_error"),
        (400, said("max_tokens must be at least 1, got 0"), "refused", "model_error"),
        (400, said("max_tokens is greater than 4096"), "refused", "model_error"),
        (400, said("prompt_cache_key must be at most 64 characters"), "refused", "model_error"),
        (400, said("messages must have at most one system message"), "refused", "model_error"),
        (400, said("messages.5: too many images and documents: 20 + 85 > 100"), "refused", "model_error"),
        (200, said("Open api qps request limit reached"), "stream_error", "model_error"),
        (400, said("Too many system messages"), "refused", "model_error"),
        (400, said("Daily token limit exceeded: 100000 tokens per day"), "refused", "model_error"),
        (429, said("Rate limit: Limit 30000, Used 29000, Requested 2000 tokens per min"), "rate_limited", "model_rate_limited"),
        (404, said("no", code="DeploymentNotFound"), "model_not_found", "model_not_found"),
        (400, said("x is not a valid model ID"), "model_not_found", "model_not_found"),
        (400, said("Model Not Exist"), "model_not_found", "model_not_found"),
        (404, said("No endpoints found for vendor/m-1."), "model_not_found", "model_not_found"),
        (404, "404 page not found", "endpoint_missing", "model_not_found"),
        (405, None, "endpoint_missing", "model_not_found"),
        (400, said("no", code="data_inspection_failed"), "content_filter", "model_error"),
        (200, said("no", type="overloaded_error"), "overloaded", "model_error"),
        (200, said("no", code="server_error"), "server", "model_error"),
        (504, "upstream timed out", "server", "model_error"),
        (400, said("'max_tokens' is too large: 5000. This model's maximum context length is 8192 tokens and your request has 4000 input tokens"), "refused", "model_error"),
        (422, {"detail": "bad"}, "refused", "model_error"),
    ],
)  # fmt: skip
def test_a_refusal_has_its_kind(status: int, body: object, kind: str, code: str) -> None:
    error = meaning(status, body)
    assert (error.kind, error.code) == (kind, code)
    assert str(error).endswith(".") and str(error)[0].isupper()


def test_a_router_that_has_the_model_but_not_for_such_a_request_is_told_in_its_words() -> None:
    words = "No endpoints found that can handle the requested parameters"
    assert str(meaning(404, said(words))).endswith(f"`m` cannot be used so at http://host/v1: {words}.")


@pytest.mark.parametrize(
    ("body", "message", "code", "param"),
    [
        ({"error": "text"}, "text", "", ""),
        ({"error": {"message": "m", "code": 400, "param": "p"}}, "m", "400", "p"),
        ({"errors": [{"message": "m", "code": 7}]}, "m", "7", ""),
        ([{"error": {"message": "m", "status": "S"}}], "m", "S", ""),
        ({"message": "m", "code": "c"}, "m", "c", ""),
        ({"error": "E", "message": "m", "status": 429}, "m", "429", ""),
        ({"detail": "Not Found"}, "Not Found", "", ""),
        (
            {"detail": [{"loc": ["body", "messages", 0, "x"], "msg": "bad"}]},
            "messages.0.x: bad",
            "",
            "messages.0.x",
        ),
        ({"detail": [{"loc": 5, "msg": "bad"}]}, ": bad", "", ""),
        ({"detail": []}, "", "", ""),
        ("plain", "plain", "", ""),
        ("<html>", "", "", ""),
        ({"code": 400, "msg": "m"}, "m", "400", ""),
        ({"error_code": 18, "error_msg": "m"}, "m", "18", ""),
        ({"base_resp": {"status_code": 1008, "status_msg": "m"}}, "m", "minimax-1008", ""),
        (upstream('{"error": {"message": "m", "param": "p"}}'), "m", "400", "p"),
        (upstream("m"), "m", "400", ""),
        (upstream(""), "Provider returned error", "400", ""),
        (upstream("[" * 100_000), "[" * 2_000, "400", ""),
        ([], "", "", ""),
        (None, "", "", ""),
        (7, "", "", ""),
    ],
)
def test_a_report_is_read_in_whatever_shape(body: object, message: str, code: str, param: str) -> None:
    report = read_report(body)
    assert (report.message, report.code, report.param) == (message, code, param)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=8),
    lambda inner: (
        st.lists(inner, max_size=2)
        | st.dictionaries(
            st.sampled_from(["error", "message", "code", "detail", "details", "param", "status"]), inner
        )
    ),
    max_leaves=8,
)


@pytest.mark.parametrize("when", ["Your limit will reset at 13:18", "You will regain access on 2026-12-05"])
def test_a_used_up_plan_says_when_it_is_free_again(when: str) -> None:
    error = meaning(429, said(f"Usage limit reached. {when}.", code="1308"))
    assert str(error) == f"The account at {INFO.where} has no quota left: Usage limit reached. {when}."


@given(JSON, st.sampled_from([200, 400, 401, 404, 413, 422, 429, 500, 529]))
def test_whatever_a_server_says_it_is_an_error_with_a_sentence(body: object, status: int) -> None:
    error = meaning(status, body)
    assert str(error).endswith(".") and error.kind
    assert error_inside(body).code


@pytest.mark.parametrize(
    ("headers", "seconds"),
    [
        ({"retry-after": "2m"}, 120.0),
        ({"retry-after": "60, 60"}, 60.0),
        ({"retry-after": "7"}, 7.0),
        ({"retry-after": "9" * 20}, 1e15),
        ({"x-ratelimit-remaining-requests": "0", "x-ratelimit-reset-requests": "1.1.1s"}, None),
    ],
)
def test_a_wait_is_read_in_the_forms_that_are_sent(headers: dict[str, str], seconds: float | None) -> None:
    assert retry_after(headers, lambda: 0.0) == seconds


@pytest.mark.parametrize("text", ["try again in 1.2.3s", "try again in ...... s", "retry after 1..s"])
def test_a_wait_that_is_no_number_is_a_rate_limit_all_the_same(text: str) -> None:
    assert meaning(429, said(text)).kind == "rate_limited"
    assert (
        meaning(429, {"error": {"message": "m", "details": [{"retryDelay": "1.2.3s"}]}}).retry_after is None
    )


@given(
    st.dictionaries(
        st.sampled_from(["retry-after", "retry-after-ms", "x-ratelimit-reset"]), st.text(max_size=9)
    )
)
def test_whatever_a_header_says_the_wait_is_none_or_a_number(headers: dict[str, str]) -> None:
    wait = retry_after(headers, lambda: 0.0)
    assert wait is None or wait >= 0

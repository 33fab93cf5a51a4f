"""What a model server says went wrong, and the `ModelError` that it means. No I/O.

Codes come before words: a transient refusal may be worded as a lasting one, and the other way round.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from datetime import datetime, timedelta
from typing import Final

from miniclaw.agent.overflow import overflow_in
from miniclaw.agent.providers import ModelInfo
from miniclaw.agent.report import Report, read_report, retry_after
from miniclaw.agent.sse import read_json
from miniclaw.errors import ModelError

__all__ = ["MOST_WAIT", "error_inside", "explain", "read_failure"]

MOST_WAIT: Final = 30.0
"""Seconds; a server that asks for more ends the turn, which says when it is free again."""

_UNSURE: Final = frozenset({200, 400, 403})
"""Statuses beside which the code tells what is meant."""
_STATUS: Final = re.compile(r"[45]\d\d", re.ASCII)
_QUOTA_CODES: Final = frozenset({
    *("insufficient_quota", "billing_hard_limit_reached", "billing_not_active", "insufficient_balance"),
    *("exceeded_current_quota_error", "arrearage", "insufficient_credits", "credit_balance_exhausted", "1113"),
    *("1309", "minimax-1008", "30001", "allocationquota.freetieronly", "billing_error"),
    *("blocked_api_access", "accountoverdueerror", "1308", "1310"),
})  # fmt: skip
_QUOTA_WORDS: Final = re.compile(
    r"credit balance|insufficient (?:account )?balance|余额不足|欠费|overdue payment|套餐已到期"
    r"|used all available credits|monthly spending limit|n.t have any credits|\bkey limit exceeded"
    r"|overdue balance|reached your specified api usage limits"
)
_DASHSCOPE_RATE: Final = re.compile(
    r"(?!.*free allocated)(?=.*(?:allocated quota exceeded|help\.aliyun\.com|alibabacloud\.com))", re.DOTALL
)
"""Its tokens per minute, in OpenAI's code. Source: https://help.aliyun.com/en/model-studio/rate-limit"""
_RATE_CODES: Final = frozenset({
    *("rate_limit_exceeded", "rate_limit_error", "rate_limit_reached_error", "rate_limited", "too_many_requests"),
    *("429", "resource_exhausted", "throttling", "throttling.ratequota", "1302"),
    *("minimax-1002", "minimax-1039"),
})  # fmt: skip
_BUSY_CODES: Final = frozenset({
    *("overloaded_error", "engine_overloaded", "engine_overloaded_error", "server_is_overloaded", "slow_down"),
    *("529", "503", "unavailable", "unavailable_error", "service_unavailable", "1305"),
})  # fmt: skip
_SERVER_CODES: Final = frozenset(
    {"server_error", "internal_server_error", "internal_error", "500", "502", "api_error"}
)
_AUTH_CODES: Final = frozenset({
    *("invalid_api_key", "authentication_error", "401", "unauthenticated", "1002", "minimax-1004", "minimax-2049"),
})  # fmt: skip
_AUTH_WORDS: Final = re.compile(r"api key (?:not valid|is invalid)|(?:invalid|incorrect) api key")
_MODEL_CODES: Final = frozenset(
    {"model_not_found", "deploymentnotfound", "modelnotfound", "invalid_model", "1211"}
)
_MODEL_WORDS: Final = re.compile(
    r"not a valid model|模型不存在|model .{0,80}(?:not found|not exist)|(?:unknown|no such|invalid) model|model not exist|no endpoints found for"
)
_FILTER_CODES: Final = frozenset({
    *("content_filter", "content_policy_violation", "data_inspection_failed", "datainspectionfailed", "1301")
})  # fmt: skip
_FILTER_WORDS: Final = re.compile(r"\bflagged\b|moderation")

LONGEST_WAIT: Final = 10 * 365 * 86_400.0
"""Seconds beyond which a server's wait is not told any more exactly."""


def explain(
    report: Report, status: int, info: ModelInfo | None = None, *, wait: float | None = None, now: float = 0.0
) -> ModelError:
    """The error that a refusal means.

    Args:
        report: what the body says.
        status: of the HTTP response; 200 is a refusal inside an answer, whose code may be a status.
        info: the model, for the sentence.
        wait: the seconds that the server asks to wait.
        now: seconds since the epoch, to say when it is free again.
    """
    where, model = (info.where, info.name) if info else ("the model server", "")
    said, is_inside = f"answered {status}", status == 200
    if is_inside:
        said, status = "reported", int(report.code) if _STATUS.fullmatch(report.code) else 200
    if (lasting := _lasting(report, status, where)) is not None:
        return lasting
    overflow = overflow_in(report, 200 if is_inside and status not in {413, 429} else status)
    if overflow is not None and not report.has(_FILTER_CODES):
        return overflow
    if status == 429 or (status in _UNSURE and report.has(_RATE_CODES)):
        return _rate_limited(wait if wait is not None else report.delay, now)
    is_filtered = report.has(_FILTER_CODES) or (status == 403 and _FILTER_WORDS.search(report.words))
    if status == 403 and not is_filtered:
        text = f"Access was refused by {where}; check OPENAI_API_KEY, and whether it may use the model `{model}`."
        return ModelError("model_auth", text, kind="auth")
    if status in {404, 405, 410} or (status == 400 and _is_about_model(report)):
        return _missing(report, where, model)
    text = (report.message or report.type or report.code)[:300].rstrip(". ")
    sentence = f"The model server {f'at {where} ' if info else ''}{said}{f': {text}' if text else ''}."
    if is_filtered:
        sentence = "The content filter of the model server refused this; say it in other words."
        return ModelError("model_error", sentence, kind="content_filter")
    kind = _passing_kind(report, status)
    return ModelError("model_error", sentence, kind=kind or "refused", retryable=bool(kind), retry_after=wait)


def _lasting(report: Report, status: int, where: str) -> ModelError | None:
    """What only the operator can mend."""
    is_auth = report.has(_AUTH_CODES) or _AUTH_WORDS.search(report.words)
    if status == 401 or (status in _UNSURE and is_auth):
        text = f"The API key was refused by {where}; check OPENAI_API_KEY."
        return ModelError("model_auth", text, kind="auth")
    is_rate = report.has(frozenset({"insufficient_quota"})) and _DASHSCOPE_RATE.match(report.words)
    if status == 429 and is_rate and report.code.lower() != "allocationquota.freetieronly":
        return None
    is_quota = status in {*_UNSURE, 412, 429} and _QUOTA_WORDS.search(report.words)
    if status == 402 or report.has(_QUOTA_CODES) or is_quota:
        is_told = re.search(r"reset at|regain access", report.words)
        advice = f": {report.message[:300].rstrip('. ')}" if is_told else "; top it up"
        return ModelError("model_quota", f"The account at {where} has no quota left{advice}.", kind="quota")
    return None


def _passing_kind(report: Report, status: int) -> str:
    """The kind of a failure that may be over soon; empty for any other."""
    if status in {503, 529} or report.has(_BUSY_CODES):
        return "overloaded"
    if status >= 500 or status == 408 or (status == 200 and report.has(_SERVER_CODES)):
        return "server"
    return "stream_error" if status == 200 else ""


def read_failure(error: Exception, info: ModelInfo, clock: Callable[[], float]) -> tuple[ModelError, Report]:
    """What an exception of the `openai` client, or of its transport, means, and what the server said."""
    import httpx2
    from openai import APIConnectionError, APIStatusError

    if isinstance(error, ModelError) and error.body is None:
        return error, Report(str(error))
    if isinstance(error, ModelError):
        report = read_report(error.body)
        return explain(report, 200, info, now=clock()), report
    if isinstance(error, APIStatusError):
        try:
            report = read_report(read_json(error.response.content))
        except ModelError:
            report = read_report(error.response.text)
        wait = retry_after(error.response.headers, clock)
        return explain(report, error.status_code, info, wait=wait, now=clock()), report
    kind, what = "unreachable", f"cannot be used: {str(error)[:200].rstrip('.')}"
    if isinstance(error, httpx2.HTTPError):
        kind, what = "stream_cut", "broke off its answer; ask again"
    elif isinstance(error, APIConnectionError):
        what = f"cannot be reached; {_why_not(error) or 'check that it runs'}"
    if any(isinstance(cause, TimeoutError) for cause in _causes(error)):
        what = "did not answer in time; ask again, or check that it runs"
    text = f"The model server at {info.where} {what}."
    is_retryable = isinstance(error, httpx2.HTTPError | APIConnectionError)
    return ModelError("model_unreachable", text, kind=kind, retryable=is_retryable), Report()


def _causes(error: BaseException | None) -> Iterator[BaseException]:
    """The exception and what it comes of; the client calls every connection that failed one."""
    while error is not None:
        yield error
        error = error.__cause__


def _why_not(error: BaseException) -> str:
    """What on the way to a server kept a connection from it; empty when it may be the server itself."""
    from aiohttp import ClientConnectorCertificateError, ClientHttpProxyError

    for cause in _causes(error):
        if isinstance(cause, ClientConnectorCertificateError):
            return "its certificate is not trusted, so check the address, or set SSL_CERT_FILE to what it is signed with"
        if isinstance(cause, ClientHttpProxyError):
            return f"a proxy answered {cause.status}, so check HTTPS_PROXY, or name the server in NO_PROXY"
    return ""


def error_inside(body: object) -> ModelError:
    """The error that is reported inside an answer whose status was good."""
    error = explain(read_report(body), 200)
    error.body = body
    return error


def _rate_limited(wait: float | None, now: float) -> ModelError:
    text = "The model is rate limited; try again later."
    if wait is not None and wait > 1:
        text = f"The model is rate limited; it is free again in {wait:.0f} s."
        if wait > MOST_WAIT:
            moment = datetime.fromtimestamp(now).astimezone() + timedelta(seconds=min(wait, LONGEST_WAIT))
            text = f"The model is rate limited; it is free again at {moment:%Y-%m-%d %H:%M}."
    is_soon = wait is None or wait <= MOST_WAIT
    return ModelError("model_rate_limited", text, kind="rate_limited", retryable=is_soon, retry_after=wait)


def _is_about_model(report: Report) -> bool:
    return report.has(_MODEL_CODES) or _MODEL_WORDS.search(report.message.lower()) is not None


def _missing(report: Report, where: str, model: str) -> ModelError:
    if _is_about_model(report) or "model" in report.message.lower():
        text = f"There is no model `{model}` at {where}; check OPENAI_MODEL."
        return ModelError("model_not_found", text, kind="model_not_found")
    if "no endpoints found" in report.message.lower():  # OpenRouter
        text = f"The model `{model}` cannot be used so at {where}: {report.message[:300].rstrip('. ')}."
        return ModelError("model_not_found", text, kind="endpoint_missing")
    text = (
        f"There is no such API at {where}; check OPENAI_BASE_URL, which usually ends in /v1, and `model.api`."
    )
    return ModelError("model_not_found", text, kind="endpoint_missing")

"""What servers say of a request beyond their model's window, and what is made of each of these sentences.

The sentences are those of the servers, with other numbers. It is the history that is too long, which is an
overflow, or the answer that was asked for, which is asked for shorter.
"""

from __future__ import annotations

import pytest

from miniclaw.agent.openai_provider import OpenAIProvider
from miniclaw.errors import ModelError
from tests.support.model import FakeModel, Message, Reply

REDUCE = "Please reduce the length of the input prompt or the number of requested output tokens."
VLLM = (
    "This model's maximum context length is {} tokens. However, you requested {} output tokens and your prompt contains"
    " {} input tokens, for a total of {} tokens. " + REDUCE + " (parameter=input_tokens, value={})"
)
CHARACTERS = (
    "This model's maximum context length is {} tokens. However, you requested {} output tokens and your prompt contains"
    " {} characters (more than {} characters, which is the upper bound for {} input tokens). " + REDUCE
)
PASSED = (
    "You passed {} input tokens and requested {} output tokens. However, the model's context length is only {} tokens,"
    " resulting in a maximum input length of {} tokens. Please reduce the length of the input prompt."
)
TOO_LARGE = (
    "'max_tokens' or 'max_completion_tokens' is too large: {}. This model's maximum context length is {} tokens and"
    " your request has {} input tokens ({} > {} - {}). (parameter=max_tokens, value={})"
)
CLASSIC = (
    "This model's maximum context length is {} tokens. However, you requested {} tokens ({} in the messages, {} in the"
    " completion). Please reduce the length of the messages or completion."
)
FUNCTIONS = (
    "This model's maximum context length is {} tokens. However, you requested {} tokens ({} in the messages, {} in the"
    " functions, {} in the completion). Please reduce the length of the messages, functions, or completion."
)
ROUTER = (
    "This endpoint's maximum context length is {} tokens. However, you requested about {} tokens ({} of text input, {}"
    " of tool input, {} in the output). Please reduce the length of either one, or use the context-compression plugin."
)
SGLANG = (
    "Requested token count exceeds the model's maximum context length of {} tokens. You requested a total of {} tokens:"
    " {} tokens from the input messages and {} tokens for the completion. Please reduce the number of tokens in the"
    " input messages or the completion to fit within the limit."
)
TGI = (
    "Input validation error: `inputs` tokens + `max_new_tokens` must be <= {}. Given: {} `inputs` tokens and {}"
    " `max_new_tokens`"
)
MOONSHOT = "Invalid request: Your request exceeded model token limit: {} (requested: {})"
SILICONFLOW = "length of prompt_tokens ({}) must be less than max_seq_len ({})"
FIREWORKS = "The prompt is too long: {}, model maximum context length: {}"
CLOUDFLARE = "The estimated number of input and maximum output tokens ({}) exceeded this model context window limit ({})."
LLAMA = "request ({} tokens) exceeds the available context size ({} tokens), try increasing it"
MISTRAL = "Prompt contains {} tokens and 0 draft tokens, too large for model with {} maximum context length"
DASHSCOPE = "<400> InternalError.Algo.InvalidParameter: Range of input length should be [1, {}]"

# The sentence, the answer's length that was asked for, and either the one that is asked for instead or the limit
# and what was sent.
TOO_LONG: dict[str, tuple[str, int, int | tuple[int | None, int | None]]] = {
    "vLLM, history": (VLLM.format(4096, 512, "at least 3585", "at least 4097", 3585), 512, (4096, 4097)),
    "vLLM, no answer asked for": (
        VLLM.format(1024, 0, "at least 1025", "at least 1025", 1025),
        9,
        (1024, 1025),
    ),
    "vLLM, answer": (VLLM.format(8192, 8000, "at least 193", "at least 8193", 193), 8000, 4096),
    "vLLM, whole window": (VLLM.format(4096, 4096, "at least 1", "at least 4097", 1), 4096, 2048),
    "vLLM, exact": (VLLM.format(8192, 8000, 5500, 13_500, 5500), 8000, 2692),
    "vLLM, characters": (CHARACTERS.format(131_072, 131_072, 14_233, 0, 0), 131_072, 65_536),
    "vLLM, characters, history": (CHARACTERS.format(8192, 512, 99_999, 30_720, 7680), 512, (8192, 8192)),
    "vLLM, passed": (PASSED.format(193, 8000, 8192, 192), 8000, 4096),
    "vLLM, passed, history": (PASSED.format(67_073, 64_000, 131_072, 67_072), 64_000, (131_072, 131_073)),
    "vLLM, too large": (TOO_LARGE.format(100_000, 8192, 500, 100_000, 8192, 500, 100_000), 100_000, 4096),
    "DeepSeek": (CLASSIC.format(8192, 8692, 500, 8192), 8192, 4096),
    "OpenAI": (FUNCTIONS.format(8192, 9000, 500, 308, 8192), 8192, 4096),
    "OpenAI, history": (CLASSIC.format(8192, 9000, 8500, 500), 500, (8192, 9000)),
    "OpenRouter": (ROUTER.format(8192, 9000, 500, 308, 8192), 8192, 4096),
    "SGLang": (SGLANG.format(8192, 8700, 508, 8192), 8192, 4096),
    "TGI": (TGI.format(8193, 500, 8192), 8192, 4096),
    "Together, history": (TGI.format(8193, 8000, 512), 512, (8193, 8512)),
    "Moonshot": (MOONSHOT.format(4096, 4500), 3000, 2048),
    "Moonshot, history": (MOONSHOT.format(262_144, 291_351), 4096, (262_144, 291_351)),
    "SiliconFlow": (SILICONFLOW.format(500, 8192) + " - max_tokens (8192).", 8192, 4096),
    "SiliconFlow, history": (SILICONFLOW.format(41_025, 32_768) + ".", 4096, (32_768, 41_025)),
    "Fireworks": (FIREWORKS.format(500, 8191) + ", max_tokens 8192", 8192, 4095),
    "Fireworks, history": (FIREWORKS.format(9000, 8191), 8000, (8191, 9000)),
    "Cloudflare": (CLOUDFLARE.format(35_000, 24_000), 20_000, 9000),
    "llama.cpp": (LLAMA.format(9000, 8192), 8000, (8192, 9000)),
    "Mistral": (MISTRAL.format(40_000, 32_768), 32_000, (32_768, 40_000)),
    "xAI": (
        "This model's maximum prompt length is 131072 but the request contains 537812 tokens.",
        500_000,
        (131_072, 537_812),
    ),
    "Anthropic": (
        "input length and `max_tokens` exceed context limit: 1000 + 9000 > 9500, decrease",
        9000,
        4750,
    ),
    "Gemini": (
        "The input token count (1200000) exceeds the maximum number of tokens allowed (1048576).",
        600_000,
        (1_048_576, 1_200_000),
    ),
    "vLLM, no room for an answer": (
        "max_tokens must be at least 1, got -7584. (parameter=max_tokens, value=-7584)",
        512,
        (None, None),
    ),
    "TabbyAPI": ("Prompt length 9000 is greater than max_seq_len 8192", 512, (8192, 9000)),
    "ExLlama": ("Request length 5000 is greater than cache size of 4096", 512, (4096, 5000)),
    "DashScope": (DASHSCOPE.format(30_720), 8000, (30_720, None)),
    "Zhipu": ("Prompt exceeds max length", 8000, (None, None)),
    "OpenAI, answer": (
        "max_tokens is too large: 99999. This model supports at most 16384 completion tokens, whereas you provided"
        " 99999.",
        99_999,
        16_384,
    ),
    "Groq": (
        "`max_tokens` must be less than or equal to `8192`, the maximum value for `max_tokens` is less than the"
        " `context_window` for this model",
        99_999,
        8192,
    ),
}


@pytest.mark.parametrize("name", TOO_LONG)
async def test_what_is_too_long_is_known_from_the_servers_sentence(name: str) -> None:
    sentence, asked, wanted = TOO_LONG[name]

    def script(messages: list[Message], number: int) -> Reply:
        is_refused = asked in (
            server.requests[-1].get(key) for key in ("max_tokens", "max_completion_tokens")
        )
        return {"status": 400, "message": sentence} if is_refused else {"text": "Hi"}

    async with FakeModel(script) as server:
        provider = OpenAIProvider("m", api_key="k", base_url=server.url, max_tokens=asked, max_retries=0)
        try:
            if isinstance(wanted, int):
                assert (await provider.chat([{"role": "user", "content": "hello"}])).text == "Hi"
                assert [body["max_tokens"] for body in server.requests] == [asked, wanted]
            else:
                with pytest.raises(ModelError) as raised:
                    await provider.chat([{"role": "user", "content": "hello"}])
                assert (raised.value.kind, raised.value.limit, raised.value.requested) == (
                    "context_overflow",
                    *wanted,
                )
                assert len(server.requests) == 1
        finally:
            await provider.close()

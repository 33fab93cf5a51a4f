"""运行：pytest exercises/test_2_add.py"""

from contextlib import aclosing

from day4_agent import LLMResponse, ScriptedProvider
from ex_2_add import Counting

HINT = "提示：流里每一块的 `text` 是新说的字；最后那块的 `response.text` 是全部，不要再数一遍。"


async def test_it_counts_whole_answers() -> None:
    provider = Counting(ScriptedProvider([LLMResponse(text="已发货"), LLMResponse(text="处理中")]))
    assert (await provider.chat([])).text == "已发货"
    await provider.chat([])
    assert (provider.asked, provider.letters) == (2, 6), HINT


async def test_it_counts_streams_and_passes_everything_on() -> None:
    provider = Counting(ScriptedProvider([LLMResponse(text="2 天后送达")]))
    async with aclosing(provider.stream([])) as stream:
        chunks = [chunk async for chunk in stream]
    assert chunks[-1].response is not None
    assert (provider.asked, provider.letters) == (1, 6), HINT

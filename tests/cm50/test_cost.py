import pytest

from memecmd_utils.cm50 import annotation
from memecmd_utils.cm50.annotation import reading_request
from memecmd_utils.cm50.prompts import PROMPTS
from memecmd_utils.core.llm import prices
from memecmd_utils.schemas import TemplateInfo, TemplateMeme
from memecmd_utils.settings import Profile

MEMES = [
    TemplateMeme(source="made up", meme_id=f"m{n}", template="A", url="u", captions=["seven letters"])
    for n in range(10)
]
INFOS = [TemplateInfo(source="made up", template="A", about="A heron that waits.")]
ENDPOINT = {"model": "m", "usd_per_million_in": 2.5, "usd_per_million_out": 10.0, "tokens_per_image": 100}


def profile(**keys: object) -> Profile:
    return Profile(**{"name": "p", "llm": "openai", "endpoints": {"generator": ENDPOINT}, **keys})


def test_calls_tokens_and_money_are_those_of_the_rendered_prompts() -> None:
    mine = profile()
    table = annotation.estimate_readings(mine, MEMES, INFOS).set_index("stage")
    assert table.index.tolist() == ["07 gpt4o", "07 three_step_12", "total"]
    assert table.calls.tolist() == [10, 10, 20]
    settings = mine.cm50.annotation
    (message,) = reading_request(PROMPTS["gpt4o"], MEMES[0], INFOS[0], settings, 0).messages
    assert table.tokens_in["07 gpt4o"] == pytest.approx(10 * len(message.text) * 0.25, abs=1)
    assert table.tokens_out["07 three_step_12"] == 10 * (60 + 12 * 30)
    total = table.loc["total"]
    assert total.usd == pytest.approx((total.tokens_in * 2.5 + total.tokens_out * 10) / 1e6)
    assert total.hours == pytest.approx(20 * prices.REMOTE_SECONDS_PER_CALL / mine.models.concurrency / 3600)
    assert "three_step_12" in prices.estimate_text(table.reset_index())


def test_pictures_context_and_the_sample_count() -> None:
    def t_in(pictures: bool = False, memes=MEMES, **settings: object) -> int:
        mine = profile(template_annotation={"prompt": "", **settings})
        return annotation.estimate_readings(mine, memes, INFOS, pictures).tokens_in.iloc[-1]

    blind = t_in()
    assert t_in(context=False) < blind < t_in(pictures=True) < blind + 10 * 100
    assert t_in(sample=5) == pytest.approx(blind / 2, abs=1)
    assert t_in(devices_prompt="few_shot_ocr_pairs") == t_in(True, devices_prompt="few_shot_ocr_pairs")
    assert t_in(memes=[]) == 0


def test_who_answers_decides_on_money_and_time() -> None:
    batch = annotation.estimate_readings(profile(batch=True), MEMES, INFOS).iloc[-1]
    live = annotation.estimate_readings(profile(), MEMES, INFOS).iloc[-1]
    assert batch.usd == pytest.approx(live.usd / 2) and batch.hours == 48
    local = annotation.estimate_readings(profile(llm="local"), MEMES, INFOS)
    assert local.usd.sum() == 0 and local.hours.iloc[-1] > live.hours and local.model[0].startswith("qwen")
    nobody = annotation.estimate_readings(profile(llm="authored"), MEMES, INFOS).iloc[-1]
    assert (nobody.calls, nobody.usd, nobody.hours) == (0, 0, 0)

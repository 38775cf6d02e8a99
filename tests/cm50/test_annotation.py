from pathlib import Path

import pytest
from fault_server import FaultServer, Simulated
from made_templates import FIVE, STEPS, run_of
from PIL import Image as Pillow
from pydantic import SecretStr
from scripted import ScriptedBackend

from memecmd_utils import files
from memecmd_utils.cm50 import annotation
from memecmd_utils.cm50.annotation import TEXT_ONLY, draw_sample, reading_counts, reading_request
from memecmd_utils.cm50.prompts import PROMPTS
from memecmd_utils.files import dumps
from memecmd_utils.llm import budget, prompts
from memecmd_utils.llm import chat as llm_chat
from memecmd_utils.llm.chat import Chat
from memecmd_utils.llm.endpoint import OpenAIBackend
from memecmd_utils.llm.messages import Image, Reply, Request
from memecmd_utils.recordings import Recordings
from memecmd_utils.schemas import MemeReading, TemplateInfo, TemplateMeme
from memecmd_utils.settings import Endpoint, Profile

MEMES = [
    TemplateMeme(
        source="made up", meme_id=f"m{n}", template="AB"[n % 2], url=f"u{n}", captions=[f"text {n}", "below"]
    )
    for n in range(6)
]
INFOS = [TemplateInfo(source="made up", template="A", about="A heron that waits for the bus.")]


def answer(request: Request) -> str:
    return dumps(STEPS if request.subject.endswith("/three_step_12") else FIVE)


def profile(**settings: object) -> Profile:
    return Profile(name="p", llm="openai", template_annotation=settings)


def annotate(backend: ScriptedBackend, picture=None, memes=MEMES, settings=None, **options):
    chat = Chat(backend, **options)
    work = annotation.annotate(memes, INFOS, chat, profile(**settings or {}), picture)
    return llm_chat.run(work)


def test_two_passes_make_one_reading_a_meme_in_order() -> None:
    backend = ScriptedBackend(answer)
    done = annotate(backend)
    assert [r.meme_id for r in done] == [m.meme_id for m in MEMES] and len(backend.requests) == 12
    first = done[0]
    assert first.image_caption == FIVE["visual elaboration"]
    assert first.meme_caption == FIVE["meaning of the meme"]
    assert (first.embedded_text, first.emotion, first.template) == ("text, below", "sadness", "A")
    assert first.literary_devices == ["irony"], "of the second pass, and only what it confirmed"
    assert first.prompt == "gpt4o+three_step_12" + TEXT_ONLY and first.source == "scripted"
    expected = prompts.prompt_sha256("template_gpt4o", "template_three_step_12")
    assert {r.prompt_sha256 for r in done} == {expected} and len({r.seed for r in done}) == 6
    assert {(r.profile, r.unscored) for r in done} == {("p", "")}


def test_context_changes_the_prompt_and_a_missing_one_is_said() -> None:
    with_it, without = ScriptedBackend(answer), ScriptedBackend(answer)
    done = annotate(with_it)
    assert [r.context for r in done] == [True, False] * 3, "of B nothing is known"
    said = {r.subject: r.messages[-1].text for r in with_it.requests}
    assert all(
        ("heron" in said[f"m{n}/{p}"]) is (n % 2 == 0) for n in range(6) for p in ("gpt4o", "three_step_12")
    )
    assert "Nothing is known of the background" in said["m1/gpt4o"]
    assert {r.context for r in annotate(without, settings={"context": False})} == {False}
    bare = {r.subject: r.messages[-1].text for r in without.requests}
    assert not any("heron" in text or "Nothing is known" in text for text in bare.values())
    six = ScriptedBackend(lambda r: dumps(STEPS if "three" in r.subject else FIVE))
    mixed = annotate(six, settings={"devices_prompt": "three_step_no_context"})
    assert {r.context for r in mixed} == {False}, "not in every pass"


def test_one_pass_is_enough() -> None:
    captions = annotate(ScriptedBackend(answer), settings={"devices_prompt": ""})
    assert captions[0].literary_devices == ["hyperbole"] and captions[0].prompt == "gpt4o" + TEXT_ONLY
    devices = annotate(ScriptedBackend(answer), settings={"prompt": ""})
    assert devices[0].literary_devices == ["irony"] and devices[0].meme_caption == ""
    with pytest.raises(ValueError, match="both empty"):
        annotate(ScriptedBackend([]), settings={"prompt": "", "devices_prompt": ""})
    with pytest.raises(ValueError, match=r"prompt=three_step asks for literary devices.*: gpt4o, llava"):
        annotate(ScriptedBackend([]), settings={"prompt": "three_step"})
    with pytest.raises(ValueError, match=r"devices_prompt=gpt4o asks for five tasks.*: baseline_whole_set"):
        annotate(ScriptedBackend([]), settings={"devices_prompt": "gpt4o"})
    with pytest.raises(ValueError, match="no prompt 'x'"):
        annotate(ScriptedBackend([]), settings={"prompt": "x"})


def test_another_pass_does_not_overwrite_the_text_that_was_read() -> None:
    baseline = {"detected text": "other", "explanation": "So it is.", "literary device": ["none"]}
    done = annotate(
        ScriptedBackend(lambda r: dumps(baseline if "baseline" in r.subject else FIVE)),
        settings={"devices_prompt": "baseline"},
    )
    assert done[0].embedded_text == "text, below" and done[0].literary_devices == []


@pytest.mark.parametrize(
    ("bad", "why"),
    [
        ("no idea", "gpt4o: unusable: "),
        (dumps(FIVE | {"literary device": "humor"}), "'humor' is none of"),
        (dumps(FIVE | {"emotion word": "amusement"}), "'amusement' is none of"),
        (Reply(text="", refusal=True), "gpt4o: refusal: the model refused"),
    ],
)
def test_a_meme_without_a_usable_reply_is_kept_with_the_reason(bad, why: str) -> None:
    backend = ScriptedBackend(lambda r: bad if r.subject == "m2/gpt4o" else answer(r))
    done = annotate(backend)
    assert [r.meme_id for r in done if r.unscored] == ["m2"] and why in done[2].unscored
    assert (done[2].image_caption, done[2].meme_caption, done[2].literary_devices) == ("", "", [])
    assert sum(r.subject == "m2/gpt4o" for r in backend.requests) == 5, "five attempts, as elsewhere"
    shown = [r.messages[-1].text for r in backend.requests if r.subject == "m2/gpt4o"]
    assert shown[0] == shown[1] == shown[2] != shown[3], "the last two are shown what was wrong"


def test_a_model_that_sees_gets_the_pictures_that_there_are() -> None:
    def picture(meme: TemplateMeme) -> Image | None:
        return Image(image_id=f"id-{meme.meme_id}", load=lambda: "data:,x") if meme.template == "A" else None

    backend = ScriptedBackend(answer)
    done = annotate(backend, picture)
    assert [r.prompt.endswith(TEXT_ONLY) for r in done] == [False, True] * 3
    images = {r.subject: [i.image_id for i in r.messages[-1].images] for r in backend.requests}
    assert images["m0/gpt4o"] == images["m0/three_step_12"] == ["id-m0"] and images["m1/gpt4o"] == []
    texts = ScriptedBackend(lambda r: dumps({"literary device": ["irony"]} if "ocr" in r.subject else FIVE))
    ocr = annotate(texts, picture, settings={"devices_prompt": "few_shot_ocr_pairs"})
    assert all(r.prompt.endswith(TEXT_ONLY) for r in ocr), "a pass on OCR text is marked"


def test_end_to_end_against_a_simulated_endpoint_with_faults(tmp_path: Path) -> None:
    def go(mode: str, url: str) -> list[MemeReading]:
        folder = None if mode == "recorded" else tmp_path
        store = Recordings("readings", [tmp_path], folder)
        backend = OpenAIBackend(Endpoint(base_url=url, model="m"), key=SecretStr("simulated"))
        done = annotate(backend, recordings=store, mode=mode, memes=MEMES[:3])
        return done

    with FaultServer(Simulated(faults=0.2, hang=0.2, seed=3)).running() as server:
        done = go("auto", server.url)
        names = {line["task"] for line in server.script.lines}
        asked = len(server.script.lines)
        assert go("recorded", server.url) == done and len(server.script.lines) == asked
    assert names >= {"FiveTasksReply", "ThreeStep12Reply"}
    assert [r.unscored for r in done] == [""] * 3 and {r.source for r in done} == {"model m@default"}
    # The simulated endpoint writes Chinese words into free texts, and "none" where a list has it.
    assert all(r.meme_caption and r.literary_devices == [] and r.emotion == "none" for r in done)


def test_a_run_reads_its_sample_with_its_annotator(tmp_path: Path, monkeypatch, capsys) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "simulated")
    for meme in MEMES[:3]:
        Pillow.new("RGB", (4, 4)).save(tmp_path / f"{meme.meme_id}.png")
    with FaultServer(Simulated()).running() as server:
        endpoint = {"base_url": server.url, "model": "m"}
        keys = {"llm": "openai", "mode": "auto", "template_annotation": {"sample": 4}}
        blind = run_of(tmp_path, endpoints={"annotator": endpoint}, **keys)
        done = annotation.read_memes(blind, MEMES, INFOS, tmp_path)
        assert capsys.readouterr().out == "", "nothing is said of pictures that nobody would see"
        seeing = run_of(tmp_path, endpoints={"annotator": endpoint | {"vision": True}}, **keys)
        seen = annotation.read_memes(seeing, MEMES, INFOS, tmp_path)
        assert capsys.readouterr().out.startswith("3 of 6 memes have no picture below ")
    assert [r.meme_id for r in done] == [m.meme_id for m in draw_sample(MEMES, 4, blind.profile.seed)]
    assert all(r.prompt.endswith(TEXT_ONLY) and not r.unscored for r in done)
    assert [r.meme_id for r in seen] == ["m0", "m1", "m2"], "the sample is of those with a picture"
    assert not any(r.prompt.endswith(TEXT_ONLY) for r in seen)
    assert (tmp_path / "data" / "usage" / "template_annotation.json").is_file()


def test_a_sample_has_every_template_in_proportion() -> None:
    memes = [
        TemplateMeme(source="made up", meme_id=f"{t}{n}", template=t, url="u")
        for t, size in (("A", 60), ("B", 30), ("C", 10))
        for n in range(size)
    ]
    drawn = draw_sample(memes, 15, 1)
    assert [sum(m.template == t for m in drawn) for t in "ABC"] in ([9, 5, 1], [9, 4, 2]) and len(drawn) == 15
    assert [m for m in memes if m in drawn] == drawn == draw_sample(memes, 15, 1), "in the source's order"
    assert drawn != draw_sample(memes, 15, 2)
    more = draw_sample(memes, 30, 1)
    assert {m.meme_id for m in more} > {m.meme_id for m in drawn}, "a larger sample goes on with the smaller"
    assert draw_sample(memes, None, 1) == draw_sample(memes, 1000, 1) == memes and draw_sample([], 3, 1) == []


def reading(*devices: str, emotion: str = "joy", **changes: object) -> MemeReading:
    fields = {"source": "x", "meme_id": "m", "literary_devices": list(devices), "emotion": emotion}
    return MemeReading(**fields | changes)


def test_readings_are_counted_by_device_label_and_emotion() -> None:
    readings = [
        reading("irony", "sarcasm"), reading("antithesis", "pun", emotion="none"), reading("humor"),
        reading(emotion="joy"), reading(emotion="", unscored="unusable: x"),
    ]  # fmt: skip
    counts = reading_counts(readings).set_index(["what", "label"]).readings.to_dict()
    assert counts == {
        ("device", "irony"): 1, ("device", "sarcasm"): 1, ("device", "antithesis"): 1, ("device", "pun"): 1,
        ("device", "other: humor"): 1, ("device", "none"): 1,
        ("FigMemes label", "irony"): 1, ("FigMemes label", "none"): 3,
        ("emotion", "joy"): 3, ("emotion", "none"): 1, ("unscored", ""): 1,
    }  # fmt: skip
    by_code = reading_counts(readings, "code").set_index(["what", "label"])
    assert by_code.loc[("FigMemes label", "contrast"), "readings"] == 1
    assert by_code.loc[("emotion", "joy"), "share"] == 0.75, "of the four that are scored"
    assert reading_counts([]).empty


def test_every_prompt_can_be_asked_and_read() -> None:
    words = "It is as long as needed."
    for name, spec in PROMPTS.items():
        label = spec.devices[0] if spec.devices else "wit"
        reply = FIVE | {"literary device": label}
        if spec.kind == "literary devices":
            compared = [{"label": label, "why": words, "explains": "yes"}]
            reply |= STEPS | {key: [label] for key in list(STEPS)[:2]} | {"literary device": [label]}
            reply["choice by choice comparison"] = compared
        key = "devices_prompt" if spec.kind == "literary devices" else "prompt"
        settings = {"prompt": "", "devices_prompt": "", key: name}
        (done,) = annotate(ScriptedBackend([dumps(reply)]), memes=MEMES[:1], settings=settings)
        assert done.unscored == "" and (done.literary_devices == [label]) is (spec.kind != "meme caption"), (
            name
        )
        assert files.dumps(done.model_dump(mode="json"))


COST_MEMES = [
    TemplateMeme(source="made up", meme_id=f"m{n}", template="A", url="u", captions=["seven letters"])
    for n in range(10)
]
COST_INFOS = [TemplateInfo(source="made up", template="A", about="A heron that waits.")]
ENDPOINT = {"model": "m", "usd_per_million_in": 2.5, "usd_per_million_out": 10.0, "tokens_per_image": 100}


def paid_profile(**keys: object) -> Profile:
    return Profile(**{"name": "p", "llm": "openai", "endpoints": {"generator": ENDPOINT}, **keys})


def test_calls_tokens_and_money_are_those_of_the_rendered_prompts() -> None:
    mine = paid_profile()
    table = annotation.estimate_readings(mine, COST_MEMES, COST_INFOS).set_index("stage")
    assert table.index.tolist() == ["07 gpt4o", "07 three_step_12", "total"]
    assert table.calls.tolist() == [10, 10, 20]
    settings = mine.cm50.annotation
    (message,) = reading_request(PROMPTS["gpt4o"], COST_MEMES[0], COST_INFOS[0], settings, 0).messages
    assert table.tokens_in["07 gpt4o"] == pytest.approx(10 * len(message.text) * 0.25, abs=1)
    assert table.tokens_out["07 three_step_12"] == 10 * (60 + 12 * 30)
    total = table.loc["total"]
    assert total.usd == pytest.approx((total.tokens_in * 2.5 + total.tokens_out * 10) / 1e6)
    assert total.hours == pytest.approx(20 * budget.REMOTE_SECONDS_PER_CALL / mine.models.concurrency / 3600)
    assert "three_step_12" in budget.estimate_text(table.reset_index())


def test_pictures_context_and_the_sample_count() -> None:
    def t_in(pictures: bool = False, memes=COST_MEMES, **settings: object) -> int:
        mine = paid_profile(template_annotation={"prompt": "", **settings})
        return annotation.estimate_readings(mine, memes, COST_INFOS, pictures).tokens_in.iloc[-1]

    blind = t_in()
    assert t_in(context=False) < blind < t_in(pictures=True) < blind + 10 * 100
    assert t_in(sample=5) == pytest.approx(blind / 2, abs=1)
    assert t_in(devices_prompt="few_shot_ocr_pairs") == t_in(True, devices_prompt="few_shot_ocr_pairs")
    assert t_in(memes=[]) == 0


def test_who_answers_decides_on_money_and_time() -> None:
    live = annotation.estimate_readings(paid_profile(), COST_MEMES, COST_INFOS).iloc[-1]
    local = annotation.estimate_readings(paid_profile(llm="local"), COST_MEMES, COST_INFOS)
    assert local.usd.sum() == 0 and local.hours.iloc[-1] > live.hours and local.model[0].startswith("qwen")
    nobody = annotation.estimate_readings(paid_profile(llm="authored"), COST_MEMES, COST_INFOS).iloc[-1]
    assert (nobody.calls, nobody.usd, nobody.hours) == (0, 0, 0)

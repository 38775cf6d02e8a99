"""What a run answers, a question each, from `numbers.json`: for the cards of its page and the READMEs."""

from collections.abc import Callable, Mapping
from typing import Any, Literal, NamedTuple

from memecmd_utils import statistics
from memecmd_utils.evaluation import judge_checks
from memecmd_utils.report import landing
from memecmd_utils.settings import Profile

Language = Literal["en", "zh"]
Numbers = Mapping[str, Any]
Words = Mapping[str, Any]
"""Words of one question in one language, and what all questions share."""
MOST = 0.5
"""Of memes that miss, and of specifications in which a claim holds."""
FIRST_CLAIM = "Greedy beats Random"


class Answer(NamedTuple):
    """What a run says to a question: a sentence, and one number with its interval."""

    name: str
    question: str
    holds: bool | None
    """None: it cannot be told."""
    verdict: str
    sentence: str
    measure: str = ""
    """What the number measures."""
    value: str = ""
    interval: str = ""
    table: str = ""
    """Title of the table on the run's page that holds the number."""


SHARED: dict[Language, dict[str, Any]] = {
    "en": {
        "yes": "Yes.",
        "worse": "No, it is worse.",
        "untold": "It cannot be told.",
        "few": "Too few dialogues to say.",
        "grade": "mean grade, of 2",
        "consistency": "text consistency, of 100",
        "and": " and ",
        "comma": ", ",
        "then": "; ",
    },
    "zh": {
        "yes": "是。",
        "worse": "否，反而更差。",
        "untold": "无法判断。",
        "few": "对话太少，无法判断。",
        "grade": "平均分（满分 2）",
        "consistency": "文本一致性（满分 100）",
        "and": " 和 ",
        "comma": "、",
        "then": "；",
    },
}
WORDS: dict[Language, dict[str, dict[str, Any]]] = {
    "en": {
        "random": {
            "question": "Does retrieval beat random?",
            "table": "Choice and timing effects",
            "misses": "Yes, but most of its memes miss.",
            "unmeasured": "No measure of this run compares them at the same turns.",
            "levels": (
                "Greedy's memes fit at {greedy} of the turns where it sends one, random memes at "
                "{random} of the same turns, and {nobody} of Greedy's got 0 from both graders."
            ),
            "no levels": "How often memes fit is not known: this run has no grades.",
            "measure": "{metric}, Greedy minus random memes at the same turns, {dialogues} dialogues",
        },
        "timing": {
            "question": "Does it choose the right moment?",
            "table": "Choice and timing effects",
            "levels": (
                "Random memes fit at {gate} of the turns where the gate opens, and at {anywhere} of "
                "turns drawn by lot."
            ),
            "no levels": "How often memes fit is not known: this run has no grades.",
            "measure": "{metric}, random memes at the gate's turns minus at any turn, {dialogues} dialogues",
        },
        "learned": {
            "question": "Do memes of learned placement fit better than Greedy's?",
            "table": "Learned minus the others",
            "untold": "Not shown.",
            "partly": "Not shown, save at learned's turns.",
            "splits": {
                "untouched": "On the untouched test",
                "example": "Out of fold on the example, which chose its form,",
                "": "Out of fold",
            },
            "first": (
                "{split} {learned} of its memes fit, {greedy} of Greedy's; in mean grade {ours} at learned's "
                "turns, {theirs} at Greedy's."
            ),
            "then": "{split} {learned} fit against {greedy}, {own}.",
            "measure": (
                "mean grade, of 2, learned minus Greedy, each at its own turns, {split}, {dialogues} "
                "dialogues"
            ),
        },
        "ablation": {
            "question": "Does each dimension help?",
            "table": "One term left out",
            "yes": "Yes, all of them.",
            "hurts": "No.",
            "some": "Not all of them, clearly.",
            "signs": {
                -1: "clear harm from {terms}", 1: "clear help from {terms}",
                0: "no clear difference from {terms}", None: "of {terms} it depends on the embedder",
            },
            "under": "Under {embedders}: {parts}.",
            "measure": (
                "nDCG@5 of the full score ({full:.3f}) minus that without {term} ({rest:.3f}), {embedder}, "
                "{dialogues} dialogues"
            ),
        },
        "threshold": {
            "question": "Which form of the threshold differs?",
            "table": "Differences to the exponential form",
            "fit": "They differ in how well memes fit.",
            "rhythm": "In rhythm, not in how well memes fit.",
            "none": "None, clearly.",
            "levels": "Memes right after another one: {follow}; mean grade, of 2: {grade}.",
            "measure": (
                "share of memes right after another one, {form} minus exponential form, {dialogues} dialogues"
            ),
        },
        "hubs": {
            "question": "What causes repeats?",
            "table": "Share of repeats that hubs take",
            "more": "Hubs take clearly more than their share.",
            "even": "Not hubs: they do not clearly take more than their share.",
            "levels": (
                "Hubs, the {even} of the memes that are best at most turns of the other half of the "
                "dialogues, take {share} of the {repeats} repeats and {turns} of all "
                "turns{uncentred}."
            ),
            "uncentred": " ({share} of the repeats without centring)",
            "measure": "share of repeats that hubs take, {embedder}, {dialogues} dialogues with repeats",
        },
        "judges": {
            "question": "Which judge can be trusted?",
            "table": "Judges against the ground truth",
            "count": "{good} of {scores} scores.",
            "none": "None of {scores} scores.",
            "own": "The run's own, {judge}, {does}.",
            "does": judge_checks.IN_WORDS,
            "measure": (
                "AUC of that judge, fitting memes against random ones (0.5 is chance), {dialogues} dialogues"
            ),
        },
        "claims": {
            "question": "In how many specifications does each claim of the paper survive?",
            "table": "Claims",
            "count": "{held} of {claims} claims survive in most of those that can tell.",
            "first": (
                "{claim} in {told} of the specifications that can tell, clearly in {clear} of "
                "all{fails}."
            ),
            "fails": "; not in most: {claims}",
            "share": "{claim} ({told}; clearly the opposite in {opposite} of all)",
            "measure": (
                "share of all {worlds:,} specifications with the sign of “{claim}” (all are counted, so it "
                "has no interval)"
            ),
        },
    },
    "zh": {
        "random": {
            "question": "检索胜过随机吗？",
            "misses": "是，但多数表情包不合适。",
            "unmeasured": "这次运行没有在相同轮次上比较它们的度量。",
            "levels": (
                "Greedy 发表情包的轮次里有 {greedy} 合适，相同轮次的随机表情包有 {random}；Greedy "
                "的表情包有 {nobody} 被两名评分者都评为 0。"
            ),
            "no levels": "这次运行没有评分，不知道表情包有多常合适。",
            "measure": "{metric}，Greedy 减去相同轮次的随机表情包，{dialogues} 段对话",
        },
        "timing": {
            "question": "它选对了时机吗？",
            "levels": "门控放行的轮次里，随机表情包有 {gate} 合适；随机抽取的轮次里有 {anywhere}。",
            "no levels": "这次运行没有评分，不知道表情包有多常合适。",
            "measure": "{metric}，门控轮次的随机表情包减去任意轮次的随机表情包，{dialogues} 段对话",
        },
        "learned": {
            "question": "学习所得的放置比 Greedy 更合适吗？",
            "untold": "没有得到证明。",
            "partly": "没有得到证明，除了在 learned 的轮次上。",
            "splits": {
                "untouched": "在未触碰的测试上",
                "example": "折外、在选定其形式的示例上，",
                "": "折外",
            },
            "first": (
                "{split}，learned 的表情包有 {learned} 合适，Greedy 的有 {greedy}；平均分之差在 learned "
                "的轮次为 {ours}，在 Greedy 的为 {theirs}。"
            ),
            "then": "{split}有 {learned} 合适，Greedy 有 {greedy}，差 {own}。",
            "measure": (
                "平均分（满分 2），learned 减去 Greedy，各在自己的轮次，{split}，{dialogues} 段对话"
            ),
        },
        "ablation": {
            "question": "每个维度都有用吗？",
            "yes": "是，都有用。",
            "hurts": "否。",
            "some": "并非都明确有用。",
            "signs": {
                -1: "{terms} 明确有害", 1: "{terms} 明确有用", 0: "{terms} 没有明确差别",
                None: "{terms} 因向量模型而异",
            },
            "under": "在 {embedders} 下：{parts}。",
            "measure": (
                "完整得分的 nDCG@5（{full:.3f}）减去去掉 {term} 之后的（{rest:.3f}），{embedder}，"
                "{dialogues} 段对话"
            ),
        },
        "threshold": {
            "question": "哪种形式的阈值不同？",
            "fit": "合适程度不同。",
            "rhythm": "节奏不同，合适程度没有明确差别。",
            "none": "没有明确差别。",
            "levels": "紧接着发送的比例：{follow}；平均分（满分 2）：{grade}。",
            "measure": "紧接着发送的比例，{form}减去指数，{dialogues} 段对话",
        },
        "hubs": {
            "question": "重复从何而来？",
            "more": "枢纽明确占了超出其份额的重复。",
            "even": "不是枢纽：它们没有明确超出其份额。",
            "levels": (
                "枢纽是在另一半对话的最多轮次中得分最高的 {even} 的表情包，占 {repeats} 次重复的 "
                "{share}，占所有轮次的 {turns}{uncentred}。"
            ),
            "uncentred": "（不做中心化时占重复的 {share}）",
            "measure": "枢纽占重复的比例，{embedder}，{dialogues} 段有重复的对话",
        },
        "judges": {
            "question": "哪个评判可信？",
            "count": "{scores} 个分数中有 {good} 个可信。",
            "none": "{scores} 个分数都不可信。",
            "own": "本次运行自己的评判 {judge} {does}。",
            "does": {
                judge_checks.TRUSTED: "能区分合适的表情包与随机的，也能区分难负例",
                judge_checks.TOPIC: "能区分合适的表情包与随机的，但不能区分难负例",
                judge_checks.UNSTEADY: "有区分力，但答案随问法而变",
                judge_checks.NO: "不能区分合适的表情包与随机的",
                judge_checks.REVERSED: "更偏向随机表情包",
                judge_checks.UNTOLD: "无法对照标注检验：对话太少",
            },
            "measure": "该评判的 AUC，合适对随机，0.5 为随机水平，{dialogues} 段对话",
        },
        "claims": {
            "question": "论文的每条论断在多少种读法里成立？",
            "count": "{claims} 条中有 {held} 条在多数能够判断的读法里成立。",
            "first": "“{claim}”占能够判断的读法的 {told}，明确成立的占全部的 {clear}{fails}。",
            "fails": "；不在多数读法里相符：{claims}",
            "share": "{claim}（{told}；明确相反的占全部的 {opposite}）",
            "measure": "全部 {worlds:,} 种读法中符号与“{claim}”相符的比例（全部计入，因此没有区间）",
        },
    },
}  # fmt: skip
CHINESE = {
    "Greedy beats Random": "Greedy 胜过 Random",
    "Sampling beats Random": "Sampling 胜过 Random",
    "Greedy is at least as good as Sampling": "Greedy 不比 Sampling 差",
    "Greedy repeats memes within a dialogue more often than Sampling": (
        "同一对话中 Greedy 比 Sampling 更常重复表情包"
    ),
    "both beat Random in news and in role dialogues": "新闻与角色对话中两者都胜过 Random",
    "the full score beats each single dimension": "完整得分胜过每个单项",
    "the decaying threshold has fewer memes right after another than a fixed one": (
        "衰减阈值比固定阈值更少连续发送"
    ),
    "follow-ups": "紧接着发送的比例",
    "mean gap": "平均间隔（轮）",
    "mean grade": "平均分",
    "exponential": "指数",
    "linear": "线性",
    "fixed": "固定",
    "centred": "中心化",
    "uncentred": "未中心化",
    "all turns": "所有轮次",
    "the gate's turns": "门控的轮次",
    "topic only": "仅限话题",
    "unsteady": "不稳定",
    "trust": "可信",
    "no": "否",
    "yardstick": "参照",
}
"""Values of tables in Chinese; what is not here is a name and stays as it is."""
LEGEND = (
    "Brackets are 95 % intervals over dialogues. A meme fits where its mean grade is 1 or more, of 2; the "
    "graders are sessions of a large language model, not people."
)


def answers(numbers: Numbers, profile: Profile, language: Language = "en") -> list[Answer]:
    """What the numbers of a run say, a question each; a study that was not made is left out.

    `profile` is the run's: of the rankings in the tables it says which one is the run's own.
    """
    found = []
    for name, answer in _ANSWERS.items():
        words = {**SHARED[language], **WORDS[language][name]}
        made = answer(numbers, profile, words, language)
        if made is not None:
            # The page is in English, and so are the titles of its tables.
            table = WORDS["en"][name]["table"]
            found.append(made._replace(name=name, question=words["question"], table=table))
    return found


def say(value: Any, language: Language) -> Any:
    """A value of a table as a reader of this language knows it; a name stays as it is."""
    return CHINESE.get(value, value) if language == "zh" else value


def percent(share: float | None) -> str:
    """A share as whole per cent; a dash where it is not known."""
    return "–" if share is None else f"{share:.0%}"


def _answer(holds: bool | None, verdict: str, sentence: str, measure: str = "", number: str = "") -> Answer:
    value, _, interval = number.removeprefix("–").partition(" [")  # a dash is no number
    return Answer("", "", holds, verdict, sentence, measure, value, f"[{interval}" if interval else "")


# --- From the effects: choice and timing


METRICS = ("grade", "consistency")
"""Measures of placed memes, the best first: where a run has no grades the next one speaks."""


def _effect(numbers: Numbers, effect: str, comparison: str) -> Mapping[str, Any] | None:
    wanted = effect, comparison
    rows = {row["metric"]: row for row in numbers["effects"] if (row["effect"], row["comparison"]) == wanted}
    return next((rows[m] for m in METRICS if m in rows and rows[m]["mean"] is not None), None)


def _difference(row: Mapping[str, Any] | None, words: Words, level: str, yes: str) -> Answer | None:
    """An answer by the interval of a difference to chance."""
    if row is None:
        return None
    sign = None if row["low"] is None else statistics.direction(row["low"], row["high"])
    verdicts = {1: yes, 0: words["untold"], -1: words["worse"]}
    verdicts[None] = words["few" if statistics.too_few(row["dialogues"]) else "untold"]
    measure = words["measure"].format(metric=words[row["metric"]], dialogues=row["dialogues"])
    number = statistics.format_interval(row, sign="+")
    return _answer({1: True, -1: False}.get(sign), verdicts[sign], level, measure, number)


def _fits(numbers: Numbers) -> dict[str, Mapping[str, Any]]:
    """How often memes fit, by strategy."""
    return {row["strategy"]: row for row in numbers.get("levels", ())}


def _random(numbers: Numbers, profile: Profile, words: Words, language: Language) -> Answer:
    found, level, yes = _fits(numbers), words["no levels"], words["yes"]
    if found.keys() >= {"greedy", "random_same_turns"}:
        greedy, random = found["greedy"], found["random_same_turns"]
        level = words["levels"].format(
            greedy=percent(greedy["fits"]), random=percent(random["fits"]), nobody=percent(greedy["nobody"])
        )
        yes = words["misses"] if (greedy["fits"] or 0) < MOST else yes
    made = _difference(_effect(numbers, "choice", "greedy - random_same_turns"), words, level, yes)
    return made or _answer(None, words["untold"], words["unmeasured"])


def _timing(numbers: Numbers, profile: Profile, words: Words, language: Language) -> Answer | None:
    found, level = _fits(numbers), words["no levels"]
    if found.keys() >= {"random", "random_same_turns"}:
        gate, anywhere = found["random_same_turns"]["fits"], found["random"]["fits"]
        level = words["levels"].format(gate=percent(gate), anywhere=percent(anywhere))
    return _difference(_effect(numbers, "timing", "random_same_turns - random"), words, level, words["yes"])


# --- From the measure of learned placement


def _learned(numbers: Numbers, profile: Profile, words: Words, language: Language) -> Answer | None:
    """By the interval on the untouched test, each at its own turns; then what holds elsewhere."""
    found = numbers.get("landing", {})
    gaps = {
        (r["split"], r["where"]): r for r in found.get("differences", ()) if r["learned minus"] == "greedy"
    }
    sent = {(row["split"], row["way"]): row for row in found.get("placed", ())}
    splits = list(dict.fromkeys(split for split, _ in gaps))
    if not splits:
        return None

    def gap(split: str, where: str) -> str:
        return statistics.format_interval(gaps[split, where], sign="+")

    sentences = [
        words["first" if split == splits[0] else "then"].format(
            split=words["splits"].get(split, words["splits"][""]), own=gap(split, landing.OWN),
            ours=gap(split, landing.OURS), theirs=gap(split, landing.THEIRS),
            **{way: percent_interval(sent[split, way], "fits") for way in ("learned", "greedy")},
        )
        for split in splits
    ]  # fmt: skip
    own, ours = gaps[splits[0], landing.OWN], gaps[splits[0], landing.OURS]
    signs = [None if r["low"] is None else statistics.direction(r["low"], r["high"]) for r in (own, ours)]
    verdicts = {1: words["yes"], 0: words["partly" if signs[1] == 1 else "untold"], -1: words["worse"]}
    verdicts[None] = words["few" if statistics.too_few(own["dialogues"]) else "untold"]
    measure = words["measure"].format(split=splits[0], dialogues=own["dialogues"])
    sentence = ("" if language == "zh" else " ").join(sentences)
    number = statistics.format_interval(own, sign="+")
    return _answer({1: True, -1: False}.get(signs[0]), verdicts[signs[0]], sentence, measure, number)


def percent_interval(row: Mapping[str, Any], name: str) -> str:
    """A share with its interval, as whole per cent."""
    if row[name] is None or row[f"{name} low"] is None:
        return percent(row[name])
    return f"{row[name]:.0%} [{100 * row[f'{name} low']:.0f}, {100 * row[f'{name} high']:.0f}]"


# --- From the tables of the studies


def _rows(numbers: Numbers, table: str, **wanted: str) -> list[Mapping[str, Any]]:
    """Rows of a study's table that have these values; none where the study was not made."""
    rows = numbers.get("studies", {}).get(table, ())
    return [row for row in rows if all(row[column] == value for column, value in wanted.items())]


def _ablation(numbers: Numbers, profile: Profile, words: Words, language: Language) -> Answer | None:
    """Which terms help under every embedder; the number is that of the term that helps least."""
    rows = [r for r in _rows(numbers, "ablation", measure="nDCG@5") if r["difference"] is not None]
    if not rows:
        return None
    signs: dict[str, set[int]] = {}
    for row in rows:
        low, high = row["difference low"], row["difference high"]
        signs.setdefault(row["compares"], set()).add(0 if low is None else statistics.direction(low, high))
    terms: dict[int | None, list[str]] = {sign: [] for sign in words["signs"]}
    for term, found in signs.items():
        terms[found.pop() if len(found) == 1 else None].append(term)
    embedders = list(dict.fromkeys(row["embedder"] for row in rows))
    least = min((r for r in rows if r["embedder"] == embedders[0]), key=lambda row: row["difference"])
    verdict = "hurts" if terms[-1] else "yes" if len(terms[1]) == len(signs) else "some"
    if statistics.too_few(least["dialogues"]):
        verdict = "few"
    parts = [words["signs"][sign].format(terms=words["comma"].join(of)) for sign, of in terms.items() if of]
    sentence = words["under"].format(embedders=words["and"].join(embedders), parts=words["then"].join(parts))
    measure = words["measure"].format(**least, term=least["compares"])
    number = statistics.format_interval(least, "difference", 3, sign="+")
    return _answer({"yes": True, "hurts": False}.get(verdict), words[verdict], sentence, measure, number)


def _threshold(numbers: Numbers, profile: Profile, words: Words, language: Language) -> Answer | None:
    """Whether another form of the threshold changes the rhythm of memes, or how well they fit."""
    rows = [row for row in _rows(numbers, "threshold_minus") if row["mean"] is not None]
    follow = [row for row in rows if row["measure"] == "follow-ups"]
    if not follow:
        return None
    clear = {row["measure"] for row in rows if row["clear"]}
    most = max(follow, key=lambda row: abs(row["mean"]))
    verdict = "fit" if "mean grade" in clear else "rhythm" if clear else "none"
    if statistics.too_few(most["dialogues"]):
        verdict = "few"

    def levels(measure: str, digits: str) -> str:
        known = [row for row in _rows(numbers, "threshold") if row[measure] is not None]
        return words["comma"].join(f"{say(r['form'], language)} {r[measure]:{digits}}" for r in known) or "–"

    sentence = words["levels"].format(follow=levels("follow-ups", ".0%"), grade=levels("mean grade", ".2f"))
    measure = words["measure"].format(form=say(most["form"], language), dialogues=most["dialogues"])
    number = statistics.format_interval(most, sign="+")
    return _answer(True if clear else None, words[verdict], sentence, measure, number)


def _hubs(numbers: Numbers, profile: Profile, words: Words, language: Language) -> Answer | None:
    """What hubs take of the repeats of the run's own ranking."""
    shares = {
        r["scores"]: r
        for r in _rows(numbers, "hub_shares", embedder=profile.models.embedder, where="all turns")
    }
    own = shares.get("uncentred" if profile.retrieval.centring == "none" else "centred")
    if own is None or own["share of repeats"] is None:
        return None
    low = own["share of repeats low"]
    verdict = "untold" if low is None else "more" if low > own["even share"] else "even"
    other = shares.get("uncentred")
    if other is None or other is own or other["share of repeats"] is None:
        uncentred = ""
    else:
        uncentred = words["uncentred"].format(share=percent(other["share of repeats"]))
    sentence = words["levels"].format(
        even=percent(own["even share"]), share=percent(own["share of repeats"]), repeats=own["repeats"],
        turns=percent(own["share of turns"]), uncentred=uncentred,
    )  # fmt: skip
    measure = words["measure"].format(embedder=own["embedder"], dialogues=own["dialogues"])
    number = statistics.format_interval(own, "share of repeats")
    return _answer({"more": True, "even": False}.get(verdict), words[verdict], sentence, measure, number)


def _judges(numbers: Numbers, profile: Profile, words: Words, language: Language) -> Answer | None:
    """How many scores deserve trust; the number is that of the run's first judge."""
    rows = [r for r in _rows(numbers, "trust") if r["verdict"] != judge_checks.YARDSTICK]
    if not rows:
        return None
    # As in `judge_checks.trust_sentence`: of a yes/no judge the reading that the tables of stage 05 show.
    own = min(rows, key=lambda row: row["reading"] == judge_checks.P_YES)
    good = sum(row["verdict"] == judge_checks.TRUSTED for row in rows)
    counted = words["count" if good else "none"].format(good=good, scores=len(rows))
    untold = all(row["verdict"] == judge_checks.UNTOLD for row in rows)
    verdict = words["few"] if untold else counted
    sentence = words["own"].format(judge=own["judge"], does=words["does"][own["verdict"]])
    measure = words["measure"].format(dialogues=own["dialogues"])
    number = statistics.format_interval(own, "AUC random")
    return _answer(None if untold else bool(good), verdict, sentence, measure, number)


def _claims(numbers: Numbers, profile: Profile, words: Words, language: Language) -> Answer | None:
    """In how many specifications claims have their sign: of those that can tell, then of all."""
    rows = [row for row in _rows(numbers, "claims") if row["sign if told"] is not None]
    first = next((row for row in rows if row["claim"] == FIRST_CLAIM), None)
    if first is None:
        return None
    fails = [row for row in rows if row["sign if told"] <= MOST]
    few = statistics.too_few(first["dialogues"])
    held = words["count"].format(held=len(rows) - len(fails), claims=len(rows))
    verdict = words["few"] if few else held
    claim = say(FIRST_CLAIM, language)
    named = [
        words["share"].format(
            claim=say(row["claim"], language),
            told=percent(row["sign if told"]),
            opposite=percent(row["clearly opposite"]),
        )
        for row in fails
    ]
    sentence = words["first"].format(
        claim=claim, told=percent(first["sign if told"]), clear=percent(first["clear"]),
        fails=words["fails"].format(claims=words["comma"].join(named)) if named else "",
    )  # fmt: skip
    measure = words["measure"].format(worlds=first["worlds"], claim=claim)
    return _answer(None if fails or few else True, verdict, sentence, measure, percent(first["sign"]))


_ANSWERS: dict[str, Callable[..., Answer | None]] = {
    "random": _random,
    "timing": _timing,
    "learned": _learned,
    "ablation": _ablation,
    "threshold": _threshold,
    "hubs": _hubs,
    "judges": _judges,
    "claims": _claims,
}

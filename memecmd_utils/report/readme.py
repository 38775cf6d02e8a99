"""The parts of the READMEs that quote results: rendered from `reports/numbers.json`, never typed by hand."""

import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from memecmd_utils import schemas, settings
from memecmd_utils.core import paths, statistics, storage
from memecmd_utils.core import tables as core_tables
from memecmd_utils.core.errors import MemecmdError
from memecmd_utils.evaluation import benchmark, leaderboard, rankings, tables
from memecmd_utils.report import landing
from memecmd_utils.report.answers import Language, answers, percent, percent_interval, say
from memecmd_utils.retrieval import LEARNED

README_MARKERS = ("hero", "results", "learned", "leaderboard")
REPORT_MARKERS = (
    "numbers", "random", "placement", "ablation", "threshold", "hubs", "judges", "claims", "ground-truth",
    "table-1",
)  # fmt: skip
PAGES = {
    "README.md": README_MARKERS,
    "README.zh-CN.md": README_MARKERS,
    "reports/README.md": REPORT_MARKERS,
    "reports/README.zh-CN.md": REPORT_MARKERS,
}
"""Pages that quote results, and the markers between which they do."""
WORDS: dict[Language, dict[str, str]] = {
    "en": {
        "hero": (
            "*Turns 9 to 16 of dialogue `{dialogue}`, with Greedy's memes. Of the dialogues with "
            "at least four memes of Greedy it has the highest mean grade: {fit} of its {memes} memes "
            "fit. It is the best case, not a typical one. **{greedy:.0%} of all of Greedy's memes "
            "fit; of random memes at the same turns, {random:.0%}.***"
        ),
        "no levels": "*This run has no grades: how often memes fit is not known.*",
        "answer": "**{head}** {sentence} {number}: {measure}.",
        "no difference": "**Whether retrieval beats chance is not known here.**",
        "strategy": (
            "memes chosen by | memes | fit | 0 from both graders | mean grade, of 2 | minus random "
            "at the same turns"
        ),
        "sizes": "{memes} memes; {total} dialogues ({news} news, {role} role) of {turns} turns in all.",
        "rate": "The gate sends {sent} memes, one at {rate:.0%} of the turns from the second on.",
        "ratings": (
            "Judges ({judges}) rated {memes} of {placed} placed memes; {unscored} of their {total} "
            "ratings are unscored."
        ),
        "unchecked": "**The judge could not be checked**: too few memes are rated.",
        "tells": "**The judge tells greedy's memes from random ones at the same turns{weak}**{auc}.",
        "cannot": (
            "**The judge cannot tell greedy's memes from random ones at the same turns**{auc}: its "
            "scores say nothing about quality."
        ),
        "reversed": (
            "**The judge prefers random memes to greedy's at the same turns**{auc}: it is no measure "
            "of quality here."
        ),
        "auc": (
            " (AUC {auc:.2f}, 95 % interval {low:.2f} to {high:.2f}, n = {n} in {dialogues} dialogues; "
            "0.5 is chance)"
        ),
        "weak": ", but only weakly",
        "effects": (
            "effect | metric | comparison | mean difference [95 % interval] | n | dialogues | p (Holm)"
        ),
        "table": "dataset | metric",
        "judge": "judge",
        "consistency": "text consistency",
        "grade": "grade (0-2)",
        "choice": "choice",
        "timing": "timing",
        "and": " and ",
        "timing of the gate": (
            "When to send: the markers would at {marked}, the gate does at {rate:.0%}; its kappa "
            "with them is {kappas} (0 is chance)."
        ),
        "no truth": "This run has no ground truth.",
        "agreement": (
            "Model-model agreement: kappa {send} on send or not, weighted kappa {grade} on grades, "
            "{dialogues} dialogues. {turns} turns of {among} dialogues have a relevant meme."
        ),
        "no study": "This run has not made this study.",
        "ablation": (
            "embedder | term | nDCG@5 of the full score | without the term | difference [95 % interval]"
        ),
        "threshold": "form | compared with | measure | difference [95 % interval] | clear",
        "hubs": (
            "embedder | scores | where | repeats | share of the repeats [95 % interval] | share of turns"
        ),
        "trust": (
            "judge | score | dialogues | AUC, fitting against random | AUC, against hard negatives "
            "| alpha over three wordings | trust"
        ),
        "claims": (
            "claim of the paper | dialogues | worlds that can tell | its sign, of these | its sign, "
            "of all | clearly, of all | clearly the opposite | hangs most on (best)"
        ),
        "of": "{told:,} of {worlds:,}",
        "yes": "yes",
        "no": "no",
        "learned note": (
            "Learned is fitted on other dialogues of the example, but its form was chosen in sight of these: "
            "the untouched test below decides."
        ),
        "placement": "split | memes chosen by | memes | fit [95 %] | mean grade, of 2 | learned minus it",
        "parts": (
            "- Split `{split}`, {dialogues} dialogues: nDCG@5 {learned} of its ranking, {paper} of the "
            "paper's score, difference {difference}; AUC of its gate {gate}, of the paper's best score "
            "{score} (0.5 is chance)."
        ),
        "no learned": "This run has not measured learned placement.",
        "timing of learned": "Learned sends at {rate:.0%}; its kappa with them is {kappas}, out of fold.",
        "leaderboard": "split | system | R@1 | nDCG@5 [95 %] | minus the paper's score | p (Holm)",
        "no leaderboard": "No leaderboard is tracked yet.",
        "ranked": "Split `{split}`: {turns} turns of {dialogues} dialogues.",
        "zero": "An interval that contains 0 means: with this many dialogues we cannot say.",
    },
    "zh": {
        "hero": (
            "*对话 `{dialogue}` 的第 9 至 16 轮，表情包由 Greedy 选出。在 Greedy 至少发了四张表情"
            "包的对话中，它的平均分最高：{memes} 张里有 {fit} 张合适。这是最好的例子，不是典型的例"
            "子。**Greedy 的全部表情包有 {greedy:.0%} 合适，相同轮次的随机表情包有 {random:.0%}。"
            "***"
        ),
        "no levels": "*这次运行没有评分，不知道表情包有多常合适。*",
        "answer": "**{head}** {sentence}{number}：{measure}。",
        "no difference": "**这里无法知道检索是否胜过随机。**",
        "strategy": (
            "表情包由谁选 | 表情包数 | 合适 | 两名评分者都给 0 | 平均分（满分 2） | 减去相同轮次的随机"
        ),
        "sizes": "{memes} 张表情包；{total} 段对话（新闻 {news} 段，角色 {role} 段），共 {turns} 轮。",
        "rate": "门控共发出 {sent} 张表情包，占第二轮起所有轮次的 {rate:.0%}。",
        "ratings": (
            "{judges} 个评判模型评了 {placed} 张已放置表情包中的 {memes} 张；{total} 条评分中有 {unscored} "
            "条无分。"
        ),
        "unchecked": "**评判模型无法检验**：有评分的表情包太少。",
        "tells": "**评判模型能区分 Greedy 选出的表情包与相同轮次的随机表情包{weak}**{auc}。",
        "cannot": (
            "**评判模型不能区分 Greedy 选出的表情包与相同轮次的随机表情包**{auc}：它的分数不能说明质量。"
        ),
        "reversed": "**评判模型在相同轮次上更偏向随机表情包**{auc}：它在这里不能衡量质量。",
        "auc": (
            "（AUC {auc:.2f}，95% 区间 {low:.2f} 至 {high:.2f}，n = {n}，{dialogues} 段对话；0.5 为随机水平）"
        ),
        "weak": "，但区分力很弱",
        "effects": "效应 | 指标 | 比较 | 平均差 [95% 区间] | n | 对话数 | p（Holm）",
        "table": "数据 | 指标",
        "judge": "评判模型",
        "consistency": "文本一致性",
        "grade": "标注分（0–2）",
        "choice": "选择",
        "timing": "时机",
        "and": " 和 ",
        "timing of the gate": (
            "何时发：标注者在 {marked} 的轮次会发，门控在 {rate:.0%} 的轮次发；门控与他们的 kappa "
            "为 {kappas}（0 为随机水平）。"
        ),
        "no truth": "本次运行没有标注答案。",
        "agreement": (
            "模型间一致性（{dialogues} 段对话）：发与不发 kappa {send}，相关度加权 kappa {grade}。"
            "{among} 段对话的 {turns} 个轮次有相关表情包。"
        ),
        "no study": "本次运行没有做这项研究。",
        "ablation": "向量模型 | 项 | 完整得分的 nDCG@5 | 去掉该项 | 差 [95% 区间]",
        "threshold": "形式 | 相比于 | 度量 | 差 [95% 区间] | 明确",
        "hubs": "向量模型 | 得分 | 范围 | 重复数 | 占重复的比例 [95% 区间] | 占轮次的比例",
        "trust": "评判 | 分数 | 对话数 | AUC：合适对随机 | AUC：合适对难负例 | 三种问法的 alpha | 可信度",
        "claims": (
            "论文的论断 | 对话数 | 能判断的读法 | 其中符号相符 | 占全部 | 明确成立（占全部） | 明"
            "确相反 | 最取决于（最佳取值）"
        ),
        "of": "{worlds:,} 种中的 {told:,} 种",
        "yes": "是",
        "no": "否",
        "learned note": (
            "Learned 在示例的其他对话上拟合，但它的形式是看着这些对话选定的：以下面未触碰的测试为准。"
        ),
        "placement": "数据划分 | 表情包由谁选 | 表情包数 | 合适 [95%] | 平均分（满分 2） | learned 减去它",
        "parts": (
            "- 数据划分 `{split}`，{dialogues} 段对话：其排序的 nDCG@5 为 {learned}，论文得分为 {paper}，"
            "差 {difference}；其门控的 AUC 为 {gate}，论文最高分为 {score}（0.5 为随机水平）。"
        ),
        "no learned": "本次运行没有测量学习所得的放置。",
        "timing of learned": "Learned 在 {rate:.0%} 的轮次发；它与他们的 kappa 为 {kappas}（折外）。",
        "leaderboard": "数据划分 | 系统 | R@1 | nDCG@5 [95%] | 减去论文得分 | p（Holm）",
        "no leaderboard": "还没有记录排行榜。",
        "ranked": "数据划分 `{split}`：{dialogues} 段对话的 {turns} 个轮次。",
        "zero": "区间包含 0 表示：凭这么多对话还不能下结论。",
    },
}


LEADING = 3
"""Systems of a leaderboard on the first page."""


class ReadmeError(MemecmdError, ValueError):
    """A README has not exactly one pair of a marker, in order."""


def tracked_numbers() -> dict[str, Any]:
    """The tracked numbers of the example run, with its leaderboard where one is tracked."""
    numbers = json.loads((paths.reports / "numbers.json").read_text(encoding="utf-8"))
    return numbers | {"leaderboard": leaderboard.load(paths.reports)}


def render(numbers: Mapping[str, Any], language: Language = "en") -> dict[str, str]:
    """Markdown for each marker, from the numbers of a run."""
    return {
        marker: "\n".join(part(numbers, WORDS[language], language)).strip("\n")
        for marker, part in _PARTS.items()
    }


def update(page: Path, numbers: Mapping[str, Any]) -> bool:
    """Put the rendered texts between the markers that a page has; say whether the file changed."""
    text = before = page.read_text(encoding="utf-8")
    rendered = render(numbers, language_of(page))
    for marker in markers_of(text):
        begin, end = between(text, marker)
        if marker in rendered:
            text = f"{text[:begin]}\n{rendered[marker]}\n{text[end:]}"
    if text != before:
        storage.write_text(page, text)
    return text != before


def language_of(page: Path) -> Language:
    """Language by the file's name."""
    return "zh" if "zh-CN" in page.name else "en"


def markers_of(text: str) -> list[str]:
    """Markers that a page begins, in its order."""
    return re.findall(r"<!-- ([\w-]+):begin -->", text)


def between(text: str, marker: str) -> tuple[int, int]:
    """Where the text between `<!-- marker:begin -->` and `<!-- marker:end -->` begins and ends."""
    begin, end = f"<!-- {marker}:begin -->", f"<!-- {marker}:end -->"
    if text.count(begin) != 1 or text.count(end) != 1 or text.index(begin) > text.index(end):
        raise ReadmeError(f"need one {begin} and, after it, one {end}")
    return text.index(begin) + len(begin), text.index(end)


def verdict(numbers: Mapping[str, Any], language: Language = "en") -> str:
    """One sentence on whether the judge tells chosen memes from random ones, with its interval."""
    words = WORDS[language]
    row = tables.first_check(numbers)
    if row is None or row["low"] is None:
        return words["unchecked"]
    kind = {"yes": "tells", "no": "cannot"}.get(row["tells apart"], "reversed")
    weak = words["weak"] if row["auc"] < tables.WEAK_AUC else ""
    return words[kind].format(auc=words["auc"].format(**row), weak=weak)


# --- The two parts of the first page


def _hero(numbers: Mapping[str, Any], words: dict[str, str], language: Language) -> Iterator[str]:
    """What the picture shows, the rule that chose it, and how often memes fit elsewhere."""
    shown, fits = numbers.get("teaching", {}).get("lands"), _fits(numbers)
    if shown is None or not fits:
        yield words["no levels"]
        return
    yield words["hero"].format(
        dialogue=shown["dialogue"], memes=shown["memes"], fit=round(shown["fits"] * shown["memes"]),
        greedy=fits["greedy"], random=fits["random_same_turns"],
    )  # fmt: skip


def _results(numbers: Mapping[str, Any], words: dict[str, str], language: Language) -> Iterator[str]:
    """Three answers, and how often the memes of each strategy fit."""
    yield next(_answers(numbers, language, "random", asked=True), "- " + words["no difference"])
    yield f"- {verdict(numbers, language)}"
    yield from _answers(numbers, language, "claims", asked=True)
    levels = {row["strategy"] for row in numbers.get("levels", ())}
    shown = [name for name in ("greedy", "sampling", LEARNED, "random_same_turns") if name in levels]
    if shown:
        yield from _levels(numbers, words, language, shown)


def _answers(
    numbers: Mapping[str, Any], language: Language, *names: str, asked: bool = False
) -> Iterator[str]:
    """Some of the answers as bullets; `asked`: with the question, where no heading asks it."""
    profile = settings.load_profile(numbers["profile"])
    for answer in answers(numbers, profile, language):
        if answer.name in names and answer.value:
            blank = "" if language == "zh" else " "
            head = f"{answer.question}{blank}{answer.verdict}" if asked else answer.verdict
            number = f"{answer.value} {answer.interval}".strip()
            said = WORDS[language]["answer"]
            yield "- " + said.format(
                head=head, sentence=answer.sentence, measure=answer.measure, number=number
            )


def _levels(
    numbers: Mapping[str, Any], words: dict[str, str], language: Language, shown: Sequence[str]
) -> Iterator[str]:
    """How often memes fit, a row a strategy, beside the difference to chance; a word on learned ones."""
    choice = _choices(numbers)
    grades = {row["strategy"]: row["mean grade"] for row in numbers["ground_truth"].get("placed", ())}
    yield from _table(
        words["strategy"],
        [
            (
                _label(row["strategy"], language), row["memes"], f"{row['fits']:.0%}", f"{row['nobody']:.0%}",
                f"{grades[row['strategy']]:.2f}" if row["strategy"] in grades else "–",
                statistics.format_interval(choice[row["strategy"]], sign="+")
                if row["strategy"] in choice else "–",
            )
            for row in numbers["levels"] if row["strategy"] in shown
        ],
        right=range(1, 6),
    )  # fmt: skip
    if LEARNED in shown:
        yield from ("", words["learned note"])


def _fits(numbers: Mapping[str, Any]) -> dict[str, float]:
    """Shares of memes that fit; empty unless Greedy and its control have some."""
    found = {row["strategy"]: row["fits"] for row in numbers.get("levels", ())}
    return found if found.keys() >= {"greedy", "random_same_turns"} else {}


def _choices(numbers: Mapping[str, Any]) -> dict[str, Mapping[str, Any]]:
    """Differences of mean grades to random memes at the same turns, by strategy."""
    rows = [row for row in numbers["effects"] if row["effect"] == "choice" and row["metric"] == "grade"]
    found = {row["comparison"].split(" - ")[0]: row for row in rows}
    for row in numbers.get("landing", {}).get("differences", ()):
        if row["learned minus"] == "random" and row["split"] == numbers["profile"]:
            found[LEARNED] = row
    return found


def _learned(numbers: Mapping[str, Any], words: dict[str, str], language: Language) -> Iterator[str]:
    """Whether memes of learned placement fit better than Greedy's."""
    yield next(_answers(numbers, language, LEARNED, asked=True), words["no learned"])


def _placement(numbers: Mapping[str, Any], words: dict[str, str], language: Language) -> Iterator[str]:
    """The same; then what learned placement, Greedy and random send, its ranking and its gate, by split."""
    yield next(_answers(numbers, language, LEARNED), words["no learned"])
    found = numbers.get("landing")
    if not found:
        return
    gaps = {(row["split"], row["learned minus"], row["where"]): row for row in found["differences"]}
    against = {"greedy": ("greedy", landing.OWN), landing.CONTROL: ("random", landing.OURS)}
    labels = {landing.CONTROL: "random_same_turns"}
    yield from _table(
        words["placement"],
        [
            (
                row["split"], _label(labels.get(row["way"], row["way"]), language), row["memes"],
                percent_interval(row, "fits"), statistics.format_interval(row, "mean grade"),
                statistics.format_interval(gaps[row["split"], *against[row["way"]]], sign="+")
                if row["way"] in against else "–",
            )
            for row in found["placed"]
        ],
        right=range(2, 6),
    )  # fmt: skip
    yield ""
    for split in dict.fromkeys(row["split"] for row in found["placed"]):
        ranked = {row["what"]: row for row in found["ranking"] if row["split"] == split}
        gate, score = (row for row in found["gate"] if row["split"] == split)
        learned, paper, difference = (
            statistics.format_interval(row, "nDCG@5", 3, "+" if "minus" in name else "")
            for name, row in ranked.items()
        )
        yield words["parts"].format(
            split=split, dialogues=gate["dialogues"], learned=learned, paper=paper, difference=difference,
            gate=statistics.format_interval(gate), score=statistics.format_interval(score),
        )  # fmt: skip


# --- The parts of the report, one a question


def _headline(numbers: Mapping[str, Any], words: dict[str, str], language: Language) -> Iterator[str]:
    yield f"- {verdict(numbers, language)}"
    yield "- " + words["sizes"].format(memes=numbers["memes"], **numbers["dialogues"])
    for row in numbers["meme_use"]:
        if row["strategy"] == "greedy":
            yield "- " + words["rate"].format(sent=row["memes sent"], rate=row["rate"])
    yield "- " + words["ratings"].format(**numbers["ratings"])


def _random(numbers: Mapping[str, Any], words: dict[str, str], language: Language) -> Iterator[str]:
    """How often memes fit, then choice and timing apart."""
    yield from _answers(numbers, language, "random", "timing")
    levels = numbers.get("levels", ())
    if levels:
        yield from _levels(numbers, words, language, [row["strategy"] for row in levels])
    rows = [row for row in numbers["effects"] if row["effect"] in ("choice", "timing")]
    rows = [row for row in rows if row["metric"] in ("grade", "judge", "consistency")]
    if not rows:
        return
    yield from _table(
        words["effects"],
        [
            (
                words[row["effect"]], words[row["metric"]], row["comparison"].replace("_", " "),
                statistics.format_interval(row, sign="+"), row["n"], row["dialogues"],
                "–" if row["p_holm"] is None else f"{row['p_holm']:.3f}",
            )
            for row in rows
        ],
        right=range(3, 7),
    )  # fmt: skip
    yield from ("", words["zero"])


def _study(
    name: str, table: str, cells: Callable[[Mapping[str, Any], dict[str, str]], tuple], right: Sequence[int]
) -> Callable[..., Iterator[str]]:
    """A study's answer over rows of one of its tables; `cells` gives a row's, none to leave it out."""

    def part(numbers: Mapping[str, Any], words: dict[str, str], language: Language) -> Iterator[str]:
        rows = numbers.get("studies", {}).get(table)
        if not rows:
            yield words["no study"]
            return
        yield from _answers(numbers, language, name)
        shown = [[say(cell, language) for cell in made] for row in rows if (made := cells(row, words))]
        yield from _table(words[{"judges": "trust"}.get(name, name)], shown, right)

    return part


def _ablation(row: Mapping[str, Any], words: dict[str, str]) -> tuple:
    if row["measure"] != "nDCG@5":
        return ()
    difference = statistics.format_interval(row, "difference", 3, sign="+")
    term = f"{row['without']} ({row['compares']})"
    return row["embedder"], term, f"{row['full']:.3f}", f"{row['rest']:.3f}", difference


def _threshold(row: Mapping[str, Any], words: dict[str, str]) -> tuple:
    clear = words["yes" if row["clear"] else "no"]
    return row["form"], row["minus"], row["measure"], statistics.format_interval(row, sign="+"), clear


def _hubs(row: Mapping[str, Any], words: dict[str, str]) -> tuple:
    share = statistics.format_interval(row, "share of repeats")
    return (*(row[name] for name in ("embedder", "scores", "where", "repeats")), share,
            f"{row['share of turns']:.2f}")  # fmt: skip


def _trust(row: Mapping[str, Any], words: dict[str, str]) -> tuple:
    intervals = [
        statistics.format_interval(row, name, 3) for name in ("AUC random", "AUC hard", "alpha wordings")
    ]
    return (*(row[name] for name in ("judge", "reading", "dialogues")), *intervals, row["verdict"])


def _claims(numbers: Mapping[str, Any], words: dict[str, str], language: Language) -> Iterator[str]:
    """In how many readings each claim has its sign: first among those that can tell, then among all."""
    found = numbers.get("studies", {})
    if not found.get("claims"):
        yield words["no study"]
        return
    yield from _answers(numbers, language, "claims")
    hangs = {row["claim"]: row for row in found.get("matters", ())}
    rows = []
    for row in found["claims"]:
        told = round((1 - (row["cannot tell"] or 0)) * row["worlds"])
        most = hangs.get(row["claim"])
        rows.append(
            (
                say(row["claim"], language), row["dialogues"],
                words["of"].format(told=told, worlds=row["worlds"]),
                *(percent(row[name]) for name in ("sign if told", "sign", "clear", "clearly opposite")),
                f"{most['choice']} ({most['best value']})" if most else "–",
            )
        )  # fmt: skip
    yield from _table(words["claims"], rows, right=range(1, 7))


def _table(heads: str, rows: Iterable[Sequence[Any]], right: Sequence[int]) -> Iterator[str]:
    """A table under a blank line; `heads` with bars between, `right`: numbers of the columns to the right."""
    names = heads.split(" | ")
    frame = pd.DataFrame([list(row) for row in rows], columns=names)
    yield from ("", core_tables.markdown(frame, [names[i] for i in right]).rstrip("\n"))


def _ground_truth(numbers: Mapping[str, Any], words: dict[str, str], language: Language) -> Iterator[str]:
    """The systems against the graded ground truth, and how far two models agree on it."""
    found = numbers["ground_truth"]
    if not found.get("retrieval"):
        yield words["no truth"]
        return
    kappas = {row["what"]: row for row in found["agreement"]}
    yield words["agreement"].format(
        send=statistics.format_interval(kappas["send or not"], "value"),
        grade=statistics.format_interval(kappas["grade 0/1/2"], "value"),
        dialogues=kappas["grade 0/1/2"]["dialogues"],
        turns=found["retrieval"][0]["turns"],
        among=found["retrieval"][0]["dialogues"],
    )
    senders = {row["who"]: row for row in found["timing"]}
    markers = sorted(name for name in senders if name.startswith("marker"))
    for name, said in (("the gate", "timing of the gate"), (LEARNED, "timing of learned")):
        if row := senders.get(name):
            yield ""
            yield words[said].format(
                marked=words["and"].join(f"{senders[marker]['rate']:.0%}" for marker in markers),
                rate=row["rate"],
                kappas=words["and"].join(f"{row[f'kappa with {marker}']:+.2f}" for marker in markers),
            )
    table = rankings.short_table(found, settings.load_profile(numbers["profile"]))
    yield from ("", core_tables.markdown(table).rstrip("\n"))


def _label(strategy: str, language: Language) -> str:
    named = schemas.STRATEGIES[strategy]
    return named.zh if language == "zh" else named.label


def _table_1(numbers: Mapping[str, Any], words: dict[str, str], language: Language) -> Iterator[str]:
    """Two rows per dataset, one a metric; cells as the run's page shows them."""
    frame = pd.DataFrame(numbers["table_1"], columns=list(tables.TABLE_1))
    frame = frame.astype(dict.fromkeys(("mean", "low", "high", "difference"), float))
    present = list(frame["strategy"].unique())
    rows = [
        (row["Dataset"], words[metric], *(row[f"{metric}: {name}"] for name in present))
        for row in tables.table_1_printed(frame).to_dict("records")
        for metric in tables.METRICS
    ]
    heads = words["table"].split(" | ") + [_label(name, language) for name in present]
    # <ins> is the underline that code hosts let through.
    text = core_tables.markdown(pd.DataFrame(rows, columns=heads)).rstrip("\n")
    yield text.replace("<u>", "<ins>").replace("</u>", "</ins>")


def _leaderboard(numbers: Mapping[str, Any], words: dict[str, str], language: Language) -> Iterator[str]:
    """The first systems of every split; entries of others are theirs to show."""
    splits: dict[str, list[Mapping[str, Any]]] = {}
    for row in numbers.get("leaderboard", ()):
        if row["kind"] == "package":
            splits.setdefault(row["split"], []).append(row)
    if not splits:
        yield words["no leaderboard"]
        return
    ordered = [splits[name] for name in sorted(splits, key=lambda name: name != benchmark.UNTOUCHED)]
    yield ("" if language == "zh" else " ").join(words["ranked"].format(**rows[0]) for rows in ordered)
    yield from _table(
        words["leaderboard"],
        [
            (
                row["split"], row["system"], f"{row['R@1']:.3f}",
                statistics.format_interval(row, "nDCG@5", 3),
                statistics.format_interval(row, "difference", 3, sign="+"),
                "–" if row["p Holm"] is None else f"{row['p Holm']:.3f}",
            )
            for rows in ordered for row in leaderboard.first(rows, LEADING)
        ],
        right=range(2, 6),
    )  # fmt: skip


_PARTS: dict[str, Callable[..., Iterator[str]]] = {
    "hero": _hero,
    "results": _results,
    "leaderboard": _leaderboard,
    "learned": _learned,
    "placement": _placement,
    "numbers": _headline,
    "random": _random,
    "ablation": _study("ablation", "ablation", _ablation, (2, 3, 4)),
    "threshold": _study("threshold", "threshold_minus", _threshold, (3,)),
    "hubs": _study("hubs", "hub_shares", _hubs, (3, 4, 5)),
    "judges": _study("judges", "trust", _trust, (2,)),
    "claims": _claims,
    "ground-truth": _ground_truth,
    "table-1": _table_1,
}

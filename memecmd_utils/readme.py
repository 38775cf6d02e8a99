"""The parts of the READMEs that quote results: rendered from `reports/numbers.json`, never typed by hand."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Literal

from memecmd_utils import results, schemas, statistics, storage, table_text
from memecmd_utils.errors import MemecmdError

FILES = ("README.md", "README.zh-CN.md")
MARKERS = ("answers", "numbers", "ground-truth", "table-1")
Language = Literal["en", "zh"]
WORDS: dict[Language, dict[str, str]] = {
    "en": {
        "sizes": "{memes} memes; {total} dialogues ({news} news, {role} role) of {turns} turns in all.",
        "rate": "The gate sends {sent} memes, one at {rate:.0%} of the turns from the second on.",
        "ratings": "The judge rated {total} of {placed} placed memes; {unscored} ratings are unscored.",
        "unchecked": "**The judge could not be checked**: too few memes are rated.",
        "tells": "**The judge tells greedy's memes from random ones at the same turns{weak}**{auc}.",
        "cannot": "**The judge cannot tell greedy's memes from random ones at the same turns**{auc}: "
        "its scores below say nothing about quality.",
        "reversed": "**The judge prefers random memes to greedy's at the same turns**{auc}: "
        "it is no measure of quality here.",
        "auc": " (AUC {auc:.2f}, 95 % interval {low:.2f} to {high:.2f}, n = {n} in {dialogues} dialogues; "
        "0.5 is chance)",
        "weak": ", but only weakly",
        "effects": "effect | metric | comparison | mean difference [95 % interval] | n | dialogues "
        "| p (Holm)",
        "table": "dataset | metric",
        "judge": "judge",
        "consistency": "text consistency",
        "grade": "grade (0-2)",
        "choice": "choice",
        "timing": "timing",
        "and": " and ",
        "comma": ", ",
        "mean grades": "Mean grade of the placed memes, of 2: {grades}.",
        "timing of the gate": "When to send: the markers would at {marked}, the gate does at {rate:.0%}; "
        "its kappa with them is {kappas} (0 is chance).",
        "no truth": "This run has no ground truth.",
        "agreement": "Model-model agreement: kappa {send} on send or not, weighted kappa {grade} on grades, "
        "{dialogues} dialogues. {turns} turns of {among} dialogues have a relevant meme.",
        "answers": "{paragraph}",
        "no answers": "The studies of this run have not been made.",
        "trust": "judge | score | dialogues | AUC, fitting against random | AUC, against hard negatives "
        "| alpha over three wordings | trust",
        "claims": "claim of the paper | dialogues | readings | has its sign | clearly "
        "| clearly the opposite | cannot tell",
        "zero": "An interval that holds 0 means: with this many dialogues we cannot say.",
    },
    "zh": {
        "sizes": "{memes} 张表情包；{total} 段对话（新闻 {news} 段，角色 {role} 段），共 {turns} 轮。",
        "rate": "门控共发出 {sent} 张表情包，占第二轮起所有轮次的 {rate:.0%}。",
        "ratings": "评判模型评了 {placed} 张已放置表情包中的 {total} 张；其中 {unscored} 条无分。",
        "unchecked": "**评判模型无法检验**：有评分的表情包太少。",
        "tells": "**评判模型能区分 Greedy 选出的表情包与相同轮次的随机表情包{weak}**{auc}。",
        "cannot": "**评判模型不能区分 Greedy 选出的表情包与相同轮次的随机表情包**{auc}："
        "下面它的分数不能说明质量。",
        "reversed": "**评判模型在相同轮次上更偏向随机表情包**{auc}：它在这里不能衡量质量。",
        "auc": "（AUC {auc:.2f}，95% 区间 {low:.2f} 至 {high:.2f}，n = {n}，{dialogues} 段对话；"
        "0.5 为随机水平）",
        "weak": "，但区分力很弱",
        "effects": "效应 | 指标 | 比较 | 平均差 [95% 区间] | n | 对话数 | p（Holm）",
        "table": "数据 | 指标",
        "judge": "评判模型",
        "consistency": "文本一致性",
        "grade": "标注分（0–2）",
        "choice": "选择",
        "timing": "时机",
        "and": " 和 ",
        "comma": "，",
        "mean grades": "已放置表情包的平均分（满分 2）：{grades}。",
        "timing of the gate": "何时发：标注者在 {marked} 的轮次会发，门控在 {rate:.0%} 的轮次发；"
        "门控与他们的 kappa 为 {kappas}（0 为随机水平）。",
        "no truth": "本次运行没有标注答案。",
        "agreement": "模型间一致性（{dialogues} 段对话）：发与不发 kappa {send}，相关度加权 kappa {grade}。"
        "{among} 段对话的 {turns} 个轮次有相关表情包。",
        "answers": "程序从结果文件写出的摘要（英文）：{paragraph}",
        "no answers": "本次运行没有做这些研究。",
        "trust": "评判 | 分数 | 对话数 | AUC：合适对随机 | AUC：合适对难负例 | 三种问法的 alpha | 可信度",
        "claims": "论文的论断 | 对话数 | 读法数 | 符号相符 | 明确成立 | 明确相反 | 无法判断",
        "zero": "区间包含 0 表示：凭这么多对话还不能下结论。",
    },
}


class ReadmeError(MemecmdError, ValueError):
    """A README has not exactly one pair of a marker, in order."""


def render(numbers: dict[str, Any], language: Language = "en") -> dict[str, str]:
    """Markdown for each marker, from the numbers of a run."""
    return {
        "answers": "\n".join(_answers(numbers, WORDS[language])),
        "numbers": "\n".join(_headline(numbers, WORDS[language], language)),
        "ground-truth": "\n".join(_ground_truth(numbers, WORDS[language])),
        "table-1": "\n".join(_table_1(numbers, WORDS[language], language)),
    }


def update(readme: Path, numbers: dict[str, Any]) -> bool:
    """Put the rendered texts between the markers of a README; say whether the file changed."""
    text = old = readme.read_text(encoding="utf-8")
    for marker, new in render(numbers, language_of(readme)).items():
        begin, end = between(text, marker)
        text = f"{text[:begin]}\n{new}\n{text[end:]}"
    if text != old:
        storage.write_text(readme, text)
    return text != old


def language_of(readme: Path) -> Language:
    """Language by the file's name."""
    return "zh" if "zh-CN" in readme.name else "en"


def between(text: str, marker: str) -> tuple[int, int]:
    """Where the text between `<!-- marker:begin -->` and `<!-- marker:end -->` begins and ends."""
    begin, end = f"<!-- {marker}:begin -->", f"<!-- {marker}:end -->"
    if text.count(begin) != 1 or text.count(end) != 1 or text.index(begin) > text.index(end):
        raise ReadmeError(f"need one {begin} and, after it, one {end}")
    return text.index(begin) + len(begin), text.index(end)


def verdict(numbers: dict[str, Any], language: Language = "en") -> str:
    """One sentence on whether the judge tells chosen memes from random ones, with its interval."""
    words = WORDS[language]
    row = results.first_check(numbers)
    if row is None or row["low"] is None:
        return words["unchecked"]
    kind = {"yes": "tells", "no": "cannot"}.get(row["tells apart"], "reversed")
    weak = words["weak"] if row["auc"] < results.WEAK_AUC else ""
    return words[kind].format(auc=words["auc"].format(**row), weak=weak)


def _answers(numbers: dict[str, Any], words: dict[str, str]) -> Iterator[str]:
    """The answers in one paragraph, the judges' trust, and how many readings each claim survives."""
    found = numbers.get("studies", {})
    if not found.get("claims"):
        yield words["no answers"]
        return
    yield words["answers"].format(paragraph=numbers["answers"])
    intervals = ("AUC random", "AUC hard", "alpha wordings")
    yield from _table(
        words["trust"],
        [
            (
                *(row[name] for name in ("judge", "reading", "dialogues")),
                *(statistics.format_interval(row, name, 3) for name in intervals),
                row["verdict"],
            )
            for row in found["trust"]
        ],
        right=[2],
    )
    shares = ("sign", "clear", "clearly opposite", "cannot tell")
    yield from _table(
        words["claims"],
        [
            (
                row["claim"], row["dialogues"], f"{row['worlds']:,}",
                *("–" if row[name] is None else f"{row[name]:.0%}" for name in shares),
            )
            for row in found["claims"]
        ],
        right=range(1, 7),
    )  # fmt: skip


def _table(heads: str, rows: Sequence[tuple], right: Sequence[int]) -> Iterator[str]:
    """A table under a blank line; `heads` with bars between, `right`: numbers of the columns to the right."""
    import pandas as pd

    names = heads.split(" | ")
    frame = pd.DataFrame(rows, columns=names)
    yield from ("", table_text.markdown(frame, [names[i] for i in right]).rstrip("\n"))


def _headline(numbers: dict[str, Any], words: dict[str, str], language: Language) -> Iterator[str]:
    yield f"- {verdict(numbers, language)}"
    yield "- " + words["sizes"].format(memes=numbers["memes"], **numbers["dialogues"])
    for row in numbers["meme_use"]:
        if row["strategy"] == "greedy":
            yield "- " + words["rate"].format(sent=row["memes sent"], rate=row["rate"])
    yield "- " + words["ratings"].format(**numbers["ratings"])
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


def _ground_truth(numbers: dict[str, Any], words: dict[str, str]) -> Iterator[str]:
    """The systems against the graded ground truth, and how far two models agree on it."""
    from memecmd_utils import ground_truth_run, profiles

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
    who = {row["who"]: row for row in found["timing"]}
    markers = sorted(name for name in who if name.startswith("marker"))
    if "the gate" in who:
        gate = who["the gate"]
        yield ""
        yield words["timing of the gate"].format(
            marked=words["and"].join(f"{who[name]['rate']:.0%}" for name in markers),
            rate=gate["rate"],
            kappas=words["and"].join(f"{gate[f'kappa with {name}']:+.2f}" for name in markers),
        )
    if found["placed"]:
        yield ""
        yield words["mean grades"].format(
            grades=words["comma"].join(
                f"{_label(row['strategy'], 'zh' if words is WORDS['zh'] else 'en')} {row['mean grade']:.2f}"
                for row in found["placed"]
            )
        )
    table = ground_truth_run.short_table(found, profiles.load_profile(numbers["profile"]))
    yield from ("", table_text.markdown(table).rstrip("\n"))


def _label(strategy: str, language: Language) -> str:
    named = schemas.STRATEGIES[strategy]
    return named.zh if language == "zh" else named.label


def _table_1(numbers: dict[str, Any], words: dict[str, str], language: Language) -> Iterator[str]:
    """Two rows per dataset, one a metric; cells as the run's page shows them."""
    import pandas as pd

    from memecmd_utils import tables

    frame = pd.DataFrame(numbers["table_1"])
    present = list(frame["strategy"].unique()) if len(frame) else []
    rows = []
    floats = dict.fromkeys(("mean", "low", "high", "difference"), float)
    for row in tables.table_1_printed(frame.astype(floats)).to_dict("records") if present else ():
        for metric in tables.METRICS:
            rows.append((row["Dataset"], words[metric], *(row[f"{metric}: {name}"] for name in present)))
    heads = words["table"].split(" | ") + [_label(name, language) for name in present]
    # <ins> is the underline that code hosts let through.
    text = table_text.markdown(pd.DataFrame(rows, columns=heads)).rstrip("\n")
    yield text.replace("<u>", "<ins>").replace("</u>", "</ins>")

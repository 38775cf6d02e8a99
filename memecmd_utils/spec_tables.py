"""Study 9 in tables and one sentence: in which share of the worlds a claim holds, and what that hangs on."""

from collections.abc import Sequence

import pandas as pd

from memecmd_utils.spec_curve import CLAIMS
from memecmd_utils.spec_worlds import World
from memecmd_utils.statistics import too_few

SHARES = (
    "worlds", "dialogues", "sign", "clear", "clearly opposite", "cannot tell", "sign if told", "not asked"
)  # fmt: skip
"""Number of worlds that count, dialogues behind their intervals (at most), shares of these worlds, the share
with the sign among those that can tell, and the number that do not count because the judge was not asked.
What is clear is not known (nan) below `statistics.MIN_CLUSTERS` dialogues."""
AXES = (*World._fields, "measure")
NAMES = {"beta": "sign of beta", "k": "K", "random": "reading of Random"}


def by_claim(worlds: pd.DataFrame) -> pd.DataFrame:
    """For each claim the shares of its worlds (`SHARES`)."""
    rows = [{"claim": CLAIMS[claim], **shares(of)} for claim, of in worlds.groupby("claim")]
    return pd.DataFrame(rows, columns=["claim", *SHARES])


def by_measure(worlds: pd.DataFrame) -> pd.DataFrame:
    """The same for each measure by itself."""
    rows = [
        {"claim": CLAIMS[claim], "measure": measure, **shares(of)}
        for (claim, measure), of in worlds.groupby(["claim", "measure"], sort=False)
    ]
    return pd.DataFrame(rows, columns=["claim", "measure", *SHARES])


def by_axis(worlds: pd.DataFrame) -> pd.DataFrame:
    """The same for each value of each open choice; choices on which a claim does not depend are left out.

    So are worlds that do not count: a judge's have other readings of Random than an expected mean.
    """
    rows = []
    for claim, of_claim in worlds[worlds["state"] != "not asked"].groupby("claim"):
        for axis in AXES:
            for value, of in of_claim.groupby(axis, sort=False):
                if value != "–" and of_claim[axis].nunique() > 1:
                    rows.append(
                        {
                            "claim": CLAIMS[claim],
                            "choice": NAMES.get(axis, axis),
                            "value": value,
                            **shares(of),
                        }
                    )
    return pd.DataFrame(rows, columns=["claim", "choice", "value", *SHARES])


def what_matters(worlds: pd.DataFrame) -> pd.DataFrame:
    """How far the shares lie apart between the values of each choice, widest first within a claim.

    `told` is about which worlds can tell at all, `sign` about the share with the sign among those.
    """
    table = by_axis(worlds)
    table["told"] = 1 - table["cannot tell"]
    rows = []
    for (claim, choice), of in table.groupby(["claim", "choice"], sort=False):
        told = of[of["sign if told"].notna()]
        apart = {name: of[name].max() - of[name].min() for name in ("told", "clear")}
        row = {"claim": claim, "choice": choice, **apart, "sign": 0.0, "best value": "–", "worst value": "–"}
        if len(told):
            best, worst = (told.loc[told["sign if told"].agg(how)] for how in ("idxmax", "idxmin"))
            row |= {"sign": best["sign if told"] - worst["sign if told"]}
            row |= {"best value": best["value"], "worst value": worst["value"]}
        rows.append(row)
    columns = ["claim", "choice", "sign", "best value", "worst value", "clear", "told"]
    found = pd.DataFrame(rows, columns=columns)
    order = {text: number for number, text in CLAIMS.items()}
    place = found["claim"].map(order)
    return found.assign(place=place).sort_values(
        ["place", "sign"], ascending=[True, False], kind="stable", ignore_index=True
    )[columns]


def shares(worlds: pd.DataFrame) -> dict[str, float]:
    """`SHARES` of some worlds of one claim."""
    asked = worlds[worlds["state"] != "not asked"]
    states, counted = worlds["state"], asked["state"]
    n, told = len(counted), int((counted != "cannot tell").sum())
    dialogues = int(asked["dialogues"].max()) if n else 0
    few = too_few(dialogues)

    def share(*wanted: str) -> float:
        return float(counted.isin(wanted).sum() / n) if n else float("nan")

    return {
        "worlds": n,
        "dialogues": dialogues,
        "sign": share("clear", "sign only"),
        "clear": float("nan") if few else share("clear"),
        "clearly opposite": float("nan") if few else share("clearly opposite"),
        "cannot tell": share("cannot tell"),
        "sign if told": float(counted.isin(("clear", "sign only")).sum() / told) if told else float("nan"),
        "not asked": len(states) - n,
    }


def sentence(worlds: pd.DataFrame, claims: Sequence[int] = tuple(CLAIMS)) -> str:
    """In how many worlds each claim survives, and on which choice it hangs most, in one sentence."""
    counted = worlds[worlds["state"] != "not asked"]
    counted = counted[counted["claim"].isin(claims)]
    if counted.empty:
        return "No reading of the paper could be measured, so none of its claims could be held against any."
    matters, parts = what_matters(counted), []
    for row in by_claim(counted).itertuples(index=False):
        found = dict(zip(["claim", *SHARES], row, strict=True))
        text = f"{found['claim']}: in {found['sign']:.0%} of {found['worlds']:,} worlds"
        if not too_few(found["dialogues"]):
            clear, opposite = (f"{found[name]:.0%}" for name in ("clear", "clearly opposite"))
            text += f", clearly in {clear}, clearly the opposite in {opposite}"
        if found["cannot tell"]:
            text += f" ({found['cannot tell']:.0%} send too little to tell)"
        widest = matters[matters["claim"] == found["claim"]].head(1)
        if len(widest) and (most := widest.iloc[0])["sign"] > 0:
            text += f", moved most by {most['choice']} (best: {most['best value']})"
        parts.append(text)
    among = counted["dialogues"].max()
    few = " (too few for an interval)" if too_few(among) else ""
    return f"Over {among} dialogues{few}, {'; '.join(parts)}."

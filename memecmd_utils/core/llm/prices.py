"""What calls, tokens, money and hours come to: one row of an estimate, and the ledger beside it."""

from dataclasses import dataclass

import pandas as pd

from memecmd_utils.core.llm.budget import BATCH_DISCOUNT, Ledger, Spent
from memecmd_utils.settings import Endpoint, Profile

BATCHED_TASKS = {"annotation", "rating"}
BATCH_WINDOW_S = 24 * 3600.0
"""The one completion window that the Batch API has: results come within it."""
REMOTE_SECONDS_PER_CALL = 2.0
LOCAL_TOKENS_IN_PER_S, LOCAL_TOKENS_OUT_PER_S = 80.0, 12.0
UNSAID_TOKENS_PER_IMAGE = 765
"""Where an endpoint does not say: four tiles of gpt-4o, between most models (170 to 260) and gpt-4o-mini."""


@dataclass(frozen=True)
class Line:
    """One line of the estimate."""

    stage: str
    model: str
    calls: int
    tokens_in: int
    tokens_out: int
    usd: float
    hours: float
    ledger: tuple[str, str]
    """Stage and task under which the ledger has the real figures."""


def tokens_per_image(endpoint: Endpoint) -> int:
    """Of a picture of one tile, also where the endpoint does not say."""
    said = endpoint.tokens_per_image
    return UNSAID_TOKENS_PER_IMAGE if said is None else said


def line(
    stage: str,
    ledger: tuple[str, str],
    profile: Profile,
    llm: str,
    endpoint: Endpoint,
    calls: int,
    t_in: float,
    t_out: float,
    local_model: str | None = None,
) -> Line:
    """Reckon money and hours of so many calls and tokens; what this machine answers costs no money."""
    if llm == "authored":
        return Line(stage, "authored text", 0, 0, 0, 0.0, 0.0, ledger)
    if llm == "local":
        seconds = t_in / LOCAL_TOKENS_IN_PER_S + t_out / LOCAL_TOKENS_OUT_PER_S
        model, usd = local_model or profile.models.local_model, 0.0
    else:
        batch = profile.models.batch and ledger[1] in BATCHED_TASKS
        usd_in, usd_out = endpoint.usd_per_million_in or 0.0, endpoint.usd_per_million_out or 0.0
        usd = (t_in * usd_in + t_out * usd_out) / 1e6 * (BATCH_DISCOUNT if batch else 1.0)
        seconds = BATCH_WINDOW_S if batch else calls * REMOTE_SECONDS_PER_CALL / profile.models.concurrency
        model = (endpoint.model or "(no model named)") + (" (batch)" if batch else "")
    return Line(stage, model, calls, round(t_in), round(t_out), usd, seconds / 3600 if calls else 0.0, ledger)


def beside(table: pd.DataFrame, ledger: Ledger) -> pd.DataFrame:
    """Add a total, and where the run has asked a model what it really used so far.

    Real calls are those that were or may have been paid; tokens are the endpoint's own counts. What the
    estimate does not know of has a row of its own.
    """
    real = bool(ledger.spent)
    table = table.copy()
    others = [key for key in ledger.spent if key not in set(table.ledger)]
    if others:
        rows = [Line(f"other: {' '.join(dict.fromkeys(key))}", "", 0, 0, 0, 0.0, 0.0, key) for key in others]
        table = pd.concat([table, pd.DataFrame(rows)], ignore_index=True)
    if real:
        spent = [ledger.spent.get(key, Spent()) for key in table.ledger]
        table["real_calls"] = [s.calls + s.unsure_calls for s in spent]
        table["real_in"] = [s.tokens_in for s in spent]
        table["real_out"] = [s.tokens_out for s in spent]
        table["real_usd"] = [s.usd + s.unsure_usd for s in spent]
    table = table.drop(columns="ledger")
    total = {"stage": "total", "model": ""} | table[table.columns[2:]].sum().to_dict()
    return pd.concat([table, pd.DataFrame([total])], ignore_index=True)


def estimate_text(table: pd.DataFrame) -> str:
    """The table for a terminal: whole calls and tokens, money to the cent or finer where it is little."""
    finest = 4 if table.filter(like="usd").to_numpy().max(initial=0.0) < 1 else 2
    formats = {
        name: (lambda x: f"{x:,.{finest}f}") if "usd" in name else (lambda x: f"{x:,.2f}")
        if name == "hours" else (lambda x: f"{x:,.0f}")
        for name in table.columns[2:]
    }  # fmt: skip
    return table.to_string(index=False, formatters=formats)

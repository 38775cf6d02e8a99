"""News items for cold starts: the example file, a file of the user's own, or collected RSS and Atom feeds."""

from pathlib import Path

from memecmd_utils import example_corpus, news_collect, paths, storage
from memecmd_utils.news_collect import Collection
from memecmd_utils.news_feeds import NewsError, read_feeds
from memecmd_utils.news_http import Limits
from memecmd_utils.profiles import Profile
from memecmd_utils.schemas import NewsItem


def collection_folder(profile: Profile) -> Path:
    """Where a profile's collection lies; all runs of the profile share it."""
    return paths.raw / "news" / profile.name


def load(profile: Profile, limits: Limits | None = None) -> list[NewsItem]:
    """News items as the profile says: `news: example`, a JSONL path, or `feeds`.

    With `feeds` these are the items collected so far; the feeds are asked only where these are fewer than
    `n_news`. Raises `NewsError` when there are still too few, with the number of each topic.
    """
    if not profile.n_news:
        return []
    if profile.news == "example":
        return example_corpus.load_news()
    if profile.news == "feeds":
        return [item.news_item() for item in _enough(profile, limits).items]
    path = paths.of_user(profile.news)
    if not path.is_file():
        raise NewsError(f"news: {profile.news!r} is neither `example`, `feeds`, nor a file")
    return storage.read_jsonl(path, NewsItem)


def collected(profile: Profile) -> int:
    """How many news items were collected so far from the profile's feeds; nothing is fetched."""
    return len(news_collect.compile_items(read_feeds(profile.feeds), collection_folder(profile)).items)


def _enough(profile: Profile, limits: Limits | None) -> Collection:
    feeds, folder = read_feeds(profile.feeds), collection_folder(profile)
    found = news_collect.compile_items(feeds, folder)
    if len(found.items) < profile.n_news:
        found = news_collect.collect(feeds, folder, limits)
    if len(found.items) < profile.n_news:
        raise NewsError(
            f"n_news={profile.n_news}, but the feeds gave {len(found.items)} news items ({found.totals()}). "
            f"A feed shows only its newest items: run `make collect-news PROFILE={profile.name}` on later "
            f"days to add to them, name more feeds, or lower n_news; how each feed fared is in "
            f"{folder / 'feeds.csv'}"
        )
    return found


def collect_for(profile: Profile, limits: Limits | None = None) -> str:
    """Collect a profile's news now and say how it went: what `make collect-news` prints."""
    if profile.news != "feeds":
        raise NewsError(
            f"profile {profile.name} has `news: {profile.news}`: to collect, set `news: feeds` and `feeds`"
        )
    feeds, folder = read_feeds(profile.feeds), collection_folder(profile)
    found = news_collect.collect(feeds, folder, limits)
    lines = [
        f"{row['topic']:<13} {row['status']:<11} {row['new']:>4} new {row['kept']:>5} kept "
        f"{row['duplicates']:>4} duplicates  {row['name'] or row['url']}"
        + (f": {row['reason']}" if row["reason"] else "")
        for row in found.rows
    ]
    enough = "enough" if len(found.items) >= profile.n_news else "not yet enough"
    lines.append(
        f"{len(found.items):,} news items ({found.totals()}): {enough} for n_news={profile.n_news:,}"
    )
    lines.append(f"the collection is in {folder}")
    return "\n".join(lines)

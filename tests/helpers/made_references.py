"""Records of MemeCap made up for tests."""


def row(name: str = "a1", **changes) -> dict:
    """A made-up record in the form of the source."""
    return {
        "category": "memes",
        "img_captions": [f"a drawn cat in {name}"],
        "meme_captions": [f"{name} is tired.", f"{name} wants the weekend."],
        "title": f"Title of {name}",
        "url": f"https://example.org/{name}.png",
        "img_fname": f"memes_{name}.png",
        "metaphors": [{"metaphor": "cat", "meaning": "the poster"}],
        "post_id": name,
    } | changes

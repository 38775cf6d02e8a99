"""Records that cross the border of a stage. Every record says where it comes from."""

from typing import Annotated, Any, Literal, NamedTuple, get_args

from pydantic import BaseModel, ConfigDict, Field, StringConstraints, create_model

Text = Annotated[str, StringConstraints(strip_whitespace=True, min_length=1)]
Speaker = Literal["A", "B"]


def speaker_of(turn: int) -> Speaker:
    """A_1 opens and speaks on odd turns (Eq. 8, 10; Eq. 5's index would give A_2 the first word)."""
    return "A" if turn % 2 else "B"


Topic = Literal["sports", "entertainment", "technology", "games", "education", "health"]
TOPICS: tuple[Topic, ...] = get_args(Topic)
MAX_WORDS = 200
"""Characters of a meme's words that a model reads: OCR of a page of text has thousands."""

DIMENSIONS = (
    "semantic_consistency",
    "emotional_consistency",
    "contextual_appropriateness",
    "humor_effect",
    "conversational_coherence",
)
"""Dimensions of the LLM judge (paper, Section 5.1); what is asked of each stands in
`prompts/judge_questions.j2`, for people in `people.SCALES`."""


class StrategyWords(NamedTuple):
    """How a strategy that places memes (Eq. 25) is called, and what it does."""

    label: str
    does: str


STRATEGIES = {
    "greedy": StrategyWords("Greedy", "the best meme by the paper's score, where it passes a threshold"),
    "sampling": StrategyWords(
        "Sampling", "one of the paper's best few, drawn at random, where Greedy sends one"
    ),
    "random_same_turns": StrategyWords("Random, same turns", "a random meme, where Greedy sends one"),
    "random": StrategyWords("Random", "a random meme at random turns"),
    "learned": StrategyWords(
        "Learned", "picks meme and turn by weights that were fitted on grades and marks"
    ),
    "reranked": StrategyWords("Reranked", "a model reads the chat and picks from the paper's best, or none"),
    "released_greedy": StrategyWords("Greedy, released", "what the paper's authors published as Greedy"),
    "released_sampling": StrategyWords("Sampling, released", "what they published as Diversity-aware"),
    "released_random": StrategyWords("Random, released", "what they published as Random"),
}
"""The paper's strategies and ours by the name that records hold."""
RELEASED = "released_"
"""How the names of those begin whose memes are read from the authors' release."""


class Record(BaseModel):
    """Base of all records: unknown fields are an error, and provenance is part of the data."""

    model_config = ConfigDict(extra="forbid", defer_build=True)  # built when first used: starts stay short

    source: str
    """`authored`, `drawn`, `user image`, `computed`, or `model name@label`."""
    profile: str = ""
    prompt_sha256: str = ""
    """SHA-256 of the prompt template behind a text; empty where no prompt was used."""
    seed: int | None = None


class Meme(Record):
    """One image of the library (stage 01)."""

    meme_id: Text
    file: str
    """Path of the normalised PNG, relative to the run's folder; in a release, to that of its copy. There it
    is empty where the picture may not be passed on."""
    text: str
    """Visible text: known for example memes, read by OCR for all others; may be empty."""
    text_source: Literal["known", "ocr", "none"]
    picture_note: str = ""
    """What is known of the picture beyond its text (from the table, or a folder name)."""
    gloss: str = ""
    origin: str
    """Where the image came from: a table id or the path below its source folder."""
    sha256: str
    phash: str
    """64-bit DCT perceptual hash as 16 hex digits."""
    width: int = Field(gt=0)
    height: int = Field(gt=0)
    licence: str = ""

    @property
    def words(self) -> str:
        """What a text model can know of a meme, in one line: its visible text, else what is to be seen.

        Cut to `MAX_WORDS`; empty where nothing is known. Of a run's memes (`Run.memes`) both are what the
        annotator saw, where it did.
        """
        return " ".join((self.text or self.picture_note).split())[:MAX_WORDS]

    def as_seen(self, annotation: "Annotation") -> "Meme":
        """The meme in the words of an annotator who saw the picture, with its English; else as it is.

        They take the place of what a machine read from the picture or from the name of its file, also where
        the annotator finds no text. What a table says of a meme stays.
        """
        changed = {}
        if annotation.picture and self.text_source != "known":
            changed = {"text": annotation.text_seen, "picture_note": annotation.picture}
        elif annotation.picture and not self.picture_note:
            changed = {"picture_note": annotation.picture}
        if annotation.english and not self.gloss:
            changed["gloss"] = annotation.english[-1]
        return self.model_copy(update=changed) if changed else self


class AnnotationReply(BaseModel):
    """The four dimensions as asked of the annotator."""

    s_plus: Text
    s_minus: Text
    emotion: Text
    motivation: Text


class Sight(BaseModel):
    """What is to be seen on a meme, and its words, which may be none, as asked of an annotator that sees."""

    picture: Text
    text_seen: str


class SeenAnnotationReply(AnnotationReply, Sight):
    """The same with the four dimensions after it: a model writes the fields in this order."""


ANNOTATED = tuple(SeenAnnotationReply.model_fields)
"""The texts of an annotation."""


class Annotation(Record):
    """What an MLLM says of a meme (Eq. 1): S+, S-, E, Psi."""

    meme_id: Text
    s_plus: str
    s_minus: str
    emotion: str
    motivation: str
    picture: str = ""
    """What is to be seen, as the annotator says who saw the picture; empty where none did."""
    text_seen: str = ""
    """The words on the picture as that annotator reads them; empty where it finds none."""
    english: list[str] = []
    """With `gloss` the four texts and then the meme's `words` in English; else empty."""
    unscored: str = ""
    """Why there is no annotation (five unusable replies); then all texts are empty."""
    unsafe: str = ""
    """With `flag_unsafe`: why the meme is neither sent nor released; see `annotation.Unsafe`."""

    @property
    def usable(self) -> bool:
        """Whether retrieval may choose the meme: it is annotated and not flagged as unsafe."""
        return not self.unscored and not self.unsafe


class NewsItem(Record):
    """A news cold start (paper, Section 4.1.1)."""

    news_id: Annotated[str, StringConstraints(pattern=r"^[\w.-]{1,80}$")]
    """A name, no text: it stands in ids of dialogues, and these in titles of figures and in tables."""
    topic: Topic
    title: Text
    text: Text
    gloss: str = ""


class RolePair(Record):
    """A role pair over four relationship dimensions (paper, Section 4.1.2)."""

    pair_id: Text
    role_a: Text
    role_b: Text
    gloss: str = ""
    intimacy: Literal["stranger", "acquaintance", "close", "very_close"]
    dominance: Literal["equal", "a_dominant", "b_dominant", "mutual_dependence"]
    age_relation: Literal["same_age", "a_older", "b_older", "generational"]
    primary_scenario: Literal["work", "study", "life", "entertainment", "special"]


class ScenarioReply(BaseModel):
    """One basic scenario as asked of the scenario agent."""

    scenario: Text


class ScenarioDetails(BaseModel):
    """Role information of both parties and the event, as asked of the scenario agent."""

    background_a: Text
    personality_a: Text
    state_a: Text
    background_b: Text
    personality_b: Text
    state_b: Text
    relationship: Text
    event: Text


class Scenario(Record, ScenarioDetails):
    """A role cold start: the scenario of a pair with both people's details (Eq. 9)."""

    scenario_id: Text
    pair_id: Text
    scenario: Text
    gloss: str = ""
    similarity: float | None = None
    """Highest embedding cosine to the pair's earlier scenarios; None for the first."""


class Turn(Record):
    """One utterance u_t. `violations` names the rules it still broke after five attempts."""

    turn: int = Field(ge=1)
    speaker: Speaker
    text: Text
    gloss: str = ""
    violations: list[str] = []


class SummaryReply(BaseModel):
    """The three dimensions as asked of the summary agent."""

    scenario: Text
    emotion: Text
    motivation: Text


class Summary(Record):
    """(S, E, Psi) for turn t, made from u_1..u_{t-1} from the next speaker's side (Eq. 16)."""

    turn: int = Field(ge=2)
    speaker: Speaker
    scenario: str
    emotion: str
    motivation: str
    english: list[str] = []
    """With `gloss` the three texts in English; else empty."""
    unscored: str = ""


Kind = Literal["news", "role", "own"]
DIALOGUE_KINDS: dict[Kind, str] = {"news": "News-based", "role": "Role-based", "own": "Own"}
"""What a dialogue starts from, and how tables and figures call it; `own`: it comes from a user's file."""


class ColdStart(Record):
    """What a dialogue starts from: its title, and what each speaker is told of it, in three lengths.

    Of the other's character and state a speaker is told nothing.
    """

    dialogue_id: Text
    kind: Kind
    ref: Text
    """Id of the news item, of the scenario, or of one's own dialogue."""
    title: Text
    name_a: str
    name_b: str
    context: dict[Speaker, Text]
    """C_i: the full context, used at t = 1 (Eq. 11)."""
    brief: dict[Speaker, Text]
    """C_i,brief: the short context, used for 2 <= t < 13 (Eq. 12, 13)."""
    persona: dict[Speaker, Text]
    """The speaker alone, used for t >= 13, where the paper leaves nothing (Eq. 14)."""


class Dialogue(Record):
    """One session with its turns and the summaries for t >= 2."""

    dialogue_id: Text
    kind: Kind
    ref: Text
    title: Text
    gloss: str = ""
    """The title in English, with `gloss`."""
    name_a: str
    name_b: str
    turns: list[Turn]
    summaries: list[Summary]
    complete: bool

    @property
    def lines(self) -> list[tuple[str, str]]:
        """Names and texts of the turns; who has no name is A or B."""
        names = {"A": self.name_a or "A", "B": self.name_b or "B"}
        return [(names[turn.speaker], turn.text) for turn in self.turns]


class Unfinished(Record):
    """A dialogue that no further turn could be had for: the model refused, or the endpoint rejects it."""

    dialogue_id: Text
    turn: int = Field(ge=1)
    """The turn that is missing."""
    reason: Text
    turns: list[Turn]


class Candidate(Record):
    """A meme among the top K of a turn with the parts of its score (Eq. 18-22)."""

    dialogue_id: Text
    turn: int
    rank: int = Field(ge=1)
    meme_id: Text
    alpha: float
    delta: float
    beta: float
    gamma: float
    score: float


class Placement(Record):
    """A meme that a strategy puts at a turn (Eq. 23-25)."""

    dialogue_id: Text
    turn: int = Field(ge=2)
    speaker: Speaker
    strategy: Text
    meme_id: Text
    rank: int | None
    """Rank in the turn's candidate list, of `learned` in its own; None for a random choice outside it."""
    score: float | None
    """T of Eq. 22 of the meme placed; None for a random choice at a turn without a usable summary."""
    gate_score: float | None
    """What the gate compared, on the scale of `score_scale`: the best score, of `learned` its promise; None
    where no gate decided."""
    threshold: float | None
    """theta_t of Eq. 23 at this turn; None where no gate decided."""
    fold: str
    """Half of the dialogues that calibrated the gate for this one."""
    reason: str = ""
    """Why a model chose it (strategy `reranked`)."""


class ChoiceReply(BaseModel):
    """What is asked of the model that chooses among candidates: why, and the number of one or 0 for none."""

    reason: Text
    number: int = Field(ge=0)


class Choice(Record):
    """What a model chose among a turn's candidates (strategy `reranked`)."""

    dialogue_id: Text
    turn: int = Field(ge=2)
    meme_id: str
    """Empty: none of them."""
    reason: str
    place: int = Field(ge=0)
    """Number of the meme in the shuffled list that the model saw, of `shown`; 0: none of them."""
    shown: int = Field(ge=0)
    """How many candidates it saw; 0 where it was not asked."""
    options: list[str] = []
    """Those candidates, in the order of the list."""
    unscored: str = ""
    """Why there is no answer; empty where there is one."""


_SCORES: dict[str, Any] = dict.fromkeys(DIMENSIONS, (float | None, Field(default=None, ge=0, le=100)))
Scores = create_model("Scores", __base__=Record, **_SCORES)
"""A score (0-100) of a meme on each of the `DIMENSIONS`."""


class Rating(Scores):
    """A judge's scores of one placed meme, or the reason why there are none."""

    dialogue_id: Text
    turn: int
    strategy: Text
    meme_id: Text
    judge: Text
    judge_unit: Literal["chat", "dialogue", "meme"]
    """Of a `chat` all memes have its one score."""
    n_turns: int
    """Length of the dialogue, or of its prefix, that the judge saw."""
    overall: float | None = Field(default=None, ge=0, le=100)
    """Mean of the dimensions."""
    raw: float | None = None
    """The same before centring, where the judge is centred."""
    unscored: str = ""


class Consistency(Record):
    """50 (cos + 1) between a placed meme and a text (Eq. 26)."""

    dialogue_id: Text
    turn: int
    strategy: Text
    meme_id: Text
    scorer: Text
    text: Literal["u_t", "u_t+1", "shuffled"]
    score: float = Field(ge=0, le=100)


class Mark(Record):
    """What one marker says of a turn: whether one would send a meme there, and the memes that fit best.

    A marker reads u_1..u_{t-1} and the sheet of pictures and captions; no annotation, summary or score.
    """

    dialogue_id: Text
    turn: int = Field(ge=2)
    marker: Text
    send: bool
    best: list[str]
    """Ids of the memes that fit best, the best first; may be empty."""


class Grade(Record):
    """Graded relevance of one pooled meme at one turn, judged without knowing which system found it."""

    dialogue_id: Text
    turn: int = Field(ge=2)
    meme_id: Text
    grader: Text
    grade: int = Field(ge=0, le=2)
    """0: does not fit; 1: one could send it; 2: it lands."""


# --- What the `source` of a record means, in words: said wherever data are shown


_SOURCES = {
    "authored": "written by a large language model for this package, not by people and not by the pipeline",
    "drawn": "drawn for this package from OpenMoji pictures and an authored caption",
    "user image": "an image that the user of the pipeline supplied",
    "user dialogue": "a dialogue that the user of the pipeline supplied",
    "user news": "a news item that the user of the pipeline supplied",
    "computed": "computed by the pipeline",
}


def describe_source(source: str) -> str:
    """Say in words what a record's `source` means; any other value is a model's name and label."""
    name = source.removeprefix("model ").replace(" that saw the other questions of its queue@", ", name and ")
    return _SOURCES.get(source, f"generated by the model {name}".replace("the model a ", "a "))


# --- Template memes and what is said of them (2501.13851, Section 3)

Split = Literal["train", "validation"]


class TemplateMeme(Record):
    """One meme of a template, as ImgFlip575K records it; who made it is not kept."""

    meme_id: Text
    """Imgflip's id: the base name of the image's address."""
    template: Text
    """Name as in ImgFlip575K, for example `10-Guy`."""
    url: Text
    post: str = ""
    title: str = ""
    views: int = Field(0, ge=0)
    votes: int = Field(0)
    captions: list[str] = Field([])
    """Texts of the boxes, top to bottom as in the source."""
    split: Split | None = None

    @property
    def text(self) -> str:
        """All captions that are not blank, one a line: the embedded text of the record."""
        return "\n".join(stripped for caption in self.captions if (stripped := caption.strip()))


class MemeReading(Record):
    """What an annotator says of a template meme (Table 5): captions, devices, emotion."""

    meme_id: Text
    template: str = ""
    image_caption: str = ""
    """"Visual elaboration" of the prompts."""
    embedded_text: str = ""
    """"Detected text"."""
    meme_caption: str = ""
    """"Meaning of the meme"."""
    literary_devices: list[str] = Field([])
    emotion: str = ""
    prompt: str = ""
    """Name of the prompt file; empty where it is not known."""
    context: bool | None = None
    """Whether the template's "about" text was given; None: not known."""
    unscored: str = ""
    """Why there is no annotation; then the texts are empty."""

"""A corpus of German-like and English-like sentence pairs with gold alignments, from a small grammar; needs no file.

A sentence is drawn in both languages at once: every word is drawn with what it says, and words that say the same are
linked. About 240 German and 190 English words, 4 to 20 in a sentence; the languages differ in order, in words that are
several or none in the other, in inflection and in ambiguity. What is said makes no sense:

    die Frau sieht heute eine Haustür oft an .
    the woman often looks at a front door today .
    0-0 1-1 2-3 2-4 3-8 4-5 5-6 5-7 6-2 7-3 7-4 8-9
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import count
from random import Random
from typing import NamedTuple, TypeVar

from experiments.datasets.places import SPLITS
from experiments.datasets.text.parallel_text import ParallelText
from pyro_attention.analysis import Alignment

Choice = TypeVar("Choice")
Words = list[tuple[str, int]]  # words and what they say; words of the two languages that say the same are linked
NOTHING = 0  # what a word says that has no counterpart


# The words


class Noun(NamedTuple):
    """A noun: gender, singular and plural in German and English; English words are separated by underscores."""

    gender: str
    german: tuple[str, str]
    english: tuple[str, str]


class Verb(NamedTuple):
    """A verb, in German and then in English."""

    particle: str  # separable prefix, or ""
    infinitive: str  # without the particle; also the finite form of the plural
    finite: str  # third person singular, without the particle
    participle: str  # of the perfect
    auxiliary: tuple[str, str]  # of the perfect, singular and plural
    reflexive: bool  # whether it takes "sich", which English drops
    object: str  # "" for none, "acc" for a direct one, else its preposition
    base: str  # infinitive, also the finite form of the plural
    third: str  # third person singular
    past: str
    rest: tuple[str, ...]  # the word that goes with the verb, or none
    role: str  # of the rest: "particle" (behind a pronoun), "preposition" (for that of the German object) or "fixed"


def _nouns(table: str) -> tuple[Noun, ...]:
    rows = [line.split() for line in table.strip().splitlines()]
    return tuple(Noun(gender, (one, many), (first, second)) for gender, one, many, first, second in rows)


def _verbs(table: str) -> tuple[Verb, ...]:
    verbs = []
    for line in table.strip().splitlines():
        german, english = line.split("|")
        sich, particle, infinitive, finite, participle, kind = ("" if word == "-" else word for word in german.split())
        base, third, past, *rest = english.split()
        auxiliary = ("ist", "sind") if participle.startswith("*") else ("hat", "haben")
        role = {"~": "particle", "=": "preposition"}.get(rest[0][0] if rest else "", "fixed")
        forms = (particle, infinitive, finite, participle.lstrip("*"), auxiliary, bool(sich), kind)
        verbs.append(Verb(*forms, base, third, past, tuple(word.lstrip("~=") for word in rest), role))
    return tuple(verbs)


BEINGS = _nouns("""
m Hund Hunde dog dogs
m Mann Männer man men
m Lehrer Lehrer teacher teachers
m Arzt Ärzte doctor doctors
m Freund Freunde friend friends
m Polizeihund Polizeihunde police_dog police_dogs
m Klavierlehrer Klavierlehrer piano_teacher piano_teachers
f Frau Frauen woman women
f Katze Katzen cat cats
f Lehrerin Lehrerinnen teacher teachers
f Tante Tanten aunt aunts
n Kind Kinder child children
n Mädchen Mädchen girl girls
n Pferd Pferde horse horses
n Schulkind Schulkinder school_child school_children
""")
THINGS = _nouns("""
m Apfel Äpfel apple apples
m Brief Briefe letter letters
m Tisch Tische table tables
m Schlüssel Schlüssel key keys
m Küchentisch Küchentische kitchen_table kitchen_tables
m Autoschlüssel Autoschlüssel car_key car_keys
f Zeitung Zeitungen newspaper newspapers
f Lampe Lampen lamp lamps
f Blume Blumen flower flowers
f Haustür Haustüren front_door front_doors
f Tischlampe Tischlampen table_lamp table_lamps
n Buch Bücher book books
n Bild Bilder picture pictures
n Auto Autos car cars
n Bilderbuch Bilderbücher picture_book picture_books
""")
# Stems; the ending follows from article, case, gender and number.
ADJECTIVES = (
    *(("klein", "small"), ("groß", "big"), ("alt", "old"), ("jung", "young"), ("neu", "new"), ("rot", "red")),
    *(("schön", "beautiful"), ("freundlich", "friendly")),
)
# sich, particle, infinitive, finite, participle (* with "sein"), object | base, third person, past, rest (~ particle,
# = preposition of the object)
VERBS = _verbs("""
- - sehen sieht gesehen acc | see sees saw
- - kaufen kauft gekauft acc | buy buys bought
- - finden findet gefunden acc | find finds found
- - suchen sucht gesucht acc | look looks looked for
- - malen malt gemalt acc | paint paints painted
- - tragen trägt getragen acc | carry carries carried
- an rufen ruft angerufen acc | call calls called
- ab holen holt abgeholt acc | pick picks picked ~up
- mit nehmen nimmt mitgenommen acc | take takes took ~along
- an sehen sieht angesehen acc | look looks looked at
- weg geben gibt weggegeben acc | give gives gave ~away
- - warten wartet gewartet auf | wait waits waited =for
- - sprechen spricht gesprochen über | talk talks talked =about
sich - erinnern erinnert erinnert an | remember remembers remembered
sich - kümmern kümmert gekümmert um | look looks looked =after
- - schlafen schläft geschlafen - | sleep sleeps slept
- - lachen lacht gelacht - | laugh laughs laughed
- - arbeiten arbeitet gearbeitet - | work works worked
- auf stehen steht *aufgestanden - | get gets got up
- weg gehen geht *weggegangen - | leave leaves left
sich - setzen setzt gesetzt - | sit sits sat down
sich aus ruhen ruht ausgeruht - | rest rests rested
""")
# German singular and plural; English singular and plural, with "to" where it is a full verb ("does not have to")
MODALS = (
    (("kann", "können"), ("can", "can"), ""),
    (("soll", "sollen"), ("should", "should"), ""),
    (("muss", "müssen"), ("has", "have"), "to"),
    (("will", "wollen"), ("wants", "want"), "to"),
)
PLACES = (
    "im:1 Garten:2 | in:1 the:1 garden:2",
    "in:1 der:2 Stadt:3 | in:1 the:2 city:3",
    "auf:1 der:2 Bank:3 | on:1 the:2 bench:3",
    "in:1 der:2 Bank:3 | in:1 the:2 bank:3",
    "am:1 Fenster:2 | at:1 the:1 window:2",
    "vor:1 dem:2 Haus:3 | in:1 front:1 of:1 the:2 house:3",
    "am:1 Bahnhof:2 | at:1 the:1 train:2 station:2",
    "zu:1 Hause:2 | at:1 home:2",
    "in:1 der Schule:2 | at:1 school:2",
)
# Adverbs of time by the tense they ask for; "any" goes with each.
TIMES = {
    "any": (
        "heute:1 | today:1",
        "am:1 Abend:2 | in:1 the:1 evening:2",
        "nachts:1 | at:1 night:1",
        "jeden:1 Tag:2 | every:1 day:2",
    ),
    "past": ("gestern:1 | yesterday:1", "letzte:1 Woche:2 | last:1 week:2"),
    "future": ("morgen:1 | tomorrow:1", "bald:1 | soon:1"),
}
QUANTIFIERS = ("viele:1 | many:1", "zwei:1 | two:1")
# Adverbs that English puts in front of the verb.
MANNERS = ("oft:1 | often:1", "immer:1 noch:1 | still:1", "schon:1 | already:1", "manchmal:1 | sometimes:1")


# The grammar

# By gender ("p" for plural), nominative and accusative.
ARTICLES = {
    "the": {"m": ("der", "den"), "f": ("die", "die"), "n": ("das", "das"), "p": ("die", "die")},
    "a": {"m": ("ein", "einen"), "f": ("eine", "eine"), "n": ("ein", "ein")},
}
_ENDINGS = {
    "the": {"m": ("e", "en"), "f": ("e", "e"), "n": ("e", "e"), "p": ("en", "en")},
    "a": {"m": ("er", "en"), "f": ("e", "e"), "n": ("es", "es"), "p": ("e", "e")},
}
_PRONOUNS = {
    "m": (("er", "ihn"), ("he", "him")),
    "f": (("sie", "sie"), ("she", "her")),
    "n": (("es", "es"), ("it", "it")),
    "p": (("sie", "sie"), ("they", "them")),
}
_OWNERS = [noun for noun in BEINGS if noun.gender == "f"]  # whose genitive is simple
_MODES = ("present", "present", "present", "past", "past", "modal", "modal", "future", "gern")


@dataclass
class Phrase:
    """A part of a sentence in both languages; `gender` is "m", "f", "n", or "p" for plural."""

    german: Words
    english: Words
    gender: str = ""
    pronoun: bool = False


class Grammar:
    """Draws phrases; of `Random` it uses `random()` only, which is the same in every release of Python."""

    def __init__(self, seed: str) -> None:
        self.random = Random(seed).random
        self._meanings = count(1)

    def new(self) -> int:
        """Return something to say that nothing else says."""
        return next(self._meanings)

    def pick(self, options: Sequence[Choice]) -> Choice:
        """Return one of the options, all equally probable."""
        return options[int(self.random() * len(options))]

    def fixed(self, line: str) -> Phrase:
        """Return a phrase of the lexicon, whose words are linked by numbers."""
        sides = [[word.partition(":")[::2] for word in side.split()] for side in line.split("|")]
        links = sorted({link for side in sides for _, link in side} - {""})
        meanings = {link: self.new() for link in links} | {"": NOTHING}
        german, english = ([(word, meanings[link]) for word, link in side] for side in sides)
        return Phrase(german, english)

    def maybe(self, probability: float, options: Sequence[str]) -> Phrase:
        """Return one of the phrases of the lexicon, or an empty one."""
        return self.fixed(self.pick(options)) if self.random() < probability else Phrase([], [])

    def noun_phrase(self, case: int, nouns: Sequence[Noun], *, pronouns: bool = True) -> Phrase:
        """Draw a noun phrase; case 0 is the nominative, 1 the accusative."""
        if pronouns and self.random() < 0.15:
            gender, says = self.pick("mfnp"), self.new()
            forms = [(side[case], says) for side in _PRONOUNS[gender]]
            return Phrase(forms[:1], forms[1:], gender, pronoun=True)
        noun, number = self.pick(nouns), int(self.random() < 0.25)
        gender = "p" if number else noun.gender
        article = "the" if self.random() < 0.6 else "a"
        phrase = self._head(noun, number, _ENDINGS[article][gender][case])
        phrase.gender = gender
        if article == "a" and number:
            quantity = self.maybe(0.5, QUANTIFIERS)
            return Phrase(quantity.german + phrase.german, quantity.english + phrase.english, gender)
        german, says = ARTICLES[article][gender][case], self.new()
        if article == "the" and self.random() < 0.15:
            # "das Buch der Frau", "the woman 's book": the article of the book has no counterpart.
            owner = self._head(self.pick(_OWNERS), 0, "en")
            phrase.german = [(german, NOTHING), *phrase.german, ("der", says), *owner.german]
            phrase.english = [("the", says), *owner.english, ("'s", NOTHING), *phrase.english]
            return phrase
        vowel = phrase.english[0][0].startswith(("a", "e", "i", "o", "u"))
        phrase.german.insert(0, (german, says))
        phrase.english.insert(0, ("an" if article == "a" and vowel else article, says))
        return phrase

    def _head(self, noun: Noun, number: int, ending: str) -> Phrase:
        """A noun, perhaps with an adjective of this ending in front of it."""
        says = self.new()
        phrase = Phrase([(noun.german[number], says)], [(word, says) for word in noun.english[number].split("_")])
        if self.random() < 0.35:
            says, (stem, english) = self.new(), self.pick(ADJECTIVES)
            phrase.german.insert(0, (stem + ending, says))
            phrase.english.insert(0, (english, says))
        return phrase

    def _predicate(self, verb: Verb, says: int, mode: str, number: int, *, auxiliary: bool) -> tuple[Words, ...]:
        """The German finite form and end of the clause, the English auxiliary, there if `auxiliary`, and the rest."""
        finite: Words = [((verb.finite, verb.infinitive)[number], says)]
        final: Words = [(verb.particle, says)] if verb.particle else []
        base = (verb.base, says)
        lead, rest = ((verb.third, verb.base), says), list[tuple[str, int]]()
        if mode == "past":
            # "hat ... gesehen" is "saw", but "did ... see" where an auxiliary is needed.
            tense = self.new() if auxiliary else says
            finite, final = [(verb.auxiliary[number], tense)], [(verb.participle, says)]
            if auxiliary:
                return finite, final, [("did", tense)], [base]
            return finite, final, [], [(verb.past, says)]
        if mode == "future":
            going = [("going", NOTHING), ("to", NOTHING), base]
            return finite, final, [(("is", "are")[number], NOTHING)], going
        if mode == "modal":
            modal, (german, english, to) = self.new(), self.pick(MODALS)
            finite, final = [(german[number], modal)], [(verb.particle + verb.infinitive, says)]
            if not to:
                return finite, final, [(english[number], modal)], [base]
            lead, rest = (english, modal), [(to, modal), base]
        if mode == "gern":
            like = self.new()
            final = [("gern", like), *final]
            lead, rest = (("likes", "like"), like), [("to", like), base]
        if auxiliary:
            return finite, final, [(("does", "do")[number], NOTHING)], [(lead[0][1], lead[1]), *rest]
        return finite, final, [], [(lead[0][number], lead[1]), *rest]

    def _object(self, verb: Verb, says: int) -> tuple[Phrase, Phrase]:
        """The object without and with preposition, one of them empty; in English with what follows the verb."""
        rest: Words = [(word, says) for word in verb.rest]
        if not verb.object:
            return Phrase([], []), Phrase([], rest)
        if verb.object == "acc":
            phrase = self.noun_phrase(1, BEINGS + THINGS)
            behind = verb.role == "particle" and phrase.pronoun  # "picks up the dog", "picks him up"
            phrase.english = phrase.english + rest if behind else rest + phrase.english
            return phrase, Phrase([], [])
        phrase, linked = self.noun_phrase(1, BEINGS), self.new() if verb.role == "preposition" else NOTHING
        english = [(word, linked) for word in verb.rest]
        return Phrase([], []), Phrase([(verb.object, linked), *phrase.german], english + phrase.english)

    def clause(self, order: str, subject: Phrase | None = None) -> Phrase:
        """Draw a clause without punctuation, and its subject if there is none.

        The order is that of the German: "main", "question", "last" (verb at the end) or "after" (behind another).
        """
        subject = subject or self.noun_phrase(0, BEINGS)
        verb, mode, says, asked = self.pick(VERBS), self.pick(_MODES), self.new(), order == "question"
        plain = mode == "gern"  # with neither negation nor manner
        negation = self.maybe(0.0 if plain else 0.2, ["nicht:1 | not:1"])
        manner = self.maybe(0.0 if plain else 0.2, MANNERS)
        place = self.maybe(0.3, PLACES)
        # A German verb without auxiliary is about the future when the time is.
        times = TIMES[mode] if mode == "future" else TIMES["any"] + TIMES.get(mode, ())
        time = self.maybe(1.0 if mode == "future" else 0.4, times)
        plural, helped = int(subject.gender == "p"), asked or bool(negation.german)
        finite, final, auxiliary, rest = self._predicate(verb, says, mode, plural, auxiliary=helped)
        direct, other = self._object(verb, says)

        fronted = Phrase([], [])
        if order == "main" and time.german and self.random() < 0.5:
            fronted, time = time, fronted
        middle = [*time.german, *direct.german, *manner.german, *negation.german, *other.german, *place.german]
        reflexive: Words = [("sich", NOTHING)] if verb.reflexive else []
        if order == "last":
            german = [*subject.german, *reflexive, *middle, *_joined(final, finite, verb.particle)]
        elif order == "main" and not fronted.german:
            german = [*subject.german, *finite, *reflexive, *middle, *final]
        else:
            behind = subject.german + reflexive if subject.pronoun else reflexive + subject.german
            german = [*fronted.german, *finite, *behind, *middle, *final]
        start = auxiliary + subject.english if asked else subject.english + auxiliary
        english = [*fronted.english, *start, *negation.english, *manner.english, *rest]
        english += [*direct.english, *other.english, *place.english, *time.english]
        return Phrase(german, english)


def _joined(final: Words, finite: Words, particle: str) -> Words:
    """The end of a verb-final clause, where a particle and its verb are one word."""
    if particle and final[-1][0] == particle:
        return [*final[:-1], (particle + finite[0][0], finite[0][1])]
    return final + finite


# Sentences

_SHORTEST, _LONGEST = 4, 20  # words of a sentence, on either side
_CONJUNCTIONS = (("weil", "because"), ("obwohl", "although"), ("wenn", "if"))
_SAYING = ((("glaubt", "glauben"), ("thinks", "think")), (("sagt", "sagen"), ("says", "say")))


def toy_translation(seed: int = 0, *, train: int = 4000, val: int = 500, test: int = 500) -> dict[str, ParallelText]:
    """Draw the corpus.

    No sentence of either language is there twice, in one split or in two. The test split depends on the seed and its
    size only; of two sizes the smaller is the beginning of the larger. All links of the gold alignments are sure.
    """
    seen: set[str] = set()
    texts = {}
    for split, size in {"test": test, "val": val, "train": train}.items():
        grammar, rows = Grammar(f"{seed} {split}"), list[tuple[str, str, Alignment]]()
        while len(rows) < size:
            row = _pair(_sentence(grammar))
            # The languages share no sentence, so one set does for both.
            if row is not None and not {*row[:2]} & seen:
                seen.update(row[:2])
                rows.append(row)
        source, target, alignments = map(list, zip(*rows, strict=True))
        texts[split] = ParallelText(source, target, "toy", ("de", "en"), alignments)
    return {split: texts[split] for split in SPLITS}


def _pair(sentence: Phrase) -> tuple[str, str, Alignment] | None:
    """Both sides as text, and their links; None unless both have a fitting length."""
    sides = sentence.german, sentence.english
    if not all(_SHORTEST <= len(side) <= _LONGEST for side in sides):
        return None
    links = {
        (i, j)
        for i, (_, source) in enumerate(sentence.german)
        for j, (_, target) in enumerate(sentence.english)
        if source == target != NOTHING
    }
    source, target = (" ".join(word for word, _ in side) for side in sides)
    return source, target, Alignment(frozenset(links), *map(len, sides))


def _sentence(grammar: Grammar) -> Phrase:
    kind = grammar.random()
    if kind < 0.2:
        return _ended(grammar, grammar.clause("question"), "?")
    if kind < 0.5:
        sentence = grammar.clause("main")
    elif kind < 0.65:
        sentence = _behind(grammar, grammar.clause("main"), *grammar.pick(_CONJUNCTIONS))
    elif kind < 0.75:
        sentence = _reported(grammar)
    elif kind < 0.87:
        sentence = _in_front(grammar, *grammar.pick(_CONJUNCTIONS))
    else:
        sentence = grammar.clause("main", _relative(grammar))
    return _ended(grammar, sentence, ".")


def _ended(grammar: Grammar, sentence: Phrase, mark: str) -> Phrase:
    end = (mark, grammar.new())
    return Phrase([*sentence.german, end], [*sentence.english, end])


def _behind(grammar: Grammar, main: Phrase, german: str, english: str) -> Phrase:
    """A main clause and a subordinate one: "..., weil ...", "... because ..."."""
    says, clause = grammar.new(), grammar.clause("last")
    return Phrase(
        [*main.german, (",", NOTHING), (german, says), *clause.german],
        [*main.english, (english, says), *clause.english],
    )


def _reported(grammar: Grammar) -> Phrase:
    """Somebody thinks or says that something is so."""
    subject, says, (german, english) = grammar.noun_phrase(0, BEINGS), grammar.new(), grammar.pick(_SAYING)
    number = int(subject.gender == "p")
    main = Phrase([*subject.german, (german[number], says)], [*subject.english, (english[number], says)])
    return _behind(grammar, main, "dass", "that")


def _in_front(grammar: Grammar, german: str, english: str) -> Phrase:
    """A subordinate clause and a main one, whose German verb then comes first: "wenn ..., lacht ..."."""
    says, comma = grammar.new(), (",", grammar.new())
    clause, main = grammar.clause("last"), grammar.clause("after")
    return Phrase(
        [(german, says), *clause.german, comma, *main.german], [(english, says), *clause.english, comma, *main.english]
    )


def _relative(grammar: Grammar) -> Phrase:
    """A noun phrase with a relative clause: "der Mann , der ... ruft ,", "the man who calls ..."."""
    phrase = grammar.noun_phrase(0, BEINGS, pronouns=False)
    who, comma = grammar.new(), (",", NOTHING)
    pronoun = ARTICLES["the"][phrase.gender][0]
    clause = grammar.clause("last", Phrase([(pronoun, who)], [("who", who)], phrase.gender, pronoun=True))
    german: Words = [*phrase.german, comma, *clause.german, comma]
    return Phrase(german, phrase.english + clause.english, phrase.gender)

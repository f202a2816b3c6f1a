"""Phrases and clauses of the toy language pair, drawn in both languages at once; see toy_translation.py."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import count
from random import Random
from typing import TypeVar

from experiments.datasets.text import toy_lexicon as lexicon
from experiments.datasets.text.toy_lexicon import BEINGS, Noun, Verb, fixed_phrase

__all__ = ["ARTICLES", "NOTHING", "Grammar", "Phrase", "Words"]

Choice = TypeVar("Choice")
Words = list[tuple[str, int]]  # words and what they say; words of the two languages that say the same are linked
NOTHING = 0  # what a word says that has no counterpart
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
        """Return a phrase of the lexicon."""
        sides = fixed_phrase(line)
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
            quantity = self.maybe(0.5, lexicon.QUANTIFIERS)
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
            says, (stem, english) = self.new(), self.pick(lexicon.ADJECTIVES)
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
            modal, (german, english, to) = self.new(), self.pick(lexicon.MODALS)
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
            phrase = self.noun_phrase(1, BEINGS + lexicon.THINGS)
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
        verb, mode, says, asked = self.pick(lexicon.VERBS), self.pick(_MODES), self.new(), order == "question"
        plain = mode == "gern"  # with neither negation nor manner
        negation = self.maybe(0.0 if plain else 0.2, ["nicht:1 | not:1"])
        manner = self.maybe(0.0 if plain else 0.2, lexicon.MANNERS)
        place = self.maybe(0.3, lexicon.PLACES)
        # A German verb without auxiliary is about the future when the time is.
        times = lexicon.TIMES[mode] if mode == "future" else lexicon.TIMES["any"] + lexicon.TIMES.get(mode, ())
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

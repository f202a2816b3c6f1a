"""A corpus of German-like and English-like sentence pairs with gold alignments, from a small grammar; needs no file.

A sentence is drawn in both languages at once: every word is drawn with what it says, and words that say the same are
linked. A sentence is a main clause, a question, a main clause with a subordinate one behind or in front of it, a report
("glaubt , dass") or a main clause whose subject has a relative clause. What differs between the languages:

    order       the German verb is second, in questions first, in subordinate clauses last; participles and infinitives
                are last in a main clause; time goes before the object and not to the end; "das Buch der Frau" is "the
                woman 's book"
    one - many  compounds ("Haustür", "front door"), "sucht" - "looks for", "muss" - "has to", "gern" - "likes to", "im"
                - "in the", "vor" - "in front of"
    many - one  separable verbs ("ruft ... an", "calls"; joined where the verb is last, "anruft"), the perfect ("hat ...
                gesehen", "saw"), "immer noch" - "still"
    dropped     "sich", some prepositions and articles ("erinnert sich an", "remembers"; "in der Schule", "at school"),
                commas
    inserted    do-support ("does not see"), "is going to" where only a time tells the future, "'s"
    inflection  articles and adjectives by gender, case and number; the verb by number
    ambiguity   "sie" is "she", "her", "they" or "them", "Bank" is "bank" or "bench" by its preposition, "Lehrer" and
                "Lehrerin" are "teacher", "der" is an article of several cases or a relative pronoun

About 240 German and 190 English words, 4 to 20 in a sentence. What is said makes no sense. Three pairs, with their
links (German word - English word, counted from 0; words in no link have no counterpart):

    die Frau sieht heute eine Haustür oft an .
    the woman often looks at a front door today .
    0-0 1-1 2-3 2-4 3-8 4-5 5-6 5-7 6-2 7-3 7-4 8-9

    obwohl die Lehrerin sich gesetzt hat , lacht die Lehrerin .
    although the teacher sat down , the teacher laughs .
    0-0 1-1 2-2 4-3 4-4 5-3 5-4 6-5 7-8 8-6 9-7 10-9

    der Freund der Tante sagt , dass die Hunde geschlafen haben .
    the aunt 's friend says that the dogs slept .
    1-3 2-0 3-1 4-4 6-5 7-6 8-7 9-8 10-8 11-9
"""

from experiments.datasets.places import SPLITS
from experiments.datasets.text.parallel_text import ParallelText
from experiments.datasets.text.toy_grammar import ARTICLES, NOTHING, Grammar, Phrase, Words
from experiments.datasets.text.toy_lexicon import BEINGS
from pyro_attention.analysis.alignments.weights import Alignment

__all__ = ["toy_translation"]

_SHORTEST, _LONGEST = 4, 20  # words of a sentence, on either side
_PATIENCE = 10_000  # draws without a new sentence that show the grammar to be used up
_CONJUNCTIONS = (("weil", "because"), ("obwohl", "although"), ("wenn", "if"))
_SAYING = ((("glaubt", "glauben"), ("thinks", "think")), (("sagt", "sagen"), ("says", "say")))


def toy_translation(seed: int = 0, *, train: int = 4000, val: int = 500, test: int = 500) -> dict[str, ParallelText]:
    """Draw the corpus.

    No sentence of either language is there twice, in one split or in two. The test split depends on the seed and its
    size only; of two sizes the smaller is the beginning of the larger. All links of the gold alignments are sure.

    Raises:
        ValueError: a split would be empty, or the grammar has not so many sentences.
    """
    sizes = {"test": test, "val": val, "train": train}
    seen: set[str] = set()
    texts = {}
    for split, size in sizes.items():
        if size < 1:
            raise ValueError(f"{split} is {size}; expected at least one pair")
        grammar, rows, failures = Grammar(f"{seed} {split}"), list[tuple[str, str, Alignment]](), 0
        while len(rows) < size:
            row = _pair(_sentence(grammar))
            # The languages share no sentence, so one set does for both.
            if row is None or row[0] in seen or row[1] in seen:
                failures += 1
                if failures > _PATIENCE:
                    raise ValueError(
                        f"{split} is {size}, but the grammar gives no new sentence after {len(rows)}; expected fewer"
                    )
                continue
            seen.update(row[:2])
            rows.append(row)
            failures = 0
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

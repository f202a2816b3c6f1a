"""Words of the toy language pair; see toy_translation.py for the grammar that they go into."""

from typing import NamedTuple

__all__ = [
    "ADJECTIVES",
    "BEINGS",
    "MANNERS",
    "MODALS",
    "PLACES",
    "QUANTIFIERS",
    "THINGS",
    "TIMES",
    "VERBS",
    "Noun",
    "Verb",
    "fixed_phrase",
]


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


def fixed_phrase(line: str) -> tuple[list[tuple[str, str]], list[tuple[str, str]]]:
    """Return German and English words with the number that links them, "" for none."""
    german, english = ([word.partition(":")[::2] for word in side.split()] for side in line.split("|"))
    return german, english


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
ADJECTIVES = tuple(
    zip(
        ["klein", "groß", "alt", "jung", "neu", "rot", "schön", "freundlich"],
        ["small", "big", "old", "young", "new", "red", "beautiful", "friendly"],
        strict=True,
    )
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

"""A story grammar: hero, wish, obstacle, help, end. It writes as many stories as a run needs, each told only once.

What it is for is coherence rather than wit: the hero and the thing stay through the story and the end comes back to
them, while names, things, places, helpers and the form of most sentences change from one story to the next, so that the
only way to predict them is to look back. Plots and their sentences are in `plots`, the words in `cast`.
"""

from __future__ import annotations

import argparse
import re
from dataclasses import dataclass
from random import Random

from zoo.tales.cast import ANIMALS, BOYS, FAMILY, FOODS, GIRLS, GROWN_UPS, PLACES, SPOTS, TRAITS, TREATS
from zoo.tales.plots import OPENINGS, PLOTS, Plot

CHOICE = re.compile(r"\[([^\[\]]*)\]")
SLOT = re.compile(r"\{(\w+)\}")
PRONOUNS = {"he": ("he", "him", "his", "himself"), "she": ("she", "her", "her", "herself")}
CONTRACTIONS = {"I will": "I'll", "It is": "It's", "I am": "I'm", "Let us": "Let's", "cannot": "can't"} | {
    f"{verb} not": f"{verb}n't" for verb in ("did", "do", "was", "could", "is", "are", "had", "were", "does")
}
FEMALE, MALE = (
    ("queen", "fairy", "old woman"),
    ("king", "wizard", "knight", "mailman", "fisherman", "policeman", "old man"),
)


@dataclass(frozen=True)
class Role:
    """One who acts: how they are introduced, called afterwards, spoken to, and their pronoun."""

    new: str
    known: str
    call: str
    he: str
    kind: str


class Casting:
    """Draws roles for one story; no name and no animal is drawn twice."""

    def __init__(self, random: Random) -> None:
        self.random = random
        self.used: set[str] = set()

    def fresh(self, words: tuple[str, ...]) -> str:
        """One of `words` that this story has not used."""
        word = self.random.choice([w for w in words if w not in self.used])
        self.used.add(word)
        return word

    def child(self, new: str) -> Role:
        """A child; `new` introduces it, with `kind` and `name` to be filled in."""
        he = self.random.choice(("he", "she"))
        name = self.fresh(BOYS if he == "he" else GIRLS)
        kind = "boy" if he == "he" else "girl"
        return Role(new.format(kind=kind, name=name), name, name, he, kind)

    def animal(self, trait: str, named: bool) -> Role:
        """An animal with a name of its own, or known by its kind."""
        he, kind = self.random.choice(("he", "she")), self.fresh(tuple(ANIMALS))
        if named:
            name = self.fresh(ANIMALS[kind] + (BOYS if he == "he" else GIRLS)[:40])
            return Role(f"a {trait} {kind} {self.random.choice(('named', 'called'))} {name}", name, name, he, kind)
        title = "Mr. " if he == "he" else "Mrs. "
        call = f"little {kind}" if trait == "little" else title + kind.capitalize()
        return Role(f"a {trait} {kind}", f"the {kind}", call, he, kind)

    def hero(self) -> Role:
        """A child in two stories of three, otherwise an animal."""
        trait = self.random.choice(TRAITS)
        if self.random.random() < 0.66:
            little = "little" if trait in ("little", "young", "small") else f"{trait} little"
            trait = self.random.choice(("little", "little", "young", little, trait))
            return self.child(f"a {trait} {{kind}} {self.random.choice(('named', 'named', 'called'))} {{name}}")
        named = self.random.random() < 0.6
        return self.animal(trait if named else "little", named)

    def helper(self, kinds: tuple[str, ...], hero: Role) -> Role:
        """Family, a grown-up with a trade, an animal or a friend of the hero's own sort."""
        kind, his = self.random.choice(kinds), PRONOUNS[hero.he][2]
        if kind == "family":
            name, word, he = self.random.choice(FAMILY)
            return Role(*((f"{his} {word}",) * 2 if self.random.random() < 0.6 else (name,) * 2), name, he, word)
        if kind == "grown-up":
            word = self.fresh(GROWN_UPS)
            he = "she" if word in FEMALE else "he" if word in MALE else self.random.choice(("he", "she"))
            trait = self.random.choice(("the", "the", "a kind", "a friendly", "a wise", "a nice"))
            return Role(f"{trait} {word}", f"the {word}", "sir" if he == "he" else "my lady", he, word)
        if kind == "friend":
            return self.friend(hero)
        return self.animal(
            self.random.choice(("old", "wise", "kind", "big", "friendly", "tall", "funny")), self.random.random() < 0.35
        )

    def friend(self, hero: Role) -> Role:
        """A friend of the hero's, known by name."""
        his = PRONOUNS[hero.he][2]
        return self.child(self.random.choice((f"{his} friend {{name}}", f"{his} best friend {{name}}")))

    def other(self, hero: Role) -> Role:
        """Another child or animal to meet."""
        if hero.kind in ("boy", "girl") and self.random.random() < 0.5:
            return self.child(self.random.choice(("a {kind} named {name}", "a little {kind} named {name}")))
        trait = self.random.choice(("small", "young", "lonely", "gray", "brown", "tiny", "shy", "little"))
        return self.animal(trait, self.random.random() < 0.4)


def slots(random: Random, plot: Plot) -> dict[str, list[str]]:
    """What each slot of a plot may be filled with; slots with several values vary from one mention to the next."""
    casting = Casting(random)
    hero = casting.hero()
    helper, other = casting.helper(plot.helpers, hero), casting.other(hero)
    he, him, his, himself = PRONOUNS[hero.he]
    thing, food = random.choice(plot.things), random.choice(FOODS)
    obj, adj, one = thing.name, random.choice(thing.adjectives), random.choice(thing.uses)
    treat, magic = random.choice(TREATS), random.choice(("fairy", "wizard", "witch", "genie", "magic fish"))
    places, spots = random.sample(PLACES, 2), random.sample(SPOTS, 3)
    return {
        "hero_new": [hero.new], "h": [hero.known], "call": [hero.call], "he": [he], "him": [him], "his": [his],
        "himself": [himself], "i_am": [f"I am {hero.call}." if hero.call == hero.known else f"I am a {hero.kind}."],
        **role_slots("f", helper), **role_slots("g", other), **role_slots("k", casting.friend(hero)),
        "obj": [obj], "adj": [adj], "a_obj": [f"a {adj} {obj}"], "a_full": [f"a {adj} {obj}"],
        "mine": [f"{his} {obj}", f"{his} {obj}", f"the {obj}", f"the {obj}", f"{his} {adj} {obj}", f"the {adj} {obj}"],
        "do": [do for do, _ in thing.uses], "did": [did for _, did in thing.uses], "do1": [one[0]], "did1": [one[1]],
        "a_food": [f"a {random.choice(food.adjectives)} {food.name}"],
        "place": [places[0][0]], "at_place": [places[0][1]], "place2": [places[1][0]], "at_place2": [places[1][1]],
        "treat": [treat], "a_treat": [treat if treat == "bread" else f"a {treat}"],
        "f_magic": [f"a {magic}"], "f_m": [f"the {magic}"], "ghimself": [PRONOUNS[other.he][3]],
        "spot": spots[:1], "spot2": spots[1:2], "spot3": spots[2:],
    }  # fmt: skip


def role_slots(letter: str, role: Role) -> dict[str, list[str]]:
    """The slots of the helper (f), the other one (g) or the friend (k)."""
    he, him, his, _ = PRONOUNS[role.he]
    words = {"": role.known, "_new": role.new, "_call": role.call, "he": he, "him": him, "his": his}
    return {letter + name: [word] for name, word in words.items()}


def choose(text: str, random: Random) -> str:
    """`text` with every `[one|other]` decided, innermost first."""
    while found := CHOICE.search(text):
        text = text[: found.start()] + random.choice(found[1].split("|")) + text[found.end() :]
    return text


def fill(text: str, values: dict[str, list[str]], random: Random) -> str:
    """`text` with every `{slot}` filled, with a capital where the slot has one."""

    def value(found: re.Match[str]) -> str:
        slot = found[1]
        word = random.choice(values[slot[0].lower() + slot[1:]])
        return word[0].upper() + word[1:] if slot[0].isupper() else word

    return SLOT.sub(value, text)


def polish(text: str) -> str:
    """Single spaces, none before a full stop, and "an" before a vowel."""
    text = re.sub(r" (?=[.,!?])", "", " ".join(text.split()))
    return re.sub(r"\b([Aa]) (?=[aeiou])", r"\1n ", text)


def vary(text: str, random: Random) -> str:
    """`text` as another hand might write it: with contractions, with curly quotation marks."""
    if random.random() < 0.4:
        for long, short in CONTRACTIONS.items():
            text = text.replace(long, short)
    return re.sub(r'"([^"\n]*)"', "\u201c\\1\u201d", text) if random.random() < 0.12 else text


def tell(random: Random) -> str:
    """One story; paragraphs are lines."""
    plot = random.choice(PLOTS)
    return tell_plot(plot, slots(random, plot), random)


def tell_plot(plot: Plot, values: dict[str, list[str]], random: Random) -> str:
    """The story of `plot` with the cast in `values`."""
    openings = OPENINGS[plot.opening]
    opening = random.choice(openings).strip() + random.choice(("\n\n", " ")) if openings else ""
    told = fill(choose(opening + plot.body.strip(), random), values, random)
    paragraphs = [polish(paragraph) for paragraph in told.split("\n\n")]
    return vary("\n".join(paragraph[0].upper() + paragraph[1:] for paragraph in paragraphs), random)


def tell_many(count: int, seed: int) -> list[str]:
    """`count` stories, the same for the same seed."""
    random = Random(seed)
    return [tell(random) for _ in range(count)]


def main() -> None:
    """Print some stories."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("--count", type=int, default=5)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    print("\n\n".join(tell_many(args.count, args.seed)))


if __name__ == "__main__":
    main()

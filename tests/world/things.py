"""The entities of a world: their names, and the other forms of their names in texts."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from tests.world.dice import Dice
from tests.world.plan import WorldPlan
from tests.world.schema import ThingKind

SHARES: dict[ThingKind, float] = {
    "Person": 0.42,
    "Organization": 0.16,
    "Place": 0.12,
    "Product": 0.18,
    "Project": 0.12,
}
_FIRST = """
    Marcus Anna Robert Elena William Sofia Thomas Ingrid Samuel Priya Daniel Noor Benjamin Lucia Michael
    Katherine Nicholas Victoria Jonas Amara Felix Hana Oscar Leila Viktor Clara Mateo Greta Ivan Rosa Emil
    Tessa Rafael Olga Henrik Maya Stefan Naomi Pavel Judith Andre Salma Erik Bianca Tobias Yuki Gavin Zofia
""".split()
_NICK = {
    "Robert": "Bob",
    "William": "Bill",
    "Thomas": "Tom",
    "Samuel": "Sam",
    "Daniel": "Dan",
    "Benjamin": "Ben",
    "Michael": "Mike",
    "Katherine": "Kate",
    "Nicholas": "Nick",
    "Victoria": "Vicky",
}
_CALLED = """
    Momo Ziggy Buzz Coco Tiko Bibi Jojo Lulu Pim Fips Kiki Bobo Muck Dodo Nini Pepe Zuzu Fritzi Toto Wim
    Gigi Lolo Mimi Popo Sisi Titi Vivi Xixi Yoyo Zaza Bax Dex Fitz Gus Huck Jix Kip Lux Max Nix""".split()
_HEADS = (
    "Bal Cor Dan Eld Fer Gal Hol Ira Jor Kel Lor Mar Nor Oli Per Qui Ros Sam Tor Ulm Vel Wen Yar Zan".split()
)
_MIDDLES = "a be dri e fo gi ha ki li mo ne o pa ri sta to u va wi ze".split()
_TAILS = (
    "berg croft dale feld gard holm kin land mere ner olt pinski quist rath sen thal ues vic well zan".split()
)
_TRADES = "Systems Robotics Foods Logistics Textiles Energy Optics Software Bakeries Instruments".split()
_COMPASS = "Northern Southern Eastern Western Coastal Alpine Central Baltic".split()
_WORKS = "Bridge Harbour Steel Paper Grain Glass Timber Copper".split()
_UNIONS = "Works Company Alliance Trust Union Foundry".split()
_GOODS = "phone lamp kettle drill camera speaker tablet bicycle printer backpack".split()
_EFFORTS = "migration rollout audit redesign relocation inventory survey renovation".split()
_REPORTS = "sales hiring safety budget traffic".split()
_LEGAL = ("GmbH", "Ltd", "Inc", "AG")


@dataclass(frozen=True, slots=True, kw_only=True)
class WorldEntity:
    """One entity. aliases: (kind, surface).

    "first" is used only where the conversation has told who is meant, "called" and "married" only after a
    text has given them.
    """

    id: str
    kind: ThingKind
    name: str
    aliases: tuple[tuple[str, str], ...] = ()


def things_of(plan: WorldPlan, group: int) -> list[WorldEntity]:
    """Return the entities of one group, in a fixed order."""
    total = plan.entities // plan.groups
    counts = {kind: round(total * share) for kind, share in SHARES.items()}
    counts["Person"] += total - sum(counts.values())
    entities: list[WorldEntity] = []
    used_names: set[str] = set()
    for kind, count in counts.items():
        names = _names(plan, group, kind, used_names)
        for number in range(count):
            entities.append(WorldEntity(id=f"{kind.lower()}-{group}-{number}", kind=kind, name=next(names)))
    entities = _with_homonyms(plan, group, entities)
    return _with_aliases(plan, entities)


def _names(plan: WorldPlan, group: int, kind: ThingKind, used_names: set[str]) -> Iterator[str]:
    """Yield new names of the group, some of them similar to earlier names."""
    earlier: list[str] = []
    for number in range(1 << 30):
        dice = Dice(plan.seed, "name", group, kind, number)
        near = bool(earlier) and dice.flip(plan.lookalikes)
        name = _lookalike(dice, kind, dice.pick(earlier)) if near else _fresh(dice, kind)
        if name.casefold() not in used_names:
            used_names.add(name.casefold())
            earlier.append(name)
            yield name


def _fresh(dice: Dice, kind: ThingKind) -> str:
    match kind:
        case "Person":
            return f"{dice.pick(_FIRST)} {_word(dice)}"
        case "Organization" if dice.flip(0.4):
            return f"{dice.pick(_COMPASS)} {dice.pick(_WORKS)} {dice.pick(_UNIONS)}"
        case "Organization":
            return f"{_word(dice)} {dice.pick(_TRADES)}"
        case "Place":
            return _word(dice)
        case "Product":
            return f"{_word(dice)} {dice.pick(_GOODS)}"
        case "Project" if dice.flip(0.4):
            return f"{_word(dice)} Q{dice.between(1, 4)} {dice.pick(_REPORTS)} report"
    return f"{_word(dice)} {dice.pick(_EFFORTS)}"


def _lookalike(dice: Dice, kind: ThingKind, name: str) -> str:
    """Return a name that only a careful reader tells from `other`."""
    head, *words_after = name.split()
    match kind:
        case "Person":
            return f"{dice.pick(_FIRST)} {words_after[-1]}"
        case "Organization":
            return (
                f"{head} {dice.pick(_TRADES)}"
                if len(words_after) == 1
                else f"{head} {dice.pick(_WORKS)} {words_after[-1]}"
            )
        case "Place":
            return f"New {head}"
        case "Product":
            return f"{name} case" if dice.flip(0.5) else f"{head} {dice.pick(_GOODS)}"
        case "Project" if words_after[-1] == "report":
            return f"{head} Q{dice.between(1, 4)} {words_after[-2]} report"
    return f"{head} {dice.pick(_EFFORTS)}"


def _word(dice: Dice) -> str:
    middle = dice.pick(_MIDDLES) if dice.flip(0.5) else ""
    return dice.pick(_HEADS) + middle + dice.pick(_TAILS)


def _with_homonyms(plan: WorldPlan, group: int, entities: list[WorldEntity]) -> list[WorldEntity]:
    people = [t for t in entities if t.kind == "Person"]
    shared_names: dict[str, str] = {}
    for number, person in enumerate(people[1:], start=1):
        dice = Dice(plan.seed, "homonym", group, number)
        if dice.flip(plan.homonyms):
            shared_names[person.id] = people[dice.number_below(number)].name
    return [replace(t, name=shared_names[t.id]) if t.id in shared_names else t for t in entities]


# ------------------------------------------------------------------------------------ aliases


def _with_aliases(plan: WorldPlan, entities: list[WorldEntity]) -> list[WorldEntity]:
    """Give each entity the unambiguous forms of its name; a first name alone is ambiguous."""
    forms = {t.id: _forms(plan, t) for t in entities}
    bearers: dict[str, set[str]] = {}
    for entity in entities:
        for surface in (entity.name, *(s for kind, s in forms[entity.id] if kind != "first")):
            bearers.setdefault(surface.casefold(), set()).add(entity.name)
    shorts: dict[str, set[str]] = {}
    for entity in entities:
        if entity.kind == "Person":
            first, last = entity.name.split()
            shorts.setdefault(f"{first[0]} {last}", set()).add(entity.name)

    def clear(entity: WorldEntity, kind: str, surface: str) -> bool:
        if kind in {"initial", "nickname"}:
            first, last = entity.name.split()
            if any(len(shorts.get(f"{letter} {last}", ())) > 1 for letter in (first[0], surface[0])):
                return False
        return kind == "first" or len(bearers[surface.casefold()]) == 1

    return [replace(t, aliases=tuple(form for form in forms[t.id] if clear(t, *form))) for t in entities]


def _forms(plan: WorldPlan, entity: WorldEntity) -> list[tuple[str, str]]:
    dice = Dice(plan.seed, "told", entity.id)
    forms = _plain_forms(plan, entity)
    if entity.kind == "Person" and dice.flip(plan.nicknames):
        number = int(entity.id.rpartition("-")[2])
        called = f"{_CALLED[number % len(_CALLED)]}{'y' * (number // len(_CALLED))}"
        married = f"{entity.name.split()[0]} {_word(dice)}"
        forms += [("called", called), ("called", called)] if dice.flip(0.5) else [("married", married)] * 2
    if entity.kind != "Person" and dice.flip(plan.tickers):
        forms += [("ticker", _ticker(dice, entity.name))] * 2
    return forms


def _ticker(dice: Dice, name: str) -> str:
    """Return a code: "TH-ER", "RR-NG" or "TR" of two words, three or four letters of one."""
    words = ["".join(letter for letter in word.upper() if letter.isalpha()) for word in name.split()]
    if len(words) == 1:
        word = words[0]
        return word[0] + "".join(word[place] for place in sorted({2, len(word) // 2, len(word) - 1}))
    parts = [f"{word[0]}{dice.pick(word[1:] or ' ')}".strip() for word in words]
    return "-".join(parts) if dice.flip(0.5) else "".join(word[0] for word in words)


def _plain_forms(plan: WorldPlan, entity: WorldEntity) -> list[tuple[str, str]]:
    head, *words_after = entity.name.split()
    lower = ("case", entity.name.casefold())
    match entity.kind:
        case "Person":
            forms = [("initial", f"{head[0]}. {words_after[0]}"), ("first", head), ("first", head)]
            forms += [("inverted", f"{words_after[0]}, {head}"), lower]
            return forms + ([("nickname", f"{_NICK[head]} {words_after[0]}")] if head in _NICK else [])
        case "Organization":
            legal = Dice(plan.seed, "legal", entity.name).pick(_LEGAL)
            forms = [("legal", f"{entity.name} {legal}"), lower]
            short = "".join(word[0] for word in entity.name.split())
            return forms + ([("acronym", short), ("acronym", short)] if len(words_after) == 2 else [])
        case "Product" if len(words_after) == 1:
            return [("turned", f"{words_after[0]} from {head}"), lower, ("case", entity.name.upper())]
        case "Project" if words_after[-1] == "report":
            return [lower, ("turned", f"{head} {' '.join(words_after[1:])} {words_after[0]}")]
        case "Place":
            return [("case", entity.name.upper()), lower]
    return [lower, ("case", entity.name.upper())]

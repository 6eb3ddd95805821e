"""The parts of a question: words, phrases, codes, speakers, topic and dates. It is Wednesday, 2024-06-12."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kgray.domain.times import parse, show
from kgray.language.dates import mentioned
from kgray.language.words import MAX_QUERY_WORDS, language_of, languages, plain_words, words
from kgray.search.query import Question, Speakers
from kgray.search.query import read_question as read
from tests.tries import tries

CLOCK = parse("2024-06-12T10:00:00Z")[0]
SPEAKERS = ("Caroline", "Anna Weber", "Dr. Bob Smith", "user", "assistant", "李娜", "Anna-Lena Koch", "Will")


def ask(text: str, speakers=SPEAKERS) -> Question:
    return read(text, speakers=Speakers(speakers), clock=CLOCK)


def spans_of(question: Question) -> list[str]:
    return [f"{str(show(start))[:10]} {str(show(end))[:10]}" for start, end in question.spans]


# question | content words | speakers | dates: "from to" of each span; MAY: the Mays of the last five years
MAY = ", ".join(f"{year}-05-01 {year}-06-01" for year in range(2024, 2019, -1))
FEBRUARY = ", ".join(f"{year}-02-09 {year}-02-10" for year in range(2024, 2019, -1))
TABLE = """
en
What did Caroline do last week? | caroline last week | Caroline | 2024-06-03 2024-06-10
When did Anna's dog die in May? | anna dog die May | Anna Weber | MAY
Where was Anna Weber on 7 May 2023? | anna weber 7 may 2023 | Anna Weber | 2023-05-07 2023-05-08
what happened on 2023-05-07 | happened 2023 05 07 | | 2023-05-07 2023-05-08
What did Bob say yesterday? | bob say yesterday | Dr. Bob Smith | 2024-06-11 2024-06-12
Did BOB SMITH call in May 2023? | bob smith call may 2023 | Dr. Bob Smith | 2023-05-01 2023-06-01
How many cats does the assistant have? | cats assistant | assistant |
Who lives in Carolines? | lives carolines | |
What did anna-lena buy? | anna lena buy | Anna-Lena Koch |
Where will he go tomorrow? | tomorrow | | 2024-06-13 2024-06-14
Where did Will go this year? | will year | Will | 2024-01-01 2025-01-01
What changed three days ago? | changed three days | | 2024-06-09 2024-06-10
What changed two weeks ago? | changed two weeks | | 2024-05-27 2024-06-03
Which job since March 2024? | job march 2024 | | 2024-03-01 2024-06-12
Jobs from 2021 to 2023 | jobs 2021 2023 | | 2021-01-01 2024-01-01
Where was she last summer? | last summer | | 2023-06-01 2023-09-01
Where was she in winter 2022? | winter 2022 | | 2022-12-01 2023-03-01
What fell last Monday? | fell last monday | | 2024-06-10 2024-06-11
The party last weekend | party last weekend | | 2024-06-03 2024-06-10
What did I eat last night? | eat last night | | 2024-06-11 2024-06-12
Is the WHO in the US? | who us | |
What is in invoice RR-NG 4711? | invoice rr ng 4711 | |
who are you | who are you | |
I may die | die | |
May I come in? | come | |
What happened on 31.12.2023? | happened 31 12 2023 | | 2023-12-31 2024-01-01
Is 03/04/2025 ambiguous? | 03 04 2025 ambiguous | |
What happened on 2023-13-45? | happened 2023 13 45 | |
de
Was hat Anna letzte Woche gemacht? | anna letzte woche gemacht | Anna Weber | 2024-06-03 2024-06-10
Wo war Caroline am 7. Mai 2023? | caroline 7 mai 2023 | Caroline | 2023-05-07 2023-05-08
Was geschah im Mai mit Annas Hund? | geschah mai annas hund | Anna Weber | MAY
Was geschah vor drei Tagen? | geschah drei tagen | | 2024-06-09 2024-06-10
Wer kam gestern zu Carolines Fest? | kam gestern carolines fest | Caroline | 2024-06-11 2024-06-12
Warum will sie so was mit ihm? | warum will sie so was mit ihm | |
Wo war sie letzten Montag? | letzten montag | | 2024-06-10 2024-06-11
Wie heißt die Katze von Bob? | heißt katze bob | Dr. Bob Smith |
Besuch in Rom letztes Jahr | besuch rom letztes jahr | | 2023-01-01 2024-01-01
Was steht im Vertrag von 2019? | steht vertrag 2019 | | 2019-01-01 2020-01-01
fr
Qu'a fait Anna la semaine dernière ? | anna semaine dernière | Anna Weber | 2024-06-03 2024-06-10
Où était Caroline le 7 mai 2023 ? | caroline 7 mai 2023 | Caroline | 2023-05-07 2023-05-08
Qui est venu hier chez nous ? | venu hier chez | | 2024-06-11 2024-06-12
Que s'est-il passé en mai ? | passé mai | | MAY
Comment s'appelle le chat de Bob ? | appelle chat bob | Dr. Bob Smith |
Où travaille Sam depuis il y a trois jours ? | travaille sam trois jours | | 2024-06-09 2024-06-10
es
¿Qué hizo Caroline la semana pasada? | caroline semana pasada | Caroline | 2024-06-03 2024-06-10
¿Dónde estaba Anna el 7 de mayo de 2023? | anna 7 mayo 2023 | Anna Weber | 2023-05-07 2023-05-08
¿Qué pasó hace dos semanas? | pasó dos semanas | | 2024-05-27 2024-06-03
¿Quién llamó ayer? | llamó ayer | | 2024-06-11 2024-06-12
¿Cómo se llama el perro de Bob? | llama perro bob | Dr. Bob Smith |
¿Qué vimos en el mar el año pasado? | vimos mar año pasado | | 2023-01-01 2024-01-01
zh
李娜上周做了什么？ | 李娜 | 李娜 | 2024-06-03 2024-06-10
2023年5月7日李娜在哪里？ | 2023 | 李娜 | 2023-05-07 2023-05-08
昨天谁来了？ | 昨天 | | 2024-06-11 2024-06-12
她的猫叫什么名字？ | 猫 | |
昨天李娜和Caroline说了什么 | caroline | Caroline, 李娜 | 2024-06-11 2024-06-12
她三天前做了什么？ | 三天 | | 2024-06-09 2024-06-10
2月9日发生了什么？ | 发生 | | FEBRUARY
ja
昨日、彼は何をしましたか | 昨日 | | 2024-06-11 2024-06-12
ar
ماذا فعلت كارولين الأسبوع الماضي؟ | كارولين الأسبوع الماضي | | 2024-06-03 2024-06-10
أين كانت في 7 مايو 2023؟ | 7 مايو 2023 | | 2023-05-07 2023-05-08
من هو مدير الشركة؟ | مدير الشركة | |
ru
Что делала Caroline на прошлой неделе? | caroline прошлой неделе | Caroline | 2024-06-03 2024-06-10
Где она была 7 мая 2023 года? | 7 мая 2023 года | | 2023-05-07 2023-05-08
Что было в мае? | мае | | MAY
Что было три дня назад? | дня назад | | 2024-06-09 2024-06-10
Кто звонил вчера? | звонил вчера | | 2024-06-11 2024-06-12
Как зовут её кота? | зовут кота | |
it
Cosa ha fatto Caroline il mese scorso? | caroline mese scorso | Caroline | 2024-05-01 2024-06-01
nl
Wat deed Anna drie dagen geleden? | anna drie dagen geleden | Anna Weber | 2024-06-09 2024-06-10
pl
Co zrobiła Caroline w zeszłym tygodniu? | caroline zeszłym tygodniu | Caroline | 2024-06-03 2024-06-10
tr
Anna geçen hafta ne yaptı? | anna geçen hafta | Anna Weber | 2024-06-03 2024-06-10
sv
Vad gjorde Anna förra veckan? | anna förra veckan | Anna Weber | 2024-06-03 2024-06-10
hi
पिछले साल वह कहाँ थी? | पिछले साल | | 2023-01-01 2024-01-01
"""


def rows() -> list:
    cases, language = [], ""
    for line in TABLE.strip().splitlines():
        cells = [cell.strip() for cell in line.split("|")]
        if len(cells) == 1:
            language = line
        else:
            cases.append(pytest.param(language, *cells, id=f"{language} {cells[0]}"))
    return cases


@pytest.mark.parametrize(("language", "text", "content", "speakers", "dates"), rows())
def test_a_question_is_split_into_words_speakers_and_dates(language, text, content, speakers, dates):
    question = ask(text)

    expected = set(words(content))
    if language in {"zh", "ja"}:  # important characters and pairs are among the words
        assert expected <= set(question.words)
    else:
        assert set(question.words) == expected
    assert ", ".join(question.speakers) == speakers
    assert ", ".join(spans_of(question)) == dates.replace("MAY", MAY).replace("FEBRUARY", FEBRUARY)


def test_words_are_distinct_and_in_order():
    assert ask("Tea or coffee, coffee or tea?").words == tuple(words("tea coffee"))


def test_the_words_of_a_question_are_limited():
    assert (
        len(read(" ".join(f"w{n}" for n in range(10_000)), speakers=Speakers(), clock=0).words)
        == MAX_QUERY_WORDS
    )


def test_stop_words_apply_only_in_their_language():
    assert ask("When did the hat die?").words == ("hat", "die")
    assert ask("Wann hat sie die Katze geholt?").words == tuple(words("katze geholt"))


@pytest.mark.parametrize(
    "text",
    [
        'Who wrote "the blue house"?',
        "Who wrote “the blue house”?",
        "Who wrote „the blue house“?",
        "Who wrote «the blue house»?",
        "Who wrote « the blue house »?",
        "Who wrote »the blue house«?",
        "Who wrote 「the blue house」?",
    ],
)
def test_text_in_quotation_marks_is_a_phrase(text):
    assert ask(text).phrases == (("the", "blue", "hous"),)


def test_a_chinese_phrase_is_its_characters():
    assert ask("谁写了「蓝房子」？").phrases == (("蓝", "房", "子"),)


def test_the_language_has_most_stop_words_or_is_english():
    texts = ("der die das", "was", "xyz", "", "où est-elle ?", "что где")

    assert [language_of(plain_words(text)) for text in texts] == ["de", "en", "en", "en", "fr", "ru"]


def test_iso_dates_are_found_in_every_language():
    for code in languages():
        assert mentioned("2023-05-07", CLOCK, code) == mentioned("2023-05-07", CLOCK)


def test_a_single_word_or_an_open_quotation_is_not_a_phrase():
    assert ask('Is "blue" 5" long, or "green?').phrases == ()


@pytest.mark.parametrize(
    ("text", "codes"),
    [
        ("Is GPT-4 better than gpt-5?", ("gpt", "4", "5")),
        ("What is RR-NG?", ("rr", "ng")),
        ("Who works at NASA in May?", ("nasa",)),
        ("WHERE IS THE CAT", ()),
        ("Where is the cat?", ()),
    ],
)
def test_codes_hold_a_digit_or_are_capitals(text, codes):
    assert ask(text).codes == codes


@pytest.mark.parametrize(
    ("text", "topic"),
    [
        ("What did Caroline's cat eat?", "What did cat eat?"),
        ("What did Caroline’s cat eat?", "What did cat eat?"),
        ("What does Dr. Bob Smith paint, Caroline?", "What does Dr. paint,?"),
        ("What did the user paint?", "What did the user paint?"),
        ("Who is Caroline?", "Who is Caroline?"),
        ("Caroline", "Caroline"),
        ("Was frisst denn Annas Hund?", "Was frisst denn Hund?"),
        ("李娜喜欢猫吗？", "喜欢猫吗？"),
        ("What do annas eat, Carolineum?", "What do annas eat, Carolineum?"),
    ],
)
def test_the_topic_is_the_question_without_names(text, topic):
    assert ask(text).topic == topic


@pytest.mark.parametrize(
    ("speakers", "text", "named"),
    [
        pytest.param(("Anna Weber", "Anna Koch"), "Where is Anna?", (), id="two begin with Anna"),
        pytest.param(("Anna Weber", "Anna Koch"), "Where is anna koch?", ("Anna Koch",), id="in full"),
        pytest.param(("Anna", "Anna Koch"), "Where is Anna?", ("Anna",), id="whole before first"),
        pytest.param(("anna", "Anna"), "Where is Anna?", ("Anna", "anna"), id="two spellings"),
        pytest.param(("A", "B"), "Did A tell a lie?", ("A",), id="a letter"),
        pytest.param(("user",), "Who misused superusers?", (), id="inside other words"),
        pytest.param(("user 1", "user 2"), "What did user 2 say?", ("user 2",), id="numbered roles"),
        pytest.param(("José Núñez",), "¿Dónde vive jose?", ("José Núñez",), id="without accents"),
        pytest.param(("Jose\u0301",), "¿Dónde vive José?", ("Jose\u0301",), id="decomposed"),
        pytest.param(("The Rock",), "What is the Rock?", ("The Rock",), id="an article"),
        pytest.param(("", " ", "?!"), "Who?! is it", (), id="no names at all"),
        pytest.param(("田中太郎",), "田中太郎は誰ですか", ("田中太郎",), id="Japanese"),
    ],
)
def test_a_first_name_refers_to_its_only_speaker(speakers, text, named):
    assert ask(text, speakers).speakers == named


@pytest.mark.parametrize(
    ("text", "is_person"),
    [
        ("Where does Bill live?", True), ("How high is the bill for electricity?", False),
        ("What did the user say?", False), ("User, what now?", False), ("what does carol like?", True),
        ("Who is Carol's brother?", True), ("Was hat Bill gesagt?", True), ("王芳喜欢什么?", True),
        ("What sells best?", False),
    ],
)  # fmt: skip
def test_only_a_name_written_as_a_name_refers_to_a_person(text, is_person):
    speakers = frozenset({"Bill", "user", "carol", "王芳"})
    assert read(text, speakers=Speakers(speakers), clock=CLOCK).names_person is is_person


def test_names_are_matched_among_a_thousand_speakers():
    """The collection may be a new list each time: derived values are cached by its content."""
    speakers = [f"Name{number} Family{number}" for number in range(1000)]

    assert ask("Where is name7?", speakers).speakers == ("Name7 Family7",)
    assert ask("Where are Name8 Family8 and Name9?", list(reversed(speakers))).speakers == (
        "Name8 Family8",
        "Name9 Family9",
    )


def test_a_future_month_or_day_refers_to_the_past():
    assert spans_of(ask("in December"))[0] == "2023-12-01 2024-01-01"
    assert spans_of(ask("on 29 February")) == ["2024-02-29 2024-03-01", "2020-02-29 2020-03-01"]


def test_dates_at_the_limits_of_the_calendar_do_not_fail():
    """Nothing is read beyond the years 1 to 9999, and nothing fails."""
    for moment in (parse("0001-01-01")[0], parse("9999-12-31")[0]):
        for text in ("last week", "in May", "last winter", "next year", "in December", "ten years ago"):
            read(text, speakers=Speakers(), clock=moment)


SAYS = st.one_of(
    st.text(max_size=200),
    st.lists(
        st.sampled_from(
            "what Caroline Anna's die letzte Woche 7. Mai 2023 2023-05-07 in May last summer “ 上周 李娜 "
            "неделе الماضي hace dos semanas 29 February 9999 0001 RR-NG ago 1 31.12.9999 winter".split()
        ),
        max_size=12,
    ).map(" ".join),
)


@settings(max_examples=tries(150), deadline=None)
@given(SAYS, st.lists(st.text(max_size=12), max_size=4), st.integers(-(10**16), 10**16))
def test_any_text_can_be_read_as_a_question(text, speakers, clock):
    question = read(text, speakers=Speakers({*speakers, "Caroline", "Anna Weber"}), clock=clock)

    assert question.text == text
    assert list(question.words) == list(dict.fromkeys(question.words))
    assert set(question.words) <= set(words(text))
    assert bool(question.words) == bool(words(text))
    assert set(question.codes) <= set(question.words)
    assert all(len(phrase) > 1 for phrase in question.phrases)
    assert question.topic.strip() or not text.strip()
    assert all(start < end for start, end in question.spans)


NAMED = st.sampled_from(
    ("Ann Lee", "ann lee", "Ann", "Ann Roe", "Dr. Ann Lee", "Bob", "李娜", "李", "Bob the Great", "user")
)


@settings(max_examples=tries(60), deadline=None)
@given(st.lists(NAMED, unique=True), st.randoms(use_true_random=False))
def test_the_speakers_of_a_name_do_not_depend_on_the_order_of_speakers(speakers, dice):
    shuffled = dice.sample(speakers, len(speakers))
    text = "Did Ann tell Ann Lee or Ann Roe that Bob met 李娜, the user?"

    assert ask(text, speakers) == ask(text, shuffled)
    assert set(ask(text, speakers).speakers) <= set(speakers)

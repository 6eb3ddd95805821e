"""Sentences without facts for the rules extractor: precision before recall.

Questions, conditions, hopes, plans, reports, quotations and pronouns; and sentences with a word that the
table of phrases does not know, because that word may turn the sentence into its opposite.
"""

from __future__ import annotations

import pytest

from tests.unit.rules_reader import triples_in

SENTENCES = r"""
Do you work at Acme?
Does Bob work at Acme? I forgot.
I work at Acme?
If I move to Paris, I will work at Beta.
When I move to Paris, I will work at Beta.
I might move to Paris.
I could join Beta.
I would like to work at Acme.
I'd like a coffee.
I want to join Beta.
I plan to move to Berlin.
I intend to leave Acme.
I hope to join Acme in May 2026.
I am thinking of moving to Paris.
I hope Bob joins Acme.
Maybe Bob works at Acme.
Perhaps I will join Acme on 1 May 2026.
I think Bob works at Acme.
Bob said he works at Acme.
Carol told me that Bob left Acme.
Rumour has it, Bob left Acme.
Apparently Bob works at Acme.
Bob apparently left Acme.
Bob probably works at Acme.
I almost joined Acme.
I nearly bought a printer.
I will join Beta.
I will leave Acme.
I am joining Beta.
I am leaving Acme.
Bob is moving to Berlin.
I will join Beta in 2019.
I joined Beta on 5 May 2030.
It looks like rain.
Nobody works at Acme.
Everyone works at Acme.
Somebody left Acme.
Neither Bob nor Carol works at Acme.
Either Bob or Carol works at Acme.
I work at Acme or Beta.
I work at Acme and Beta.
Bob lives in Rome and Oslo.
Bob has always lived in Rome.
I have worked at Acme.
I had worked at Acme.
"I work at Acme", said Bob.
"I work at Acme. I live in Rome. I like tea," said Bob.
'I work at Acme,' said Bob.
“I live in Rome. I work at Acme.”
> I work at Acme.
> Hi. I work at Acme. Bob left Beta.
Bob: I work at Acme.
Ann: Hi. I work at Acme now.
She replaced Lena.
He works at Beta.
They work at Acme.
It costs $199.
You work at Acme.
Your manager is Bob.
His manager is Bob.
I have a meeting at 5.
Bob is at home.
Bob is at Acme.
I am at Starbucks.
Our team uses Slack.
I know Python and Rust.
Bob is at the Hilton.
Bob left the room.
Bob left Rome.
Bob left Carol.
Bob left for Rome.
I quit smoking.
Bob is open to suggestions.
A friend of Bob works at Acme.
The brother of Bob works at Acme.
Bob's brother works at Acme.
My brother works at Acme.
Work at Acme!
I'll have been working at Acme.
I never left Acme.
I have never left Berlin.
Bob did not leave Acme.
Bob did not join Acme.
Bob has not joined Acme yet.
Bob hasn't left Acme yet.
Bob does not work at Acme.
I am not a designer.
I won't join Acme.
I can't join Acme.
Bob cannot work at Acme.
I never moved to Rome.
I joined Acme before 2018.
I joined Acme after May 2018.
I joined Acme last summer.
I joined Acme a while ago.
I joined Acme on 03/04/2025.
I joined Acme in 2025-13-45.
I joined Acme, but left after a week.
I joined Acme and quit.
I moved to Berlin and back.
I bought a printer and returned it.
I bought a printer for Bob.
I bought the printer that Bob sold.
I loved the concert.
I liked the film.
I used the printer.
I knew Bob Smith.
The desk cost $90.
The printer was broken.
The order was delayed.
I worked at Acme in 2015.
I worked at Acme from 2015 to 2010.
I never worked at Acme in 2019.
I used to work at Acme when I was young.
I worked at Acme until I moved.
I work at Acme until June 2020.
Unless Bob leaves Acme, I work at Beta.
Imagine that I work at Acme.
Suppose Bob lives in Rome.
In my dream I work at Acme.
I wish I lived in Berlin.
Had I joined Acme, I would live in Rome.
Once I retire, I live in Rome.
Bob pretends he lives in Rome.
Bob wants to know who works at Acme.
Bob asked whether I work at Acme.
I wonder if Bob works at Acme.
I doubt that Bob works at Acme.
I am reading that Bob works at Acme.
The man who works at Acme lives in Rome.
Bob works at Acme's competitor.
Bob works at a company near Acme.
Bob, who left Acme, is well.
Bob and Carol met. She lives in Rome.
My manager was replaced by Mirela.
We are based in Berlin.
Chidi is based in Lagos.
Chidi is ready.
Chidi is in Berlin.
I am in Berlin.
I'm staying in Rome.
I live in Berlin in my dreams, or so I thought.
Bob is the former manager.
Bob is a former designer at Acme.
Bob is the best designer.
Bob is our former manager.
My old manager is Bob.
My former manager is Bob.
My ex-wife is Carol.
Bob replaced Lena.
Bob is not my manager.
Is Bob my manager?
Bob was going to join Acme on 1 May 2026.
I was about to join Acme.
I should join Acme on 1 May 2026.
I must leave Acme on 1 May 2026.
I am supposed to join Acme on 1 May 2026.
Bob will probably join Acme on 1 May 2026.
Let's say I work at Acme.
Someone who lives in Rome likes tea.
I do not think Bob works at Acme.
I no longer think that Bob works at Acme.
The customer reported a bug.
I finished Ulysses.
Bob dropped Carol.
Bob lost his phone.
I like your idea.
I like it.
I love this.
I like my manager.
I hate that Bob left Acme.
I love that Bob lives in Rome.
I like to work at Acme.
I used to like to work at Acme.
Only Bob works at Acme in my story.
Joking: I work at Acme.
Just kidding, I work at Acme.
I work at Acme, just kidding.
Bob works at Acme (not really).
Bob works at Acme, not.
Bob works at Acme, I think.
Bob works at Acme, or Beta.
Bob works at Acme, maybe.
Bob works at Acme if Carol agrees.
Bob works at Acme unless Carol objects.
Bob works at Acme because he must.
The film is set in Rome.
I moved to tears.
I moved to Acme.
I moved to Beta from Acme.
I go to Rome.
I visit Rome.
I sell shoes.
I leave Acme.
I start at Acme.
Bob joins Acme.
That was wrong: Bob works at Acme.
It is not true that Bob does not work at Acme.
It is not true that Bob joined Acme.
Is it true that Bob works at Acme?
Thanks for telling me that Bob works at Acme.
Tell Bob that I work at Acme.
Please note: Bob works at Acme on Mondays?
A: I work at Acme. B: I work at Beta.
I don't always like coffee.
I don't like coffee in the morning.
I never used Slack at work.
I no longer work at Acme in Berlin.
It is wrong that Bob works at Acme.
It is not true that Bob works at Acme on Fridays.
The desk costs $90-100.
The desk costs about $90.
The desk costs $90 a day.
I later joined Acme.
Bob never worked at Acme as a designer with me.
I am no designer.
In 2019 it rained.
Bob called. He works at Beta.
Bob said he likes tea.
Acme is based in Berlin.
Bob moved from Acme to Beta.
I was at Acme until 2015.
Bob joined Acme with the class of 2018.
Bob works at Acme on the 2025 report.
Bob joined Acme by May 2025.
I visited Rome before Berlin.
I work with Bob at Acme.
I heard Bob works at Acme.
As far as I know Bob works at Acme.
According to Carol, Bob works at Acme.
It seems Bob works at Acme.
It turns out that Bob left Acme.
My guess is that Bob left Acme.
Guess who works at Acme!
Bob as well as Carol left Acme.
Bob, not Carol, left Acme.
Bob works at neither Acme nor Beta.
Nobody but Bob works at Acme.
All but Bob left Acme.
Half of Acme left Berlin.
The Acme team moved to Berlin.
Bob's company moved to Berlin.
Bob's wife lives in Berlin.
My friends live in Berlin.
My parents live in Berlin.
The customer lives in Berlin.
The new designer lives in Berlin.
People who work at Acme live in Berlin.
A man called Bob lives in Berlin.
I lived near Berlin.
I live close to Berlin.
I live in a small town near Berlin.
I live in fear.
I live in a flat.
I live in hope.
I live in March.
I work in Berlin.
I work for myself.
I work for a bank.
I work at home.
I work for free.
I work at it.
I worked on Sunday.
I have to work at Acme.
I had to leave Acme.
I need to leave Acme.
I tried to join Acme.
I failed to join Acme.
I refused to join Acme.
I decided to join Acme.
I agreed to leave Acme.
I was asked to leave Acme.
I was offered a job at Acme.
I applied for a job at Acme.
I got an offer from Acme.
I have an interview at Acme.
I start my search at Acme.
I am looking at Acme.
I am leaving Acme for lunch.
I left Acme at noon.
I left Acme for the day.
I left Acme a message.
I left Acme off the list.
I left Acme in a hurry.
I joined Acme for lunch.
I joined Acme on a call.
I joined Bob for lunch.
I joined the call.
I joined the meeting with Acme.
I met the team.
I met Acme.
I met Carol's brother.
I married into money.
I bought it.
I bought lunch for Bob.
I bought Bob a printer.
I sold Bob my car.
I sold Bob.
I own up.
I use it.
I used to.
I like that.
I like what Bob bought.
I like Bob's car.
I like when Bob sings.
I like Bob to sing.
I like how Acme works.
I'd love a coffee.
Would love a coffee.
I should like tea.
I don't know Bob Smith.
I don't own a car.
I don't use Slack.
I don't speak French.
I do not live in Berlin.
Bob is not based in Berlin.
The desk does not cost $90.
The desk cost $90 last year.
The desk would cost $90.
The desk and the lamp cost $90.
The desk costs $90 plus tax.
The desk costs $90 more than the lamp.
The desk costs between $90 and $100.
The desk costs less than $90.
The price dropped by $10.
The price of the desk dropped by $10.
The price of the desk may drop to $90.
The price of the desk was $90.
The order is not shipped.
The order is almost done.
The order will be shipped.
The order is ready for Bob.
The order is done by Bob.
The shop is open from 9 to 5.
The shop is open on Monday.
The shop is closed on Sundays.
Bob is done.
I am done.
I'm down.
We are live.
We are open.
This is done.
It is closed.
Bob is a fan.
Bob is like a designer.
Bob is becoming a designer.
Bob wants to become a designer.
Bob was almost promoted to manager.
Bob became rich.
Bob is Carol.
Bob is the one.
Bob is my friend's manager.
Bob is a manager's dream.
Bob is everyone's manager.
My manager's manager is Bob.
My manager is Bob's friend.
My manager is Bob or Carol.
My manager is not Bob.
My manager was Bob, I think.
My manager will be Bob.
My next manager is Bob.
My dream manager is Bob.
My manager is on holiday.
My wife is happy.
My wife likes tea.
My wife and Bob work at Acme.
Our customers use Slack.
Bob uses Slack's API.
Bob speaks.
Bob speaks to Carol.
Bob speaks for Acme.
Bob runs on Sundays.
Bob leads.
Bob knows it.
Bob knows that Carol Smith left.
Bob Smith knows nothing.
Hi Bob, how is Carol?
Thank you, Bob!
Bob + Carol = love.
Bob works at Acme? No.
PS: see http://acme.com/Bob-left-Acme
Bob works at http://acme.com
Bob@acme.com works at Acme.
RT @kim I work at Acme
TODO: move to Berlin.
Agenda: Bob left Acme.
The book says Bob works at Acme.
Ask Bob, he works at Acme.
Bob (works at Acme) left.
Hopefully Bob works at Acme.
Hopefully, Bob works at Acme.
Bob presumably works at Acme.
Bob theoretically works at Acme.
Ideally I work at Acme.
I briefly worked at Acme and Beta.
Bob virtually owns the shop.
Bob works for Acme as long as Carol does.
Bob works for Acme until he retires.
Bob joined Acme as soon as Carol left.
Bob joined Acme after Carol left.
After Bob left Acme, Carol joined Beta.
Before Bob left Acme, he lived in Rome.
While Bob works at Acme, Carol lives in Rome.
Although Bob works at Acme, he lives in Rome.
""".strip().splitlines()
# Chat: retractions, questions, jokes, quotations, and talk about other people.
CHAT = r"""
I work at Acme... not.
I work at Acme — NOT
I moved to Berlin. Just kidding!
I moved to Berlin. JK
I moved to Berlin. Psych!
Bob works at Acme. I mean Beta.
Bob works at Acme, I mean Beta.
Bob works at Acme. Correction: Beta.
Bob works at Acme. Nope.
Bob works at Acme. No, he left.
Bob works at Acme. No he doesn't.
Bob works at Acme. He does not.
Bob works at Acme. That's wrong.
Bob works at Acme. That is not true.
Bob works at Acme. Or so he says.
Bob works at Acme. At least I think so.
Bob works at Acme. Maybe.
Bob works at Acme. Right?
Bob works at Acme. Is that so?
Bob works at Acme now, right
Bob is Carol's husband, huh
Bob works at Acme, that's wrong.
Bob works at Acme, which is false.
Bob works at Acme, hopefully.
Bob works at Acme too, according to LinkedIn.
Bob works at Acme [citation needed]
Sure, and I own a yacht.
Yeah and I live in Rome.
Right, and I work at Acme.
Bob here, I work at Acme.
Bob here. I joined Acme.
Hi, this is Bob. I joined Acme.
Instead of Bob, Beta works at Acme.
Somehow the desk works at Acme.
Bob left Acme for a week.
Bob moved to Berlin for a month.
I moved to Berlin and then to Rome.
I speak no German.
I speak little German.
Bob is the would-be CEO of Acme.
Bob is the acting manager.
Bob is Carol's husband in the film.
Bob is my manager in name only, according to Carol.
Two desks cost $80.
The order is being shipped.
I bought a printer online lol.
I restarted the printer twice, I think.
My mom thinks I work at Acme.
Remember when I worked at Acme
You know I work at Acme.
As if I worked at Acme.
Not that I work at Acme.
Carol wrote: Bob left Acme.
FW: Bob left Acme.
""".strip().splitlines()
SEVERAL_LINES = [
    "Ann: Hi.\nI work at Acme now.",
    "> Hi.\n> I work at Acme.",
]


@pytest.mark.parametrize("text", [*SENTENCES, *CHAT, *SEVERAL_LINES])
def test_sentences_without_facts_give_no_triples(text):
    assert triples_in(text) == []


@pytest.mark.parametrize(
    ("text", "facts"),
    [
        ("Somehow Bob works at Acme.", []),
        ("Bob, I work at Acme.", []),
        ("Instead of Bob, Carol left Acme.", []),
        (
            "Bob, Carol and Dave left Acme.",
            [(n, "WORKS_AT", "Acme", "ended") for n in ("Bob", "Carol", "Dave")],
        ),
        ("I love tea lol.", []),
        ("I work at Acme. No, I live in Rome.", []),
        (
            "I work at Acme. I don't like tea.",
            [("Alice Nguyen", "WORKS_AT", "Acme", "holds"), ("Alice Nguyen", "DISLIKES", "tea", "holds")],
        ),
    ],
)
def test_an_addressed_or_omitted_person_is_no_subject(text, facts):
    assert triples_in(text) == facts


@pytest.mark.parametrize(
    "opening", ["Maybe", "If so,", "Carol said that", "I think", "I wish", "Suppose", "Unless", "No,"]
)
@pytest.mark.parametrize(
    "text",
    [
        "Bob works at Acme.",
        "I left Acme.",
        "I moved to Berlin in 2019.",
        "Bob never worked at Acme.",
        "I love tea.",
    ],
)
def test_a_hedged_opening_suppresses_the_facts_of_a_sentence(opening, text):
    assert triples_in(text) != []
    assert triples_in(f"{opening} {text}") == []


@pytest.mark.parametrize(
    "ending", [", maybe", ", I think", " if Carol agrees", " or so", ", said Carol", "?"]
)
def test_a_hedged_ending_suppresses_the_facts_of_a_sentence(ending):
    assert triples_in("Bob works at Acme.") != []
    assert triples_in(f"Bob works at Acme{ending}") == []

"""Closed word lists of English that the rules extractor reads by; all lower case.

They are short on purpose: a word that is not here has no type, which is better than a wrong one.
"""

from __future__ import annotations


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


def _phrases(text: str) -> frozenset[str]:
    return frozenset(part.strip() for part in text.split(","))


# ------------------------------------------------------------------------------ names and types

FIRST_NAMES = _words("""
    aaron abigail ada adam adele agnes ahmed aisha alan albert alejandro alex alexander alexandra alfred ali
    alice alicia alina amanda amelia amir amy ana anders andre andrea andreas andrew angela anita ann anna
    anne annie anton antonio anya arjun arthur asha astrid ava barbara bea beatrice ben benjamin bernard
    beth betty bill bob boris brandon brenda brian bridget bruno carl carla carlos carmen carol caroline
    cathy cecilia charles charlie chen chloe chris christian christina christine christopher claire clara
    claudia colin connor cristina cynthia dana daniel daniela dave david deborah deepa denise dennis diana
    diane diego dmitri dominic donald donna dora doris dorothy doug douglas edith eduardo edward elaine
    elena eli elias elijah elisa elizabeth ella ellen elsa emil emily emma eric erica erik erin ernest
    esther ethan eva evan evelyn fatima felix fernando fiona frances francesca francisco franz fred
    frederick gabriel gareth gary george gerald gina giulia gloria graham greg gregory greta gustav hannah
    hans harold harry hassan heather heidi helen helena henry hiroshi howard hugo ian ibrahim igor ines
    ingrid irene iris isaac isabel isabella ivan jack jacob jacqueline james jamie jan jane janet jasmine
    jason javier jeff jen jennifer jenny jeremy jessica jill jim joan joanna joe joel johan johanna john jon
    jonah jonas jonathan jose joseph josh joshua joyce juan judith judy julia julian julie jung kai karen
    karl kate katherine kathleen katie kavita keith kelly ken kenji kenneth kevin kim klaus kofi kristin
    kumar kyle lars laura lauren laurence lea leah lee leila lena leo leon li liam lily linda lisa liu lois
    louis louise lucas lucia lucy luis luke luna maggie magnus malik marco marcus margaret maria marie
    marina mario marion marta martha martin mary mateo matt matthew maurice max maya megan mehmet mei
    melissa mia michael michelle miguel mike mina ming miriam mohamed mohammed molly mona monica nadia nancy
    naomi natalia natalie natasha nathan neil ngozi nicholas nick nicola nicole nigel nikhil nina noah nora
    norman olaf olga oliver olivia omar oscar otto owen pablo pamela patricia patrick paul paula pavel pedro
    peggy penny pete peter petra phil philip pierre priya rachel rafael raj rajesh ralph ramon raul ravi ray
    rebecca rene ricardo richard rita robert roberto robin rodrigo roger roland rosa ruth ryan sabine sally
    sam samantha samuel sandra sanjay sara sarah sean sebastian sergei sergio shirley simon sofia sonia
    sophia sophie stefan stefanie stella stephan stephanie stephen steve steven stuart sue sunil suresh
    susan sven svetlana sylvia tanya tara tariq tatiana ted teresa terry theo theresa thomas tim timothy
    tina tobias tom tomas tony tracy ulrich ursula valentina vanessa vera veronica victor victoria vijay
    viktor vincent virginia vivian vladimir walter wei wendy werner william wolfgang xavier yasmin yosef
    yuki yuri yusuf yvonne zara zoe
""")
PLACES = _phrases("""
    amsterdam, antwerp, athens, atlanta, auckland, austin, australia, austria, baghdad, bangalore, bangkok,
    barcelona, basel, beijing, belfast, belgium, belgrade, bergen, berlin, bern, bogota, bologna, bombay,
    boston, brazil, bremen, brighton, brisbane, bristol, brooklyn, brussels, bucharest, budapest, buenos
    aires, bulgaria, cairo, california, cambridge, canada, cape town, cardiff, chicago, chile, china,
    cologne, colombia, colorado, copenhagen, croatia, cyprus, czech republic, dallas, delhi, denmark,
    denver, detroit, dresden, dubai, dublin, dusseldorf, düsseldorf, edinburgh, egypt, england, estonia,
    ethiopia, europe, finland, firenze, florence, florida, france, frankfurt, freiburg, geneva, genoa,
    germany, ghana, ghent, glasgow, gothenburg, graz, greece, hamburg, hannover, hanoi, hanover, hawaii,
    heidelberg, helsinki, hong kong, houston, hungary, iceland, india, indonesia, iran, iraq, ireland,
    israel, istanbul, italy, jakarta, japan, jerusalem, johannesburg, kenya, kiev, krakow, kuala lumpur,
    kyiv, kyoto, köln, lagos, las vegas, latvia, leeds, leipzig, lima, linz, lisboa, lisbon, lithuania,
    liverpool, ljubljana, london, los angeles, luxembourg, lyon, madrid, malaga, malaysia, malmo,
    manchester, manhattan, manila, marseille, melbourne, mexico, mexico city, miami, milan, milano,
    minneapolis, montreal, morocco, moscow, mumbai, munich, münchen, nairobi, naples, netherlands, new
    york, new delhi, new jersey, new york city, new zealand, nigeria, norway, nuremberg, oakland, oregon,
    osaka, oslo, ottawa, oxford, pakistan, palo alto, paris, peru, philadelphia, philippines, phoenix,
    pittsburgh, poland, portland, porto, portugal, prague, quebec, reykjavik, riga, rio de janeiro, roma,
    romania, rome, rotterdam, russia, salzburg, san diego, san francisco, san jose, santiago, sao paulo,
    scotland, seattle, seoul, serbia, seville, shanghai, shenzhen, singapore, slovakia, slovenia, sofia,
    south     africa, south korea, spain, stockholm, stuttgart, sweden, switzerland, sydney, taipei, taiwan,
    tallinn, tehran, tel aviv, texas, thailand, the hague, tokyo, toronto, toulouse, trieste, trondheim,
    tunis, turin, turkey, uk, ukraine, united kingdom, united states, usa, utrecht, valencia, vancouver,
    venice, vienna, vietnam, vilnius, virginia, wales, warsaw, washington, wellington, wien, yorkshire,
    zagreb, zurich, zürich
""")
LANGUAGES = _words("""
    afrikaans albanian arabic armenian basque bengali bulgarian cantonese catalan chinese croatian czech
    danish dutch english estonian farsi finnish french galician georgian german greek gujarati hebrew hindi
    hungarian icelandic indonesian irish italian japanese kannada korean latin latvian lithuanian malay
    mandarin marathi norwegian persian polish portuguese punjabi romanian russian serbian slovak slovenian
    spanish swahili swedish tagalog tamil telugu thai turkish ukrainian urdu vietnamese welsh yiddish yoruba
    zulu
""")
ORGANISATIONS = _words("""
    inc corp corporation ltd limited llc gmbh ag plc co company university institute bank hospital college labs
    lab systems technologies software solutions holdings foundation ministry museum airlines motors pharma
    industries consulting partners studios studio agency bakery clinic robotics analytics logistics support
""")
TITLES = _words("mr mrs ms miss dr prof professor sir madam herr frau")
# A name or noun phrase with one of these words is a thing, so it can have a status or stand in a place.
THINGS = _words("""
    project ticket order report issue release sprint task milestone plan launch budget roadmap audit invoice
    contract server website site app service store shop office factory warehouse building bridge museum
""")
GROUPS = _words("""
    team club group board committee band union choir society squad department crew council guild chapter
    network division programme program initiative league
""")
NOT_NAMES = _words("""
    i ok okay ps fyi asap btw imho afaik todo am pm january february march april may june july august
    september october november december monday tuesday wednesday thursday friday saturday sunday jan feb mar
    apr jun jul aug sep sept oct nov dec mon tue wed thu fri sat sun mr mrs ms dr prof christmas easter eur
    usd gbp chf jpy internet god you he she we they it mom mum dad grandma grandpa
""")
ROLE_SPEAKERS = _words("""
    user assistant system agent customer support human ai bot client operator tool moderator admin
""")

# ------------------------------------------------------------------------- what slots are filled by

ROLE_HEADS = _words("""
    accountant actor adviser advisor analyst architect artist assistant attorney author baker barista
    captain ceo cfo chef chief cio ciso clerk cmo coach consultant contractor controller coo coordinator
    counsel cpo cto curator dean dentist designer developer director doctor economist editor electrician
    engineer executive farmer founder head intern journalist judge lawyer lead lecturer librarian manager
    marketer mechanic mentor musician nurse officer owner painter pharmacist photographer pilot plumber
    president principal producer professor programmer publisher recruiter representative researcher reviewer
    scientist secretary specialist strategist student supervisor surgeon teacher technician tester therapist
    trainee translator treasurer tutor vp waiter waitress writer
""")
# Words that make of "a former designer" no role that is held.
NO_ROLE = _words("former ex future next aspiring best good great bad worst nice real true only big old retired")
OFFICES = _words("ceo cfo cto coo cmo cpo cio ciso founder chairman chairwoman")
STATUSES = _phrases("""
    in progress, in review, under review, under way, underway, on hold, on track, out of stock, in stock, in
    production, in transit, back in stock, done, open, closed, reopened, blocked, delayed, resolved, solved,
    fixed, broken, cancelled, canceled, shipped, delivered, approved, rejected, pending, complete, completed,
    finished, live, ready, overdue, discontinued, available, unavailable, active, inactive, archived,
    scheduled, planned, offline, online, down, paused, launched, released, merged, deployed, postponed,
    suspended, sold out, deprecated
""")
PROBLEMS = _words("""
    ghost ghosting jam jams error errors noise noises streak streaks smudge smudges smear smears crash crashes
    leak leaks bug bugs fault faults failure failures problem problems issue issues outage outages flicker
    flickering stripe stripes defect defects timeout timeouts
""")
BELONGINGS = _words("""
    apartment bicycle bike boat camera car cat cats computer couch desk dog dogs drone flat garden guitar
    horse house kayak keyboard kitten laptop macbook monitor motorbike motorcycle parrot phone piano printer
    puppy rabbit scanner scooter server sofa surfboard tablet telescope tent tv van violin watch subscription
    licence license router machine
""")

# ------------------------------------------------------------------------------- grammar

DETERMINERS = _words("a an the my our some two three four five several many both")
# Left out of a noun phrase's name: "a new printer" is a printer.
PLAIN_ADJECTIVES = _words("new own favourite favorite very really brand-new")
# A noun phrase with one of these is not read at all: it means another thing, or none that can be named.
NOT_NOUNS = _words("""
    this that these those your his her its their such no any every each what which who it them him me us you
    everything something nothing anything everyone someone nobody one ones all lot lots more less much few bit
    kind sort way how why where when here there home work idea time fun day up down out off away back so not
    there's himself myself herself yourself itself themselves ourselves another other old former previous
    ex late fake first last next i he she we they and but or nor if than as is are was were be been
    son daughter kid kids baby cousin uncle aunt family boyfriend girlfriend fiance colleague neighbour
    neighbor has have had do does did will would can could should might must to mine yours theirs ours
""")
PREPOSITIONS = _words("""
    of in at from with for by to on about near behind under over between into onto against during without
    within through via per like after before since until till around across along among beside beyond despite
    because while although though whereas unless whether
""")
# What may follow an object of a state without changing it: "works for Acme in Berlin".
LOOSE_PREPOSITIONS = _words("in at on for with")
ADVERBS = _words("""
    now currently still also just already recently finally then presently today both always usually often
    mostly part-time full-time again soon later eventually since ever even only really actually too happily
    definitely officially remotely permanently newly twice there here very much well
""")
# May open a sentence: "Yes, Bob works at Acme".
OPENERS = _words("""
    yes yeah yep hi hello hey well so ok okay oh btw fyi and but unfortunately fortunately sadly luckily happily
    finally actually currently meanwhile today now recently also congratulations thanks welcome news update
""")
# Said of the whole sentence: what stands beside one of these may not be so.
HEDGES = _words("""
    if unless whether or either neither nor maybe perhaps probably possibly apparently allegedly supposedly
    reportedly seemingly might may could would should must 'd think thinks thought believe believes believed
    guess suppose supposing supposedly assume assuming imagine pretend hope hopes hoping hoped wish wishes
    wished want wants wanted say says said saying tell tells told claim claims claimed heard rumor rumour
    rumors rumours doubt doubts wonder wondering dream dreamt dreamed joke joking kidding almost nearly hardly
    barely rarely sometimes seldom nobody none when whenever while once lest otherwise fiction imaginary
    hypothetically except
""")
# After "I joined Acme and ...": what follows may have ended it again.
TAKEN_BACK = _words("not n't never no back briefly again left quit gone over unfortunately but until")
AUXILIARIES = {
    "am": "be", "is": "be", "are": "be", "'m": "be", "'re": "be", "was": "was", "were": "was", "been": "been",
    "be": "be", "have": "have", "has": "have", "'ve": "have", "will": "will", "'ll": "will", "do": "do",
    "does": "do", "did": "did", "not": "not", "n't": "not", "never": "never", "no": "no", "longer": "longer",
    "used": "used", "to": "to", "going": "going", "'s": "'s", "had": "had", "can": "can", "got": "got",
}  # fmt: skip
# Capitalised at the start of a sentence only for its place, like all the words above.
NOT_NAMES_AT_THE_START = NOT_NAMES | TITLES | DETERMINERS | NOT_NOUNS | PREPOSITIONS | ADVERBS | OPENERS | HEDGES | _words("""
    according best big call check cheers close come congrats customer customers dear dinner everybody everyone
    get give glad go going good got great happy have help how keep let like look love lunch made make management
    many may meeting most need nice notes ok old one open ordered our people phone please price printer problem
    question quick ready regarding replaced right same sales see several shipped should some somebody sorry
    start status stop summary support sure take team thank thanks then they thing things think try update use
    welcome work works big coffee tea first morning monday cake lucky wonderful perfectly
""") | frozenset(AUXILIARIES)

"""Closed word lists of English that the rules extractor reads by; all lower case.

They are short on purpose: a word that is not here has no type, which is better than a wrong one.
"""

from __future__ import annotations


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


def _phrases(text: str) -> frozenset[str]:
    return frozenset(part.strip() for part in text.split(","))


FIRST_NAMES = _words("""
    aaron abigail adam adele agnes ahmed aisha alan albert alejandro alex alexander alexandra alfred ali
    alice alicia alina amanda amelia amir amy ana anders andre andrea andreas andrew angela anita ann anna
    anne annie anton antonio anya arjun arthur asha astrid ava barbara beatrice ben benjamin bernard beth
    betty bill bob boris brandon brenda brian bridget bruno carl carla carlos carmen carol caroline cathy
    cecilia charles charlie chen chloe chris christian christina christine christopher claire clara
    claudia colin connor cristina cynthia daniel daniela dave david deborah deepa denise dennis diana
    diane diego dmitri dominic donald donna dora doris dorothy doug douglas edith eduardo edward elaine
    elena eli elias elijah elisa elizabeth ella ellen elsa emil emily emma eric erica erik erin ernest
    esther ethan eva evan evelyn fatima felix fernando fiona frances francesca francisco frank franz fred
    frederick gabriel gareth gary george gerald gina giulia gloria grace graham greg gregory greta gustav
    hannah hans harold harry hassan heather heidi helen helena henry hiroshi howard hugo ian ibrahim igor
    ines ingrid irene iris isaac isabel isabella ivan jack jacob jacqueline james jamie jan jane janet
    jasmine jason javier jean jeff jen jennifer jenny jeremy jessica jill jim joan joanna joe joel john
    johan johanna jon jonas jonathan jose joseph josh joshua joyce juan judith judy julia julian julie
    june jung kai karen karl kate katherine kathleen katie kavita keith kelly ken kenji kenneth kevin kim
    klaus kristin kumar kyle lars laura lauren laurence lea leah lee lena leo leon leila li liam lily
    linda lisa liu lois louis louise lucas lucia lucy luis luke luna maggie magnus malik marco marcus
    margaret maria marie marina mario marion marta martha martin mary mateo matt matthew maurice max maya
    megan mehmet mei melissa mia michael michelle miguel mike mina ming miriam mohamed mohammed molly
    monica mona nadia nancy naomi natalia natalie natasha nathan neil nicholas nick nicola nicole nigel
    nikhil nina noah nora norman olaf olga oliver olivia omar oscar otto owen pablo pamela patricia
    patrick paul paula pavel pedro peggy penny pete peter petra phil philip pierre priya rachel rafael raj
    rajesh ralph ramon raul ravi ray rebecca rene ricardo richard rita robert roberto robin rodrigo roger
    roland rosa rose ruth ryan sabine sally sam samantha samuel sandra sanjay sara sarah sean sebastian
    sergei sergio shirley simon sofia sonia sophia sophie stefan stefanie stella stephan stephanie stephen
    steve steven stuart sue sunil susan suresh svetlana sven sylvia tanya tara tatiana ted teresa terry
    theo theresa thomas tim timothy tina tobias tom tomas tony tracy ulrich ursula valentina vanessa vera
    veronica victor victoria vijay viktor vincent virginia vivian vladimir walter wanda wei wendy werner
    will william wolfgang xavier yan yasmin yosef yuki yuri yusuf yvonne zara zoe ada bea dana ines jonah
    kofi lena ngozi tariq
""")

PLACES = _phrases("""
    amsterdam, athens, atlanta, austin, australia, austria, auckland, baghdad, bangalore, bangkok,
    barcelona, basel, beijing, belfast, belgium, belgrade, berlin, bern, bogota, bologna, bombay, boston,
    brazil, brisbane, bristol, brooklyn, brussels, bucharest, budapest, buenos aires, bulgaria, cairo,
    california, cambridge, canada, cape town, cardiff, chicago, chile, china, cologne, colombia, colorado,
    copenhagen, croatia, cyprus, czech republic, dallas, delhi, denmark, denver, detroit, dresden, dubai,
    dublin, dusseldorf, düsseldorf, edinburgh, egypt, england, estonia, ethiopia, europe, finland,
    florence, florida, france, frankfurt, geneva, genoa, germany, ghana, glasgow, gothenburg, greece,
    hamburg, hanoi, hanover, hawaii, helsinki, hong kong, houston, hungary, iceland, india, indonesia,
    iran, iraq, ireland, israel, istanbul, italy, jakarta, japan, jerusalem, johannesburg, kenya, kiev,
    kyiv, krakow, kuala lumpur, kyoto, lagos, las vegas, latvia, leeds, leipzig, lima, lisbon, lithuania,
    liverpool, ljubljana, london, los angeles, luxembourg, lyon, madrid, malaga, malaysia, malmo,
    manchester, manhattan, manila, marseille, melbourne, mexico, mexico city, miami, milan, minneapolis,
    montreal, morocco, moscow, mumbai, munich, nairobi, naples, netherlands, new delhi, new jersey, new
    york, new york city, new zealand, nice, nigeria, norway, nuremberg, oakland, oregon, osaka, oslo,
    ottawa, oxford, pakistan, palo alto, paris, peru, philadelphia, philippines, phoenix, pittsburgh,
    poland, portland, porto, portugal, prague, quebec, reykjavik, riga, rio de janeiro, romania, rome,
    rotterdam, russia, salzburg, san diego, san francisco, san jose, santiago, sao paulo, scotland,
    seattle, seoul, serbia, seville, shanghai, shenzhen, singapore, slovakia, slovenia, sofia, south
    africa, south korea, spain, stockholm, stuttgart, sweden, switzerland, sydney, taipei, taiwan,
    tallinn, tehran, tel aviv, texas, thailand, the hague, tokyo, toronto, toulouse, trieste, trondheim,
    tunis, turin, turkey, uk, ukraine, united kingdom, united states, us, usa, utrecht, valencia,
    vancouver, venice, vienna, vietnam, vilnius, virginia, wales, warsaw, washington, wellington,
    yorkshire, zagreb, zurich, zürich, bergen, ghent, antwerp, graz, linz, york, brighton, heidelberg,
    freiburg, bremen, hannover, münchen, köln, wien, milano, roma, firenze, lisboa
""")

LANGUAGES = _words("""
    afrikaans albanian arabic armenian basque bengali bulgarian cantonese catalan chinese croatian czech
    danish dutch english estonian farsi finnish french galician georgian german greek gujarati hebrew
    hindi hungarian icelandic indonesian irish italian japanese kannada korean latin latvian lithuanian
    malay mandarin marathi norwegian persian polish portuguese punjabi romanian russian serbian slovak
    slovenian spanish swahili swedish tagalog tamil telugu thai turkish ukrainian urdu vietnamese welsh
    yiddish yoruba zulu
""")

ORG_WORDS = _words("""
    inc corp corporation ltd limited llc gmbh ag plc co company university institute bank hospital college
    labs lab systems technologies software solutions group holdings foundation ministry museum airlines
    motors pharma industries consulting partners studios studio agency bakery clinic robotics analytics
    logistics
""")
TITLES = _words("mr mrs ms miss dr prof professor sir madam herr frau")
GROUP_HEADS = _words("""
    team club group board committee band union choir society squad department crew council guild chapter
    network division project programme program initiative league
""")
ROLE_HEADS = _words("""
    accountant actor advisor adviser analyst architect artist assistant attorney author baker barista
    captain ceo cfo chef chief cio ciso clerk cmo coach consultant contractor controller coo coordinator
    counsel cpo cto curator dean dentist designer developer director doctor economist editor electrician
    engineer executive farmer founder head intern journalist judge lawyer lead leader lecturer librarian
    manager marketer mechanic mentor musician nurse officer operator owner painter partner pharmacist
    photographer pilot plumber president principal producer professor programmer publisher recruiter
    representative researcher reviewer scientist secretary specialist strategist student supervisor
    surgeon teacher technician tester therapist trainee translator treasurer tutor vp waiter waitress
    writer
""")
# Roles whose "of Acme" names the employer.
OFFICES = _words("ceo cfo cto coo cmo cpo cio ciso president founder director chairman chairwoman")
STATUSES = _phrases("""
    in progress, in review, under review, under way, underway, on hold, on track, out of stock, in stock,
    in production, in transit, back in stock, done, open, closed, reopened, blocked, delayed, resolved,
    solved, fixed, broken, cancelled, canceled, shipped, delivered, approved, rejected, pending, complete,
    completed, finished, live, ready, overdue, discontinued, available, unavailable, active, inactive,
    archived, scheduled, planned, offline, online, down, paused, launched, released, merged, deployed,
    postponed, suspended, green, red, yellow, sold out, deprecated
""")
# Past participles among the statuses: "was shipped" is an event, "was open" a state that has ended.
STATUS_EVENTS = _words("""
    closed reopened blocked delayed resolved solved fixed cancelled canceled shipped delivered approved
    rejected completed finished discontinued archived scheduled paused launched released merged deployed
    postponed suspended deprecated
""")
PROBLEM_WORDS = _words("""
    ghost ghosting jam jams error errors noise noises streak streaks smudge smudges smear smears crash
    crashes leak leaks bug bugs fault faults failure failures problem problems issue issues outage outages
    warning warnings flicker flickering lag blank stripes stripe spots blur lines defect defects timeout
    timeouts trouble
""")
BELONGINGS = _words("""
    apartment bicycle bike boat book camera car cat cats chair computer couch desk dog dogs drone flat
    fridge garden guitar horse house iphone kayak keyboard kitten laptop lawnmower macbook monitor
    motorbike motorcycle parrot phone piano printer puppy rabbit scanner scooter server ship sofa
    surfboard tablet telescope tent tv van violin watch subscription licence license router oven machine
""")
DOCUMENT_HEADS = _words("""
    report release budget roadmap review plan forecast launch survey audit invoice order ticket sprint
    milestone printer laptop phone
""")

DETERMINERS = _words("a an the my our his her its their some two three four five several many both another")
DROPPED_ADJECTIVES = _words("""
    new old nice good great brand-new own favourite favorite very really quite second-hand used big small
""")
BARRED_NP = _words("""
    this that these those your such no any every each what which who it them him her me us you everything
    something nothing anything everyone someone nobody one ones all lot lots more less much few bit kind
    sort way how why where when here there home work idea time fun day today now up down out off away back
    so too also not there's him myself himself herself yourself itself themselves ourselves
""")
ADVERBS = _words("""
    now currently still also just already recently finally then presently today both all always usually
    often sometimes mostly probably part-time full-time again soon later eventually previously formerly
    once since ever even only really actually too happily definitely officially remotely temporarily
    permanently originally initially immediately newly twice thrice no longer never not n't yet
""")
UNSURE = _words("almost nearly probably possibly allegedly supposedly apparently maybe perhaps reportedly")
HYPOTHETICAL = _words("""
    if unless whether maybe perhaps wonder wonders wondering wondered suppose supposing imagine imagining
    wish wishes hope hopes hoping hoped considering think thinks believe believes guess guesses doubt
    doubts pretend dreamt dreamed assume assumes assuming rumor rumour supposedly allegedly possibly
    probably joking lest
""")
TEMPORAL_SUBORDINATORS = _words("when once until till before after as")
CLAUSE_BREAKS = _words("""
    because when while where although though so which who whom that after before if unless but whereas
    since until till or
""")
PREPOSITIONS = _words("""
    of in at from with for by to on about near behind under over between into onto against during without
    within through via per than like as off after before since until till around across along among beside
    beyond despite
""")
PRONOUNS = _words("i you he she it we they me him her us them")
BE = {
    "am": "present",
    "is": "present",
    "are": "present",
    "'m": "present",
    "'re": "present",
    "'s": "present",
    "was": "past",
    "were": "past",
    "been": "been",
    "being": "being",
    "be": "base",
}
HAVE = _words("have has had 've 'd having")
DO = _words("do does did")
FUTURE = _words("will 'll shall")
IRREAL = _words("might may could would should can must ought 'd")
NEGATIONS = _words("not n't never")
AUXILIARIES = (
    frozenset(BE) | HAVE | DO | FUTURE | IRREAL | NEGATIONS | {"to", "going", "used", "no", "longer"}
)

# Capitalised only because they begin a sentence.
SENTENCE_STARTERS = _words("""
    a about above according actually after afterwards again ah all almost already also although always am
    an and another any anyone anything anyway are as at awesome be because been before besides best
    between both bought but by call can cannot cheers check close come congrats congratulations could
    currently dear despite did do does done due during each earlier either else even eventually ever every
    everybody everyone everything excellent except fine finally first for from fun fyi generally get give
    go going good got great guys had happy has have he hello help hence her here hey hi his hope how
    however i if in indeed instead into is it its just keep last lately later least let lets like looks
    lots love luckily made make many maybe me meanwhile mine more most mostly much must my need neither
    never new next nice no nobody none nor not note nothing now obviously of off oh ok okay old on once
    one only open or originally other our out over own per perhaps please previously probably quick quite
    rather ready really recently regarding replaced right same seems several she should since so some
    somebody someone something sometimes soon sorry still stop such sure take thank thanks that the their
    them then there these they thing things think this those though through thus till to today together
    tomorrow tonight too try turns two under unfortunately unless until up update upon us usually very was
    we welcome well were what whatever when where whether which while who whoever whose why will wish with
    within without work works would wow yeah yep yes yesterday yet you your yours customer customers
    people everyone team status price works printer replacing restarted restarting restart tried trying
    ordered shipped meeting agenda notes summary question answer problem ps ok asap btw imho afaik todo am
    pm use using start starting stopped buy buying read reading see look looking never ask asked email
    phone office lunch dinner christmas easter hello evening morning afternoon night weekend quarter month
    week year day january february march april may june july august september october november december
    monday tuesday wednesday thursday friday saturday sunday jan feb mar apr jun jul aug sep sept oct nov
    dec mon tue wed thu fri sat sun mr mrs ms dr prof
""")
# Capitalised in mid-sentence without being a name.
NOT_NAMES = _words("""
    i ok okay ps fyi asap btw imho afaik todo am pm january february march april may june july august
    september october november december monday tuesday wednesday thursday friday saturday sunday jan feb
    mar apr jun jul aug sep sept oct nov dec mon tue wed thu fri sat sun mr mrs ms dr prof christmas
    easter eur usd gbp chf jpy internet god you he she we they it
""")
ROLE_SPEAKERS = _words("""
    user assistant system agent customer support human ai bot client operator tool moderator admin
""")

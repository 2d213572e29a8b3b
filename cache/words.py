"""The closed classes of English that change an answer while a vector hardly moves, and how a word is read.

Content words are compared by stem. A list is here only where a wrong hit without it was seen or is sure
to be.
"""

from __future__ import annotations

import re
from functools import lru_cache


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


QUESTION = _words("what who whom whose where when why how which")

NEGATIONS = _words(
    """not no never none nobody nothing nowhere neither nor without cannot isnt arent wasnt werent dont
    doesnt didnt wont wouldnt cant couldnt shouldnt hasnt havent hadnt aint mustnt lack lacking unless
    except hardly avoid stop quit fail failed"""
)

MALE = _words("he him his himself")
FEMALE = _words("she her hers herself")
PLURAL = _words("they them their theirs themselves")
IT = _words("it its itself")

POLITE = _words(
    """please kindly thanks thank hi hello hey ok okay well so just actually really very quite simply
    exactly basically possible possibly maybe perhaps also too tell know explain say want wanna like
    need help give let wonder wondering question ask asking someone somebody anyone anybody there"""
)
"""Said or left out without changing what is asked."""

FUNCTION = (
    _words(
        """a an the this that these those is are was were be been being am do does did done doing have has
    had having can could will would shall should may might must to of in on at by for from with
    about into onto over under up down out off as if then than and or but because while i me my mine
    myself we us our ours you your yours one ones some any all each every im ive id ill youre youve
    were theyre its whats hows wheres whos got get getting go going s t m ve re ll d"""
    )
    | QUESTION
    | POLITE
    | MALE
    | FEMALE
    | PLURAL
    | IT
)

SYMMETRIC = _words(
    "married marri connected connect related relat dating dat friends friend same equal between"
)
"""Relations, and their stems, that hold both ways round."""

MOMENTS = _words(
    """monday tuesday wednesday thursday friday saturday sunday january february march april june july
    august september october november december spring summer autumn fall winter morning afternoon
    evening night noon midnight today tonight tomorrow yesterday weekend christmas easter"""
)

_PAIRS = """before:after more:less most:least first:last earlier:later early:late always:never
    increase:decrease increase:reduce increase:lower raise:lower up:down in:out on:off over:under
    above:below inside:outside with:without open:close open:shut start:stop start:end begin:end
    begin:finish start:finish enable:disable activate:deactivate add:remove add:subtract add:delete
    create:delete install:uninstall allow:deny allow:forbid allow:block accept:reject accept:decline
    accept:refuse approve:reject buy:sell borrow:lend send:receive send:get deposit:withdraw
    credit:debit gain:lose win:lose push:pull import:export upload:download encode:decode
    encrypt:decrypt compress:extract lock:unlock login:logout connect:disconnect include:exclude
    ascending:descending upgrade:downgrade show:hide maximum:minimum max:min highest:lowest high:low
    higher:lower tall:short long:short longer:shorter big:small bigger:smaller large:small
    larger:smaller good:bad better:worse best:worst safe:dangerous safe:risky healthy:unhealthy
    hot:cold warm:cool fast:slow faster:slower hard:easy hard:soft difficult:easy easy:hard
    light:dark light:heavy rich:poor cheap:expensive cheaper:costlier true:false right:wrong
    right:left correct:incorrect legal:illegal possible:impossible same:different male:female
    man:woman men:women boy:girl husband:wife father:mother son:daughter brother:sister king:queen
    old:young older:younger old:new new:used full:empty alive:dead born:die love:hate like:hate
    like:dislike likes:dislikes agree:disagree trust:distrust happy:sad optimistic:pessimistic
    brave:cowardly brave:fearful strong:weak smart:stupid intelligent:stupid wise:foolish
    active:passive active:inactive active:lazy public:private positive:negative input:output
    source:target client:server front:back north:south east:west arrive:depart arrival:departure
    enter:exit enter:leave come:go incoming:outgoing top:bottom pass:fail success:failure
    advantage:disadvantage benefit:drawback pro:con pros:cons strength:weakness cause:effect
    cause:prevent cause:cure question:answer teach:learn friend:enemy attack:defend modest:arrogant
    humble:arrogant generous:selfish generous:stingy patient:impatient polite:rude kind:cruel
    kind:mean calm:anxious calm:nervous confident:shy confident:insecure lucky:unlucky
    religious:secular conservative:liberal progressive:conservative honest:dishonest loyal:disloyal
    outgoing:shy introverted:extroverted hopeful:hopeless careful:careless useful:useless
    helpful:harmful quiet:loud quiet:noisy clean:dirty clear:unclear wet:dry thick:thin wide:narrow
    deep:shallow near:far near:distant sharp:blunt visible:invisible specific:general specific:vague
    interesting:boring exciting:boring quickly:slowly often:rarely often:seldom many:few many:little
    much:little only:also temporary:permanent single:married single:multiple local:remote
    local:global absolute:relative and:or both:either all:none all:some everyone:nobody lend:borrow
    debit:credit outgoing:incoming mandatory:optional required:optional virtual:physical
    vegan:vegetarian"""

_OPPOSITES: dict[str, frozenset[str]] = {}
for _pair in _PAIRS.split():
    _left, _right = _pair.split(":")
    _OPPOSITES[_left] = _OPPOSITES.get(_left, frozenset()) | {_right}
    _OPPOSITES[_right] = _OPPOSITES.get(_right, frozenset()) | {_left}

_NEGATING_PREFIXES = ("un", "in", "im", "il", "ir", "dis", "non", "anti", "mis", "de")

_SYNONYMS = """big large huge; small little tiny; begin start commence; finish end complete; buy purchase get;
    fix repair mend resolve solve; error issue problem trouble bug; quick fast rapid speedy; quickly
    fast rapidly; make create build produce; picture photo image; movie film; kid child; mobile
    phone cell cellphone smartphone; car automobile vehicle; happy joyful glad cheerful; sad
    unhappy; smart intelligent clever bright; angry mad; rich wealthy; ill sick; job work occupation
    profession; begin start; choose pick select; show display; delete remove erase; best good top;
    method way approach; reason cause; meaning definition mean; define mean; difference differ
    different distinction; weight pounds; doctor physician; shop store; city town; road street;
    country nation; answer reply response; speak talk; hard difficult tough; easy simple; improve
    better boost; increase raise boost; reduce lower decrease cut; lose shed; learn study; cost
    price fee charge; pay payment; ways steps method; spouse partner; brave courageous; humble
    modest; afraid scared fearful; religious spiritual; vegan plant-based; hopeful optimistic; sure
    certain; important significant crucial; use utilize employ; get receive obtain; require need;
    happen occur; find locate; cancel terminate; visit see; vacation holiday; balance amount; card
    debit; restaurant diner; song track; tune song; temperature temp; luggage baggage"""
_GROUPS: dict[str, set[int]] = {}
for _number, _group in enumerate(_SYNONYMS.split(";")):
    for _word in _group.split():
        _GROUPS.setdefault(_word, set()).add(_number)

_COUNTED = """zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen
    sixteen seventeen eighteen nineteen twenty"""
_LARGER = """thirty:30 forty:40 fifty:50 sixty:60 seventy:70 eighty:80 ninety:90 hundred:100 thousand:1000
    million:1000000 billion:1000000000 dozen:12 half:0.5 twice:2 second:2nd third:3rd fourth:4th fifth:5th"""

NUMBER_WORDS = {word: str(value) for value, word in enumerate(_COUNTED.split())}
NUMBER_WORDS |= {word: value for word, value in (pair.split(":") for pair in _LARGER.split())}
# As often a pronoun as a number.
del NUMBER_WORDS["one"]

_VERBS = """stolen:steal stole:steal broken:break broke:break taken:take took:take written:write
    wrote:write given:give gave:give eaten:eat ate:eat seen:see saw:see known:know knew:know made:make
    bought:buy sold:sell sent:send paid:pay lost:lose found:find kept:keep held:hold told:tell
    said:say thought:think taught:teach caught:catch brought:bring built:build spent:spend
    left:leave met:meet ran:run came:come went:go gone:go became:become began:begin begun:begin
    chosen:choose chose:choose driven:drive drove:drive grew:grow grown:grow heard:hear led:lead
    meant:mean rode:ride ridden:ride spoke:speak spoken:speak understood:understand
    wore:wear worn:wear won:win children:child people:person men:man women:woman"""
_IRREGULAR = {form: word for form, word in (pair.split(":") for pair in _VERBS.split())}

_SUFFIX = re.compile(r"(?:ations?|ingly|edly|ings?|ness|ment|ies|ied|ers?|ed|es|ly|s|e|y)$")


@lru_cache(maxsize=50_000)
def stem(word: str) -> str:
    """The word without its commonest endings; only ever compared with another stem."""
    word = _IRREGULAR.get(word, word)
    if len(word) <= 3:
        return word
    cut = _SUFFIX.sub("", word)
    if len(cut) < 3:
        return word
    # 'stopped', 'planning': the doubled letter is the ending's.
    return cut[:-1] if len(cut) > 3 and cut[-1] == cut[-2] and cut[-1] not in "sl" else cut


@lru_cache(maxsize=50_000)
def opposites_of(word: str) -> frozenset[str]:
    """The word's contraries: those of the list, and itself with or without a prefix that negates."""
    found = set(_OPPOSITES.get(word, ()))
    for prefix in _NEGATING_PREFIXES:
        if len(word) > 3:
            found.add(prefix + word)
        if word.startswith(prefix) and len(word) > len(prefix) + 3:
            found.add(word.removeprefix(prefix))
    return frozenset(found)


def has_synonyms(word: str) -> bool:
    """Whether any word of another stem stands for it."""
    return word in _GROUPS


def are_synonyms(left: str, right: str) -> bool:
    """Whether the words share a stem or stand for each other in a question."""
    return stem(left) == stem(right) or not _GROUPS.get(left, set()).isdisjoint(_GROUPS.get(right, ()))

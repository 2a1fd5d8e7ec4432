"""The plots of `grammar`: what happens, in sentences with choices. All sentences are ours.

`[one|other|]` is a choice and may hold choices; `{slot}` is filled from the cast (`{Slot}` with a capital). Blank lines
part paragraphs. Slots: h the hero (he, him, his; call: how others speak to the hero), f the helper (f_new when first
met, f_call, fhe, fhim, fhis), g another child or animal and k a friend (likewise), obj the thing (a_obj, then mine), do
and did what one does with it, a_food, place, at_place, place2, at_place2, spot, spot2, spot3.
"""

from __future__ import annotations

from dataclasses import dataclass

from zoo.tales.cast import CLOTHES, FOODS, THINGS, TOYS, Thing, words

ANYTHING = TOYS + CLOTHES + THINGS


def among(names: str) -> tuple[Thing, ...]:
    """The things and foods of those names, which are parted by commas."""
    return tuple(thing for thing in ANYTHING + FOODS if thing.name in words(names, ","))


LIGHT = among("kite, balloon, hat, scarf, cap, toy plane, feather, ribbon, picture, map, cape")
SKILLS = among("bike, scooter, kite, drum, flute, guitar, whistle, top, hoop, puppet, sled")
LONG = among("scarf, umbrella, hoop, blanket, ribbon, spoon, basket, sled, cape, coat, sweater")
FRAGILE = among(
    "drum, robot, puppet, whistle, top, scooter, bike, sled, flute, guitar, lamp, basket, umbrella, mirror, clock, jar,"
    "box, cup, chair, kite, crown, mask, necklace, vase, teapot, toy car, toy boat, toy train, toy truck, toy plane,"
    "toy horse, music box"
)
GLASS = among("mirror, cup, jar, clock, music box, lamp, vase, teapot, plate, necklace, shell")
ON_TOP = among("shell, feather, stone, star, flower, ribbon, crown, picture, bell, coin, lamp")
RIDES = among("scooter, bike, sled, toy car, toy boat, toy horse, toy train, toy truck")
WARM = among("hat, scarf, coat, cap, cape, sweater")
SOFT = among("hat, scarf, blanket, pillow, sweater, cap, coat")
GROWING = among("apple, pear, tomato, pumpkin, melon, peach, orange, strawberry")
ROLLING = among("pumpkin, melon, apple, tomato, orange, carrot")
ANYONE = ("family", "grown-up", "animal", "friend")
GROWN = ("family", "grown-up")
STRANGERS = ("grown-up", "animal")

OWN = """
[Once upon a time[,|]|Once[,|]|Long ago,|] there [was|lived] {hero_new}. [{H} had {a_obj}. {He} [loved|liked] to {do}
[every day|all day long|{at_place}|with {his} friends|].|{H}'s favorite thing was {a_obj}. {He} [took it
everywhere|never went anywhere without it|{did} every day].|{He} loved {his} {obj} [more than anything|very much|so
much]. It was {adj} [and {he} {did} every day|and made {him} [happy|smile]|].]
"""
OWN_SHORT = """
[There once [was|lived] {hero_new}, and {he} had {a_obj}.|One [day|morning|sunny day|windy day|afternoon], {hero_new}
[took|carried] {a_obj} to {place}.|{H} got {a_obj} [for {his} birthday|from {his} [grandma|mom|dad|aunt|uncle]]. {He}
was [so|very] [happy|excited|proud].|There was once {hero_new} who had {a_obj}. [Every day|Each morning], {he} {did}.]
"""
WISH = """
[Once upon a time[,|]|Once[,|]|Long ago,|] [there was|there lived] {hero_new}. [More than anything, {he} wanted
{a_obj}.| {H} had one [big|little|secret] wish. {He} wanted {a_obj}.|{H} [dreamed of|wished for] {a_obj}. ["I would
{do} every day," {he} [said|told everyone|thought].|"I wish I had {a_obj}," {he} [said|sighed].]]
"""
OPENINGS = {"own": (OWN, OWN, OWN_SHORT), "wish": (WISH,), "plain": ()}

LOST = """
One [day|morning|afternoon], {h} [could not find {his} {obj}[| anywhere].|looked for {his} {obj}.] [It was not where
{he} had left it.|It was gone!|"Where is my {obj}?" {he} [asked|cried|said].] {H} [looked|searched] {spot}. [It was
not there.|There was nothing there.|{He} found only [an old sock|some dust|a bug|a leaf].] [Then|Next,] {he} looked
{spot2}. [It was not there either.|No {obj}.|But it was not there.|Still nothing.] [{H} was [very|so] sad.|{H} [felt
sad|began to cry|sat down and cried].|{H} did not know what to do.]

[Just then|Then|Soon], {f_new} [came by|saw {him}|came along]. "[What is wrong|Why are you [so|] sad|What happened],
{call}?" [{f} asked|asked {f}]. "I lost my {obj}," [{h} said|said {h}]. "[I looked everywhere|I cannot find it|It is
{adj} and I love it]." "[Don't worry|Don't cry|Do not be sad]," {f} said. "[I will help you [look|find it]|We will
find it together|Let's look together]."

[{H} and {f} [looked|searched] [together|all around|high and low].|They walked [slowly|back] and looked [at the
ground|in every corner].|{H} [thought|tried to remember]. "I had it yesterday," {he} said. [{F} had an idea.|So they
went back.]] [Then {f} looked {spot3}.|[At last|Finally], they looked {spot3}.|"Did you look {spot3}?" {f} asked.]
[There it was! |And there was {mine}!|{H} looked and saw something {adj}. It was {his} {obj}!]

["My {obj}!" {h} [cried|shouted|said]. "Thank you, {f_call}!"|{H} [hugged|thanked] {f}. "You found my {obj}!" {he}
said.|{H} was so happy. {He} [picked up|held] {mine} and [smiled|laughed|jumped for joy].] [{H} {did} [again|until the
sun went down|all day].|{F} watched while {h} {did}.] [From that day on, {h} always put {his} {obj} [in a safe
place|back in its place].|That night, {h} kept {mine} [close|next to {his} bed] and never lost it again.|{H} learned
that it is [good|important] to [take care of your things|ask for help].|{H} knew that with a good friend, nothing
stays lost for long.]
"""

STUCK = """
[One [day|windy day|morning]|That day], {h} [was playing {at_place}|took {mine} to {place}|was {at_place}].
[Suddenly|But then|All of a sudden], [the wind blew and {mine} [flew|went] up [into a tree|onto the roof]|{he} threw
{mine} too high and it [landed|got stuck] in a tree|a big gust of wind took {mine} and it got stuck in a tree]. ["Oh
no!" {h} [said|cried]. "My {obj} is stuck!"|"Oh no, my {obj}!" {he} cried.|{H} looked up. {Mine} was very high.]

{H} [jumped|tried to jump] as high as {he} could, but [{he} could not reach it|{he} was too small|it was too high].
[{He} [shook|pushed] and pulled, but the {obj} did not [move|come down].|{He} threw a [stick|stone], but it did not
help.|Then {he} tried to climb, but {he} [slipped|fell down|was afraid].|] [{H} wanted to give up.|{H} felt
[sad|angry|very small].]

[Then|Just then|Soon], {f_new} came [by|along|to see what was wrong]. "[Can you help me, {f_call}?|Please help me,
{f_call}.]" {h} [said|asked]. "My {obj} is up there and I cannot get it." {F} [looked up|thought for a
moment|nodded|smiled]. "[I have an idea|I know what to do|Of course I can|Let me try]," {fhe} said. {F} [got a long
[stick|ladder]|fetched a long [stick|ladder|pole]|stood on a [box|big stone] and lifted {h} up|brought a chair and a
broom]. [Slowly|Carefully], [they [got|pulled] {mine} down|{f} and {h} [reached|freed] {mine}]. [It fell down
[softly|with a bump].|"Got it!" {f} [said|laughed].|]

["Thank you[ so much|], {f_call}!" {h} said.|{H} [clapped and laughed|was so happy]. "Thank you!" {he} said.] {H}
{did} again, but this time {he} [stayed away from [the tree|the wind]|was more careful|held on tight]. [{F} [joined
in|played too|laughed with {him}].|] [{H} and {f} [were|became] [good|best] friends| {H} and {f} [had fun|played]
until it was time to go home]. [When {h} went to bed, {he} put {mine} [by {his} bed|next to {him}] and smiled.|{H}
never forgot how {f} saved {his} {obj}.|And {mine} never got stuck again.|{H} had {mine} back, and {he} learned that
[two can do what one cannot|it is good to ask for help].]
"""

BROKEN = """
One [day|morning], {h} [was [playing|running] with {mine}|{did} too hard|tripped and dropped {mine}|fell on {mine}].
[Crack!|Snap!|Oh no!|There was a loud [crack|snap].] {Mine} [broke|was broken|broke in two|had a big [crack|hole] in
it]. ["Oh no, my {obj}!" {h} cried.|{H} [looked at|picked up] the pieces and [began to cry|felt very sad].] ["I will
never {do} again," {he} [said|thought].|{He} tried to fix it, but {he} did not know how.|]

{H} took {mine} to {f_new}. "[Can you [fix|mend] it, {f_call}?|Can you help me, {f_call}?|Please help me, {f_call}.]"
{he} [said|asked]. "My {obj} is broken." {F} [looked at it|put on {fhis} glasses|held it up to the light] and
[nodded|smiled|said "Hmm"]. "[I think [we|I] can fix it|It is not so bad|Let us see]," {fhe} said. "[But you must help
me|Bring me the [glue|string|tape]|We need [some glue|a little string|tape and time]]." {H} [held|carried|brought] the
[glue|string|tape|tools] and {f} [put the pieces together|worked [slowly|carefully]|tied and pressed]. They
[worked|sat] together [all morning|for a long time|until it was done]. ["Now we must wait," {f} said. {H} waited and
waited.|]

[At last|Finally|When they were done], {mine} was [as good as new|whole again|not broken anymore]. [It had a little
line where it was broken, but {h} did not mind.|It looked a little different, but {h} liked it even [more|better].|]
"Thank you, {f_call}!" {h} [said|cried|shouted]. [{He} [gave {f} a big hug|hugged {f}].|] {H} {did} [again|right away]
and {f} [watched and smiled|clapped|laughed]. [{H} learned to be [careful|gentle] with {mine}.|After that day, {h}
[was always careful with|took good care of] {his} {obj}.|{H} knew that broken things can be fixed with help and
[love|time].]
"""

TAKEN = """
One [day|sunny day|morning], {h} [put {mine} down|left {mine}] {spot} [to get a drink|and went to [eat|pick
flowers]|and closed {his} eyes for a nap]. When {he} came back, {mine} was gone. [But there were small
[footprints|marks] on the ground.|But {he} heard a noise.|Someone had taken it!] {H} [followed the
[footprints|noise]|looked around and walked] [all the way|] to {place2}.

There {he} saw {g_new}. {G} [had|was holding] {mine}! ["Hey! That is my {obj}!" {h} [said|cried|shouted].|"That {obj}
is mine," {h} said. "Why did you take it?"] {G} [looked down|was scared|felt bad|began to cry]. "[I am sorry|I'm
sorry]," {ghe} said. "[I never had a {obj}, and yours is so {adj}|I did not know it was yours. I thought nobody wanted
it|I was lonely and wanted to play too|I only wanted to {do} one time]." [{H} was not angry anymore.|{H} thought about
it. {He} knew how it felt to be [sad|alone].|{H} felt sorry for {g}.]

"[You should ask first|You can ask me next time|It is not nice to take things]," {h} said. "[But we can {do}
together.|Do you want to {do} with me?|If you give it back, we can share.]" {G} [nodded|smiled|wiped {ghis} eyes].
{Ghe} gave {mine} back [and said thank you|at once|with a smile]. Then [{h} and {g}|they] {did} together. [They took
turns.|They laughed and laughed.|It was more fun with two.]

[When it was time to go home, {h} said, "Come back tomorrow. We will {do} again."|In the evening, {h} carried {mine}
home and waved to {g}.|{G} never took anything without asking again.] [{H} and {g} [became|were] [good|best] friends[,
and the {obj} belonged a little to both of them|].|{H} had {his} {obj} and a new friend too.|{H} was glad, because
{he} still had {mine} and now {he} had a friend.]
"""

QUARREL = """
One [day|afternoon|rainy day], {g_new} came to play. "[Can I {do} too|May I have the {obj}|Let me {do}]?" {g} asked.
"No! [It is mine|It is my {obj}|You will break it]," {h} said. {G} [pulled|grabbed] the {obj}. {H} pulled too. "[Give
it to me|Let go]!" [they both shouted|{h} shouted]. [They pulled so hard that they both fell down.|Then the {obj} fell
on the floor with a [bang|bump].|They pulled and pulled until both of them were crying.]

{F_new} heard the noise and came. "[What is going on|Why are you fighting]?" {f} asked. ["{H} will not share," {g}
said.|"{G} took my {obj}," {h} said.|They both talked at the same time.] {F} [shook {fhis} head|sat down with
them|picked up the {obj}]. "[There is only one {obj}, but there are two of you|The {obj} is no fun when you fight],"
{fhe} said. "[What if you take turns?|Can you take turns?|You can share it.] [First {h}, then {g}|First one, then the
other]." {H} [thought about it|looked at {g}|felt bad]. "[I am sorry|I'm sorry], {g_call}," {he} said. "[You can have
the first turn|You can go first|Let's share it]."

So {g} {did}, and then {h} {did}. [They counted to ten and changed again.|Soon they were laughing.|It was much more
fun than fighting.] [They even let {f} try the {obj}.|"Thank you for sharing," {g} said.|] When {g} went home, {ghe}
said, "[I had a good time|That was fun]." [{H} smiled. {He} learned that sharing {his} {obj} [made it twice as fun|was
better than keeping it].|From then on, {h} and {g} always shared the {obj}.|{H} put {mine} away and could not wait for
{g} to come back.]
"""

EARN = """
One day, {h} [saw|found] {a_obj} in [a shop|the window of a shop|the market]. [It was just what {he} wanted.|"That is
the {obj} I want!" {he} said.|{He} stood and looked at it for a long time.] "How much is [it|the {obj}]?" {he} asked.
"[Five|Ten|Three|Six] coins," said the shopkeeper. {H} looked in {his} pocket. {He} had only [one coin|two coins|a
button]. [{H} walked away with {his} head down.|{H} was sad.]

On the way home, {he} met {f_new}. "[What is wrong|Why do you look so sad], {call}?" {f} asked. "I want to buy the
{obj}, but I do not have enough coins," {h} said. {F} [thought|smiled]. "[I need someone to help me|You can work for
me|I have a lot of work today]," {fhe} said. "If you [water my flowers|sweep my floor|carry my wood|pick my
apples|feed my hens|wash my windows], I will give you [the coins|some coins]." {H} [worked all day|worked very
hard|worked for three days]. {He} [got tired, but {he} did not stop|was tired and dirty, but happy|did not give up].

[At last|In the end|When the work was done], {f} gave {him} the coins. "[You did a good job|You worked so hard|Well
done]," {fhe} said. {H} ran [back|as fast as {he} could] to the shop. [The {obj} was still there!|"I want the {obj},
please," {he} said.] {He} paid and [took {mine} home|held {mine} in {his} [hands|arms]].

[{H} {did} [that very day|all evening|with a big smile].|{H} was so happy with the {obj}.] [{He} showed {mine} to {f}.
"I am proud of you," {f} said.|"Look, {f_call}!" {he} called. {F} clapped.|] [{H} loved {mine} even more because {he}
had worked for it.|{H} learned that [hard work makes wishes come true|{a_obj} is worth the work].|Every time {he}
{did}, {he} remembered how {he} had earned it.]
"""

GIFT = """
[Once upon a time[,|]|One day,|] there was {hero_new}. [Tomorrow was|It was] {f_new}'s birthday, and {h} wanted to
give {fhim} {a_obj}. [{He} made it [all by {himself}|with {his} own hands].|{He} saved [and saved|all {his} coins]
until {he} could buy it.|{He} looked everywhere until {he} found the best one.] "[{F} will love it|This will be a big
surprise]," {h} [said|thought].

On the way [home|to the party], [it started to rain|{h} slipped in the mud|the wind blew hard]. [The {obj} fell [in
the mud|into the water|down the hill].|{H} dropped the {obj} [in the mud|into the river|in a puddle].] "[Oh no! The
gift|Oh no! My surprise]!" {h} cried. Then {g_new} came by. "[I saw it fall|I can help you|Wait]," {g} said. {G} [ran
after it|jumped in|picked it up] and [brought it back|pulled it out|wiped it clean]. [Together they washed the {obj}
and dried it in the sun.|They cleaned it with a leaf and put a ribbon on it.] [It looked even better than before.|Soon
it was {adj} again.]

"Thank you, {g_call}," {h} said. "[Come to the party with me|Please come with me]!" So {g} came too. {H} gave the
{obj} to {f}. "[Happy birthday|This is for you]!" {he} said. {F} [opened {fhis} eyes wide|smiled a big smile|laughed
with joy]. "{A_obj}! [It is the best gift ever|It is beautiful|I love it]," {fhe} said [and hugged {h}|]. [They all
ate cake|They sang and danced|They all sat down together] and {f} {did}. [{H} was [happy|proud] because the {obj} made
{f} so happy.|{H} learned that giving feels as good as getting.|It was the best birthday, thanks to {h}, {g} and the
{obj}.]
"""

LEARN = """
But there was one problem. {H} did not know how to {do1}. [{He} tried, but {he} [fell down|did it all wrong|could
not].|The first time {he} tried, {he} [fell on the grass|made a mess|dropped it].] {He} tried again[, and again|]. [It
did not work.|It was too hard.] "[I can't do it|I will never learn]!" {h} [said|cried]. {He} [put {mine} away|kicked a
stone|wanted to give up].

{F_new} [saw it|was watching|heard {him}]. "[Do not give up|Don't give up], {call}," {f} said. "[When I was little, I
could not do it either|Nobody can do it the first time|I will show you how]." {F} [took the {obj} and showed
{him}|held {h}'s hand and showed {him}|sat down next to {him}]. "[Go slowly|Look, like this|Take a deep breath],"
{fhe} said. "[Now you try|Try again|Now it is your turn]." {H} tried. [It was a little better.|It almost worked!] {He}
practiced [every day|all week|in the morning and in the evening]. [Some days {he} was tired, but {f} [said, "One more
time."|was always there.]|]

Then one [day|morning], [{he} did it!|it worked!|something happened.] {H} {did1}, all by {himself}. "Look, {f_call}!
[I can do it|I did it]!" {he} [shouted|called]. {F} [clapped|cheered|jumped for joy]. "[I knew you could|I am so proud
of you]," {fhe} said. [{H} hugged {f}.|{H} laughed and did it again.] [From that day on, {h} {did} every day.|Soon {h}
{did} better than anyone.|Later, {h} showed {his} friends how to {do1} too.] [{H} and {mine} had learned that you can
do hard things if you keep trying.|{H} was glad that {he} did not give up on {his} {obj}.|And {mine} was never put
away again.]
"""

RESCUE = """
One [day|morning|rainy day], {h} [was walking|went for a walk] [near|to] {place} with {mine}. [Suddenly,|Then] {he}
heard a [small|sad|tiny] voice. "Help! Help!" {H} looked around. [It was {g_new}.|{He} saw {g_new}.] {G} was stuck [in
the mud|in a deep hole|under a branch|in a thorny bush|on a rock in the water]. "[Please help me|I cannot get out],"
{g} said.

"[Don't be scared|I will help you|Hold on]," {h} said. {He} [pulled and pulled|reached out {his} hand], but {g} was
[too far away|stuck too tight]. {H} [thought|looked at {his} {obj}]. [What could {he} do?|"I have an idea," {he}
said.] {He} [held out|reached down with] {mine}. "[Take hold of|Hold on to] my {obj}!" {he} said. {G} [held on|grabbed
it] [tight|with all {ghis} might]. {H} pulled [hard|with all {his} might]. [One, two, three!|Slowly, slowly, {g} came
up.] [Pop! {G} was free.|{G} was free at last!]

"Thank you, {call}! You saved me," {g} said. {G} was [cold and dirty|wet and tired], so {h} [took {ghim} home|gave
{ghim} {a_food}|shared {a_food} with {ghim}]. [The {obj} was dirty too, but {h} did not mind. They washed it
together.|They looked at the {obj}. It was full of mud, and they both laughed.|] Then {h} {did}, and {g}
[watched|laughed|helped]. [After that, {h} and {g} played together every day.|From then on, {h} had a new friend.|{G}
never forgot {h} and the {obj} that saved {ghim}.] [{H} was proud of {his} {obj}.|"This is the best {obj} in the
world," {g} said.|{H} learned that anyone can be a hero.|The end.]
"""

AFRAID = """
But {h} was afraid of [the dark|thunder|deep water|loud noises|the big dog next door|being alone]. [At night|When it
came], {he} [hid under the blanket|closed {his} eyes|shook all over] and [held {mine} tight|called for help]. "[I am
scared|I'm so scared]," {he} [whispered|said].

One [night|evening|day], {f_new} [came|sat down next to {him}]. "[What are you afraid of|Why are you shaking],
{call}?" {fhe} asked. {H} told {fhim}. [{F} did not laugh.|{F} nodded.] "[Everyone is afraid sometimes|I was afraid
too when I was small]," {fhe} said. "[But you have your {obj}|Take your {obj} with you]. [When you are scared, hold it
and count to [three|ten]|It will help you to be brave]. [I will be close by|And I will go with you]."

So {h} took {mine} and [went outside|took one step|opened {his} eyes]. {He} [counted|took a deep breath]. One, two,
three. [{His} heart went boom, boom.|{He} wanted to run away, but {he} did not.] [Then {he} looked around.|{He}
waited.] [Nothing bad happened.|It was not so bad at all.] ["I did it!" {h} said.|"Look, {f_call}, I am brave!" {he}
called.] {F} [smiled|hugged {him}]. "I knew you could do it," {fhe} said.

After that, {h} was not [so|] afraid anymore. [And if {he} was, {he} just held {mine} and counted.|{He} still kept
{mine} close, just in case.|{He} {did} and told {mine} all about it.] [{H} learned that being brave means trying even
when you are scared.|{H} and {mine} slept well that night.|One day {he} even [helped|told] {g_new} [to be brave|who
was afraid too]. "You can hold my {obj}," {h} said.]
"""

FOODSHARE = """
[Once upon a time[,|]|One day,|] there was {hero_new}. [One [day|morning], {h}|{H}] had {a_obj}. [It smelled so
good.|{He} could not wait to eat it.|"Yum!" {he} said.] {H} [took it to {place}|sat down {at_place}] to eat it.

[Just then|But then], {g_new} came by. {G} looked [hungry|sad and thin|very tired]. "[I have not eaten all day|I am so
hungry|My tummy is empty]," {g} said. {H} looked at {mine}. [{He} wanted to eat it all by {himself}.|It was not very
big.|{He} was hungry too.] But {he} [felt sorry for {g}|saw {g}'s sad eyes]. "[You can have half|Let's share it|Here,
take some of my {obj}]," {h} said. {He} [cut|broke] {mine} in two. They [sat|ate] together. "[Thank you|This is the
best {obj} ever]," {g} said.

[A few days later|The next day|One week later], {h} [got lost|was alone] near {place2}. [It was getting dark.|It began
to rain.] {H} was [cold and scared|afraid]. [Who would help {him}?|"Help!" {he} called.] Then {he} heard a voice. It
was {g}! "[You shared your {obj} with me|You helped me when I was hungry]," {g} said. "[Now I will help you|Now it is
my turn]. [Come with me|Follow me]." {G} [showed {him} the way home|took {him} home|led {him} safely home].

["Thank you, {g_call}," {h} said.|{H} was so happy to be home.] [{He} ran inside and came back with another {obj}.
"Let's share again," {he} said.|That evening they ate another {obj} together and [laughed|told stories].] [From that
day on, {h} and {g} were [best|good] friends.|{H} learned that kindness always comes back.|{H} was glad {he} had
shared {his} {obj}.]
"""

HONEST = """
[Once upon a time[,|]|One day,|] there was {hero_new}. {F_new} had {a_obj}. ["Please do not touch it," {f} [always|]
said.|"Be careful with it," {f} said. "It is very special."] But {h} [wanted to {do} so much|could not wait|thought,
"Just one time"]. When nobody was looking, {he} [took the {obj}|picked it up] and {did}.

[Oh no!|Then it happened.] The {obj} [fell|slipped out of {his} hands]. [Crash!|Bang!|Crack!] It was broken. {H} [was
scared|did not know what to do]. {He} hid the {obj} {spot} and [ran outside|said nothing|went to {his} room]. [But
{his} tummy hurt.|{He} could not [eat|sleep|play].|{He} felt bad all day.]

[In the evening|Later], {f} [asked|said], "[Has anyone seen|Where is] my {obj}?" {H} [looked at {his} feet|began to
cry]. {He} wanted to say [no|"I don't know"], but {he} [told the truth|could not lie]. "[I broke it|It was me]," {he}
said. "I [wanted to {do}|took it] and it fell. I am so sorry." {H} showed {f} the {obj}. {F} [was quiet for a
moment|looked sad]. Then {fhe} said, "[Thank you for telling the truth|I am glad you told me]. [That was brave|A {obj}
can be fixed, but a lie is harder to fix]."

[{H} and {f} fixed the {obj} together with glue.|The next day, {h} and {f} mended the {obj}.] [It was not perfect, but
{f} loved it.|Soon it looked almost new.] ["Now we can {do} together," {f} said. And they did.|Then {f} let {h} {do},
slowly and carefully.] [{H} learned to [tell the truth|ask first].|{H} never touched the {obj} without asking again,
and {he} always told the truth.|{H} felt light and happy again.]
"""

HEAVY = """
[Once upon a time[,|]|One day,|] there was {hero_new}. [One day, {h}|{H}] found {a_obj} {at_place}. It was [as big as
a house|so big|bigger than {h}]! "[I want to take it home|This will make a big dinner|Everyone can eat from it]," {h}
said. {He} [pushed and pushed|pulled and pulled]. But the {obj} did not move.

{F_new} came by. "[What are you doing|Can I help], {call}?" {f} asked. "I want to bring this {obj} home, but it is too
heavy," {h} said. So {h} and {f} pushed together. [The {obj} moved a little, but then it stopped.|But the {obj} still
did not move.] Then {g_new} came. "[Let me help too|I am strong]," {g} said. [{H}, {f} and {g}|All three] pushed.
"One, two, three, push!" The {obj} began to roll. It rolled and rolled, all the way to {h}'s [house|door].

"[We did it|Hurray]!" {h} [shouted|cheered]. "[Thank you, {f_call}. Thank you, {g_call}.|Thank you, my friends.]" They
[cut|opened] the {obj} and [made soup|had a party|ate and ate]. [There was enough for everyone.|It was so sweet and
good.] [{H} could not have done it alone.|{H} learned that many hands make work easy.|"Next time we will find a bigger
one," said {g}, and they all laughed.] [And that is how {h} brought the biggest {obj} home.|{H}, {f} and {g} were
friends from that day on.|The end.]
"""

FARAWAY = """
One [day|windy day|morning], {h} was playing with {mine} [near {place}|{at_place}]. [{Mine} rolled away|The wind took
{mine}|{Mine} fell into the stream and floated away]. {H} ran after it. {He} ran [and ran|past {place2}|up the hill
and down the hill]. [At last|Finally], {he} [caught it|picked it up]. "[I have you|Got you]!" {he} said. But when {h}
looked around, {he} did not know where {he} was. [Everything looked strange.|There were only [tall trees|big rocks].]
{H} was lost.

"[Where is my home|How will I get home]?" {h} [asked|cried]. {He} hugged {mine}. [It was getting dark.|{He} was cold
and hungry.] Then {he} saw {f_new}. "[Are you lost|Why are you here all alone], {call}?" {f} asked. "My {obj} [got
away|was gone] and I ran after it," {h} said. "Now I cannot find my home." "[What does your home look like|Where do
you live]?" {f} asked. "[It is a [red|blue|small|white] house near {place}|I live near {place}]," {h} said. "[I know
that place|I know the way|That is not far]," said {f}. "[Come with me|Follow me|Take my hand]."

They walked [together|side by side] [until {h} saw {his} house|for a long time|under the moon]. [To make {h} feel
better, {f} sang a song.|{H} showed {f} the {obj}, and {f} liked it.|] "There is my home!" {h} [shouted|cried]. {His}
family ran out and hugged {him}. "[Thank you for bringing {him} home|We were so worried]!" they said.

{H} [gave {f} {a_food}|thanked {f} and waved goodbye]. [That night|After dinner], {he} [put {mine} next to {his}
bed|held {mine} close]. [{He} was glad to be home.|"Next time, I will hold on to you," {he} told {mine}.] [{H} learned
not to run too far.|From then on, {h} only {did} near {his} home.|And sometimes {f} came to visit, and they {did}
together.]
"""

GROW = """
[Once upon a time[,|]|One spring,|] there was {hero_new}. [{F_new} gave {h} a [small|tiny] seed.|{H} found a
[small|tiny] seed {spot}.] "[What will it be|What is it]?" {he} asked. "[Plant it and wait|Put it in the ground and
you will see]," said {f}. {H} [made a little hole in the garden|put the seed in the ground] and [gave it water|covered
it up].

The next day, {he} ran to look. Nothing. [{He} waited and waited.|Day after day, {he} looked.] [Still nothing.|Only
brown dirt.] "[It will never grow|My seed is broken]," {h} said. "[You must be patient|Give it water and time]," said
{f}. [{H} gave it water every day and pulled the weeds.|{H} sang to the seed every morning.|] One day there was [a
tiny green leaf|something green]! "Look, {f_call}! It is growing!" {h} [shouted|called].

But then [the sun was very hot and the leaf began to hang down|a hungry snail came to eat the leaves|a big wind blew
and bent the little plant]. "[Oh no|Help]!" cried {h}. {F} came [running|at once]. [{F} helped {him} tie the plant to
a stick.|They built a little fence around it.|They carried water, cup after cup.] [The plant stood up again.|The plant
was saved.] It grew and grew. And then one morning there was {a_obj} on it!

{H} [could not believe {his} eyes|danced with joy]. {He} [picked the {obj}|took the {obj}] and [shared it with {f}|cut
it for {f} and {g_new}]. "[It is the best {obj} in the world|It tastes so good]," [{f} said|they said]. [{H} kept the
seeds. "Next year we will have many," {he} said.|{H} learned that good things take time.|{H} was proud, because the
{obj} came from {his} own little seed.]
"""

NEWFRIEND = """
But {h} had nobody to play with. [{He} was lonely.|It was not much fun alone.] ["I wish I had a friend," {he}
said.|Every day {he} sat alone with {mine}.] One day {he} [went to {place}|took {mine} to {place}]. There {he} saw
{g_new}. {G} was [sitting|standing] all alone too. {H} wanted to say hello, but {he} was [too shy|a little afraid].
[What if {g} did not like {him}?|{He} turned to go.]

"[Go and say hello|Do not be shy]," said {f_new}, who [was sitting nearby|saw everything]. "[You both look lonely|Show
your {obj}. That is a good way to begin]." So {h} took a deep breath and walked over. "Hello," {he} said. "{i_am} [Do
you want to see my {obj}|Would you like to {do} with me]?" {G} [looked up|smiled]. "[Yes, please|I would love to],"
{ghe} said. "[Nobody ever asked me before.|What {a_full}!]"

{H} showed {g} how to {do1}. [They laughed a lot.|{G} was very good at it.|They {did} until the sun went down.] "[You
are fun|I like your {obj}]," said {g}. "[Can we play tomorrow|Will you come back tomorrow]?" "Yes!" said {h}. {F}
[smiled|watched and was happy].

The next day, {g} was there again, [and the next day too|waiting]. [{H} was not lonely anymore.|Now {h} had {his}
{obj} and a real friend.] [{He} still loved {mine}, but {he} loved it most with {g}.|"It all began with {a_full}," {h}
liked to say.|And all because {h} was brave, said hello and showed {his} {obj}.|{H} and {g} played with the {obj}
every day after that.]
"""

BUILD = """
[Once upon a time[,|]|One [day|morning|summer day],] {hero_new} [was|went to play] {at_place}. {He} wanted to build [a
castle|a tower|a little house|a boat] out of [sand|stones|wood|boxes|sticks|snow]. "It will be the
[biggest|tallest|best] one in the world," {h} said. {He} put {a_obj} on top. [It looked great.|{H} was proud.|What a
sight it was!]

But then [a big wave came|the wind blew|{g_new} came running and bumped into it|it began to rain hard].
[Crash!|Boom!|Splash!] [Everything fell down|It all fell down]. The {obj} [lay|was] [on the ground|in the dirt]. [{H}
stamped {his} foot.|{H} sat down and cried.|"All my work!" {h} said.] "I will never build [again|anything again],"
{he} said.

{F_new} [saw it all|came to look]. "[That was a fine building|Every builder starts again], {call}," {f} said. "[You
need to make the bottom wider|Let us build it again with a wall around it|It needs a strong base]. [I will help
you.|Let me help you.|Shall we do it together?]" [First they made a strong base|They dug and carried], then they
[built it up, piece by piece|made it higher and higher]. {F} [showed {h} how to press it firmly|held the sides] and
{h} did the rest. [{He} worked until {his} hands were dirty.|They sang while they worked.]

At last {h} [picked up|cleaned] {mine} and put it on top again. [The wind blew, but this time nothing fell.|It stood
tall and strong.] "[It is even better than the first one|Look how strong it is]!" {h} [said|cried]. {F}
[smiled|clapped]. "[Falling down is not the end|Now you know how to build]," {fhe} said. [{H} looked at the {obj}
shining on top and [smiled|felt proud].|Everyone came to see what {h} had built, and the {adj} {obj} on top of it.|{H}
learned to try again when things fall down.]
"""

RACE = """
One day, {g_new} came by. [{G} had one too, and it was new.|{G} also had one.] "[My {obj} is faster than yours|I bet I
can beat you|Let's have a race]," {g} said. "[All right|We will see|Okay]," said {h}. [They wanted to race to the [big
tree|old bridge|end of the road].] {F_new} [counted to three.|said, "Ready, set, go!"|waved a flag.] [And off they
went!|Off they went!]

{G} was [very fast|in front]. {H} went as fast as {he} could, but [{he} could not catch up|{g} was faster]. [{G}
looked back and laughed.|"You are too slow!" {g} called.] But {g} did not look where {ghe} was going. Bump! {G} [hit a
stone|ran into a bush] and fell. "Ouch! My [leg|knee|foot]!" {ghe} cried. {H} could win the race now. [{He} could see
the end.|It was not far.] But {he} [stopped|turned around]. "[Are you hurt|Are you all right]?" {h} asked.

{G} was crying. {H} put {mine} down and helped {ghim} up. "[Lean on me|Hold my hand]," {h} said. [They walked
slowly|Together they went on], step by step, [all the way to the end|to the end]. {F} [was waiting|clapped for both of
them]. "Who won?" {f} asked. "[We both did|{H} won|{H} is the real winner]," {g} said. "And my friend."

[{H} was happy, even though {he} was not the fastest.|{F} gave them both [a big hug|a medal].] [After that, {h} and
{g} took turns with the {obj} and never laughed at anyone who was slow.|{H} and {g} raced many times after that, but
they always came home together, {obj} by {obj}.|{H} looked at {his} {obj}. It was not the fastest one, but it was the
best one for {him}.|{H} put {mine} away and knew that helping is better than winning.]
"""

SICK = """
[Once upon a time[,|]|One [day|cold day|morning],] {hero_new} [wanted|was going] to visit {k_new}. But {k} was
[sick|ill] and had to stay in bed. "[Poor {k}|Oh no]," {h} said. "[What can I do|How can I make {khim} happy]?" [{He}
thought and thought.|{H} asked {f_new}.] {F} said, "[What makes you happy when you are sick?|Bring something nice.]"
{H} [thought of|looked at] {his} {adj} {obj}. It was {his} favorite thing.

{H} put {mine} in a bag and walked to {k}'s house. [It was a long way.|It was cold and windy.|{He} had to walk past
{place}.] [{He} wanted to turn back, but {he} did not.|{He} held the bag tight.] "[Knock, knock|Hello]," {h} said at
the door. {K} was lying in bed with [a red nose|a hot head|a scarf around {khis} neck]. "[I feel so bad|I am so
bored]," {khe} said. "[I have something for you|Look what I have]," said {h}. {He} took out {mine}.

{K}'s eyes [got big|lit up]. "[You can keep it until you feel better|It helps me when I am sad. Maybe it will help you
too]," {h} said. {K} [held the {obj}|{did}] and [smiled for the first time that day|laughed]. {H} [told {khim} a funny
story|sat with {khim} all afternoon]. {F} [brought|sent] [warm soup|hot tea] for both of them.

A few days later, {k} was [well|better] again. {Khe} [came to {h}'s house|ran to {h}] and gave {mine} back. "[Thank
you, {call}|Your {obj} made me well]," {khe} said. [They {did} together.|They went out to play.] [{H} was glad to have
{his} {obj} back, but even more glad to have {his} friend back.|{H} learned that a kind heart is the best
medicine.|And when {h} was sick the next winter, guess who came with {a_food}? It was {k}!]
"""

FOUND = """
[Once upon a time[,|]|One [day|morning|afternoon],] {hero_new} was walking {at_place}. [{He} saw something {adj}
{spot}.|Something {adj} was lying {spot}.] {He} picked it up. It was {a_obj}! "[Wow|Oh|How nice]! [I will keep
it|Finders keepers|Now it is mine]," {h} said. {He} {did} [all the way home|right away]. It was [so much|great] fun.

But then {h} [thought of something|stopped]. [Someone had lost this {obj}.|This was not {his} {obj}.] Maybe someone
was [sad|crying] now. {H} asked {f_new}. "[What would you want if it were yours|What do you think you should do]?" {f}
asked. {H} looked at the {obj}. {He} liked it so much. "[I would want it back|I should find the one who lost it],"
{he} said [quietly|in a small voice]. "[I am proud of you|That is right]," said {f}.

So {h} and {f} [made a sign|asked everyone]. "[Did you lose a {obj}|Is this your {obj}]?" {h} asked. "No," said [the
neighbor|a man]. "No," said [the mailman|a woman]. Then they came to {g_new}, who was [sitting {at_place2}|crying].
"Is this your {obj}?" asked {h}. {G} jumped up. "[Yes! Yes|My {obj}]! [I looked for it everywhere|I thought I would
never see it again]!" {ghe} cried. {G} hugged {h}.

[{H} was a little sad to give it away, but {g}'s smile made {him} happy.|{H} felt warm inside.] "[You can {do} with me
any time,|Do you want to {do} with me?]" {g} said. So {h} and {g} took the {obj} and {did} together. [{H} did not get
to keep the {obj}, but {he} got a friend.|{H} went home with empty hands and a full heart.|{H} learned that giving
back what is not yours feels good.]
"""

BAKE = """
[Once upon a time[,|]|One [day|Sunday|morning],] {hero_new} wanted to [make|bake] {a_treat} for {f_new}. [It was a
surprise.|{F} loved {treat} very much.] {H} took a big bowl. {He} put in the flour. {He} put in the [milk|eggs]. But
there was no [sugar|butter|honey]! "[I cannot make it without that!|What shall I do?]" {h} said.

{H} went out to ask. {He} took {a_obj} with {him}. [On the way|Soon] {he} met {g_new}. "[Do you have some|Can you give
me some], please?" asked {h}. "[Yes, I have a lot|Yes, I do]," said {g}. "But [I would like to {do}.|may I {do}
first?|your {obj} is so {adj}. May I {do}?]" "[Of course|Yes, you may]," {h} said and gave {ghim} the {obj}. {G} {did}
and gave {h} [a full cup|a big jar].

{H} ran home. {He} stirred and stirred. {G} came too and helped [to light the oven|to wash the bowl]. [Soon the house
smelled sweet.|They waited and waited. "Is it ready?" {g} asked. "Not yet," said {h}.] At last the {treat} was ready.
[It was a little flat, but that did not matter.|It was golden and warm.] {F} came in. "[What smells so good|Is this
for me]?" {fhe} asked. "[Surprise|It is for you]!" {h} and {g} shouted.

[{F} took a bite. "It is the best {treat} I ever had," {fhe} said.|They all sat down and ate.] {H} was [so happy|very
proud]. "[I could not have done it without {g}|{G} helped me]," {he} said. "And without my {obj}," [{he} added|{he}
said, laughing]. [{G} gave the {obj} back, and then they ate the last piece.|After that, {h} and {g} baked every
week.|They ate it all, and {h} {did} with {g} until it was dark.]
"""

JEALOUS = """
Then {g_new} moved in next door. {G} had a [bigger|newer|better] {obj}. [It was golden and shiny.|It was the best one
{h} had ever seen.] {H} looked at {his} own {obj}. [Now it looked old and small.|It did not seem so nice anymore.] "[I
want one like that|Mine is no good]," {h} said. {He} threw {mine} [in a corner|under the bed].

The next day, {h} went to {g}. "[Can we trade|Do you want to trade]?" {he} asked. "[Okay|Yes]," said {g}, and {ghe}
took {h}'s {adj} {obj}. {H} played with the new one. But [it was not the same|something was wrong]. [It was too big
for {him}.|It was too heavy.|It did not feel right.] {H} saw {g} with {his} old {obj}. {G} {did} and [laughed|smiled].
{H} began to miss it. [{He} remembered all the fun they had.|{He} could not sleep that night.]

{H} told {f_new} about it. "[I made a mistake|I miss my {obj}]," {he} said. "[The best things are not always the
newest|A thing you love is worth more than a thing that shines]," said {f}. "[Go and talk to {g}|Just ask {g}]." So
{h} went back. "[I am sorry|Please], {g_call}," {he} said. "[I want my old {obj} back|Can we trade back]?" {G}
[smiled|nodded]. "[I like yours, but I miss mine too|I was going to ask you the same thing]," {ghe} said.

They traded back, and {h} had {his} own {obj} again. [Then {h} and {g} {did} side by side.|{H} hugged {his} {adj}
{obj}.] [{H} never wanted another {obj}.|"You are the best {obj} for me," {he} told it.|{H} learned to be happy with
what {he} had.|From that day on, {h} took good care of {mine}, and {g} was {his} friend.]
"""

OUTGROWN = """
{H} wore it when it was [cold|hot] and when it [rained|snowed]. But {h} grew and grew. One [morning|day], {he} [tried
to put it on|put it on], but it did not fit anymore. It was too [small|tight]! {H} pulled and pulled. "[No! It is my
{obj}|I don't want another one]," {he} [cried|said]. "You are getting big, {call}," said {f_new}. "[We can find you a
new one|Everyone grows]." But {h} did not want a new one. {He} put the {obj} [in a box|on a chair] and felt sad.

Then it got very cold. {H} looked out of the window and saw {g_new}. {G} had [no {obj} at all|nothing warm to wear].
{Ghe} was shaking. [{H} looked at {g}. Then {he} looked at the {adj} {obj}.|{H} had an idea.] {He} ran outside. "[You
look cold|Here, try this]," {h} said. "[It is too small for me, but it will fit you|You can have my {obj}]." {G} put
it on. It fit [just right|perfectly]!

"[Is it really for me|Can I keep it]?" {g} asked. "Yes," said {h}. "[It kept me happy for a long time. Now it will
keep you happy|It likes you]." {G} [turned around and around|danced]. "[I love it|Thank you, {call}]!" {ghe} said. {F}
saw it all and [smiled|hugged {h}]. "[You are not only bigger. You are kinder too|I am proud of you]," {f} said.

[After that, {h} saw {his} old {obj} every day, because {g} always wore it when they played.|Every time {h} saw {g} in
the {adj} {obj}, {he} smiled.] [And {h} got a new one, a size bigger.|{H} was not sad anymore.|{H} learned that it
feels good to give.]
"""

BOAST = """
{H} was very proud of it. {He} showed it to everyone. "[Look at my {obj}! Nobody has one like it|I am the finest in
the land]," {he} said. {G_new} came by. "[May I touch it|Can I try it on]?" {g} asked. "[No! You are too dirty|Go
away! It is only for me]," {h} said and put {his} nose in the air. {G} walked away [sadly|with {ghis} head down].

{H} walked on [to {place}|near {place}] with {his} nose in the air, so {he} did not see the [mud|big puddle|hole].
Splash! {He} fell right in. The {adj} {obj} was [covered with mud|wet and dirty]. {H} could not get out. "Help! Help!"
{he} called. [But {he} had been so rude that nobody came.|Some birds looked at {him} and flew away.] {H} began to cry.

Then someone took {his} hand. It was {g}! {G} pulled {him} out. "[Why did you help me|You are helping me]?" {h} asked.
"[I was not nice to you|I was so mean]." "[You needed help|Everyone needs help sometimes]," said {g}. [{H} turned
red.|{H} looked at {his} feet.] "[I am sorry|I'm sorry]," {he} said. "[Please forgive me|I was wrong]." Together they
went to the river and washed the {obj}.

When it was clean and dry, {h} held it out. "[You try it first|Now it is your turn]," {h} said. {G} put the {obj} on
and [looked|laughed] [at {ghimself} in the water|happily]. "[It looks good on you|You look wonderful]," said {h}, and
{he} meant it. [From then on, {h} was not so proud, and {he} had a friend.|{H} still loved {his} {obj}, but {he} loved
{his} new friend more.|{H} learned that being kind is better than being fine.]
"""

EGG = """
One [spring day|morning|cold day], {h} [was walking {at_place}|went to {place}] with {mine}. [On the ground|In the
grass] {he} saw a small [white|blue] egg. [It had fallen out of its nest.|There was no nest and no bird.] It was cold.
"[Poor little egg|Oh, you must be cold]," {h} said. {He} wrapped it in {mine} and [ran home|took it to {f_new}].

"[Can we help it|What can we do]?" {h} asked {f_new}. "[Keep it warm and wait|You must keep it warm day and night],"
{f} said. So {h} put the egg in {mine} [next to the stove|close to the fire]. [Every night {he} slept next to it.|{He}
sang to it.] One day passed. Two days passed. Nothing happened. "[Maybe it is too late|I think it is broken]," {h}
said. "[Do not give up|Wait a little more]," said {f}.

Then, one [morning|night], {h} heard a sound. Tap, tap, tap. [The egg moved!|There was a little crack!] "Come quickly,
{f_call}!" {h} [shouted|called]. A tiny [beak|head] came out, and then a whole little bird. It was wet and
[pink|funny]. "[Peep|Cheep]!" it said. It looked at {h} and [sat down in the {obj}|hid in the {obj}]. {H} laughed.
"[It thinks the {obj} is its nest|It likes my {obj}]," {he} said.

{H} fed the bird every day, and it grew. [One day it could fly.|Soon it had long feathers.] "[It is time to let it
go|It wants to see the sky]," said {f}. {H} [was sad, but {he} opened the window|carried it outside]. The bird flew up
and up. [The next day it came back and sat on {h}'s hand.|But every evening it came back to sleep in the {obj}.] [{H}
kept the {adj} {obj} by the window, always.|{H} was happy, for {he} had saved a little life with {his} {obj}.|And {h}
knew it would never forget {him}.]
"""

MAGIC = """
One [day|night], {h} met {f_magic}. "[You have a kind heart|You helped me once], {call}," {f_m} said. "[I will give
you one wish|You may make a wish]." {H} did not have to think. "I wish for {a_obj}," {he} said. [Poof!|Swish!|There
was a flash of light.] There it was, {a_obj}! "[But listen|Be careful]," said {f_m}. "[It is magic. You must share it,
or it will go away|It will only work if you are kind]."

{H} {did} all day. [It was wonderful.|It was even better than {he} had dreamed.] Then {g_new} came. "[Can I {do}
too|May I try]?" {g} asked. "[No|Not now|Go away]," said {h}. "[It is mine|I wished for it]!" {G} went away and cried.
{H} turned around and [looked for|reached for] the {obj}. But it was gone! [Only a little dust was left.|There was
nothing there.]

{H} [remembered|thought of] what {f_m} had said. {He} [felt bad|was ashamed]. {He} ran after {g}. "[Wait|I am sorry],
{g_call}!" {h} called. "[I was not nice to you|I should have shared]. [I don't have the {obj} anymore, but we can play
something else|Do you want to play with me]?" {G} [wiped {ghis} eyes|smiled]. "[Yes|Okay]," {ghe} said. They [ran and
jumped|played tag] [until the sun went down|and laughed].

And when {h} came home, [what did {he} see|guess what was on the bed]? The {adj} {obj}! It was back! {H} ran to the
window. {F_m} waved at {him} [from the sky|and was gone]. The next day, {h} {did} with {g}, and the {obj} never went
away again. [{H} learned to share.|{H} had got {his} wish, and a friend as well.|And they both lived happily ever
after.]
"""

RAIN = """
One day it began to rain. {H} opened {mine} and stayed dry. Drip, drop, drip, drop. [{He} liked the sound.|{He} walked
through the puddles.] Soon {he} saw {g_new}. {G} was [all wet|standing in the rain]. "[May I come under your {obj}|Can
I stand with you]?" {g} asked. "[Of course|Yes, come in]," said {h}. Now there were two under the {obj}.

They walked on. Then they saw {f_new}. {F} was wet too. "[Is there room for me|Can I come too]?" {f} asked. [{H}
looked up. The {obj} was not very big.|"It will be tight," said {g}.] "[If we stand close together, we can do it|Come
in! There is always room for a friend]," {h} said. So they stood very close. Now there were three under the {obj}.
[The rain fell and fell.|Boom! went the thunder.] "[I am not afraid when we are together|It is warm in here]," said
{g}.

Then a strong wind came and pulled at the {obj}. "[Hold on|Hold it tight]!" {h} [shouted|called]. {G} held {h}, and
{f} held {g}. [They all held on as hard as they could.|The wind pulled and pulled, but three were stronger than the
wind.] At last the wind stopped. The rain stopped too, and the sun came out. There was a rainbow in the sky!

"[Look|How beautiful]!" said {f}. {H} closed {mine} and shook off the water. "[Thank you for sharing your {obj},
{call}|You kept us dry, {call}]," said {g}. [They all jumped in the puddles and went home.|They walked home together
under the rainbow.] [{H} learned that there is always room for one more.|From then on, when it rained, {h} looked for
{his} friends and opened {his} {adj} {obj}.|{H} hung {mine} up to dry and smiled.]
"""


@dataclass(frozen=True)
class Plot:
    """What happens, how it opens, what its thing may be and who may help."""

    body: str
    opening: str
    things: tuple[Thing, ...]
    helpers: tuple[str, ...]


PLOTS = (
    Plot(LOST, "own", ANYTHING, ANYONE),
    Plot(STUCK, "own", LIGHT, ANYONE),
    Plot(BROKEN, "own", FRAGILE, ANYONE),
    Plot(TAKEN, "own", TOYS, ANYONE),
    Plot(QUARREL, "own", TOYS, GROWN),
    Plot(EARN, "wish", ANYTHING, ("grown-up",)),
    Plot(GIFT, "plain", CLOTHES + THINGS, ("family",)),
    Plot(LEARN, "own", SKILLS, ANYONE),
    Plot(RESCUE, "own", LONG, ANYONE),
    Plot(AFRAID, "own", ANYTHING, ANYONE),
    Plot(FOODSHARE, "plain", FOODS, ANYONE),
    Plot(HONEST, "plain", GLASS, ("family",)),
    Plot(HEAVY, "plain", ROLLING, ANYONE),
    Plot(FARAWAY, "own", TOYS, STRANGERS),
    Plot(GROW, "plain", GROWING, ANYONE),
    Plot(NEWFRIEND, "own", TOYS, GROWN),
    Plot(BUILD, "plain", ON_TOP, ANYONE),
    Plot(RACE, "own", RIDES, GROWN),
    Plot(SICK, "plain", TOYS + THINGS, ("family",)),
    Plot(FOUND, "plain", TOYS + THINGS, ("family", "friend")),
    Plot(BAKE, "plain", TOYS, ("family",)),
    Plot(JEALOUS, "own", TOYS + CLOTHES, GROWN),
    Plot(OUTGROWN, "own", WARM, ("family",)),
    Plot(BOAST, "own", CLOTHES, ANYONE),
    Plot(EGG, "own", SOFT, ("family",)),
    Plot(MAGIC, "wish", TOYS + CLOTHES, ANYONE),
    Plot(RAIN, "own", among("umbrella"), ANYONE),
)

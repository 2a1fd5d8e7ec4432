"""Who and what the stories of `grammar` are about: heroes, helpers, things with their uses, places. All words are ours.

The lists are long because the model should learn to look back at what a story is about rather than guess it.
"""

from __future__ import annotations

from dataclasses import dataclass


def words(text: str, separator: str | None = None) -> tuple[str, ...]:
    """The words of `text`, or its phrases between separators."""
    return tuple(" ".join(part.split()) for part in text.split(separator) if part.strip())


@dataclass(frozen=True)
class Thing:
    """What a story is about: its name, words that suit it, and what one does and did with it."""

    name: str
    adjectives: tuple[str, ...]
    uses: tuple[tuple[str, ...], ...]


def things(table: str) -> tuple[Thing, ...]:
    """The things of a table: `name: adjectives: do/did, do/did`, one a line."""
    rows = [[part.strip() for part in line.split(":")] for line in table.strip().split("\n")]
    return tuple(Thing(n, words(a), tuple(words(use, "/") for use in words(uses, ","))) for n, a, uses in rows)


GIRLS = words(
    """
    Lily Lucy Anna Mia Sue Jane Sara Sally Molly Amy Emma Mary Lila Jenny Emily Alice Grace Lisa Rosie Bella Sophie
    Maria Ella Kate Nora Betty Lola Mandy Annie Tilly Clara Luna Millie Chloe Ruby Hanna Eva Zoe Ivy Pia Nina Tara
    Wendy Flora Greta Olive Hazel Poppy Maya Elsie Nell Dora Fern Heidi Ida June Kira Lena Marta Nadia Petra Rita
    Stella Tess Vera Willa Yara Zara Edith Mabel Pearl Ada Bea Cora Della Esme Freya Gwen Holly Iris Jess Kim Lara
    Moira Noor Oona Priya
    """
)
BOYS = words(
    """
    Timmy Ben Tom Tim Jack Max Sam Bob John Joe Billy Tommy Jimmy Jake Pete Andy Bobby Jim Peter Johnny Alex James
    Fred Leo George Dave Joey Henry Danny Ted Frank Gary Steve Charlie Josh Mike Mark Ryan Todd Adam Luke Noah Oscar
    Paul Finn Hugo Ravi Omar Carl Dan Eric Felix Gus Ivan Karl Liam Milo Ned Otto Pablo Ralph Simon Theo Victor Will
    Arthur Basil Cal Dylan Elmo Harry Igor Jonas Kit Lars Matt Nico Ollie Percy Rory Stan Toby Umar Vince Walt Yusuf
    Zack Bruno Emil
    """
)
# A kind of animal and names that suit it.
ANIMALS = {
    "fox": words("Rusty Flick Amber Tod Ginger"),
    "rabbit": words("Clover Hop Thumper Bunny Cotton"),
    "bear": words("Bruno Honey Barney Grizzle Bramble"),
    "mouse": words("Pip Nibbles Squeak Minnie Crumb"),
    "squirrel": words("Nutty Hazel Chip Skipper Acorn"),
    "duck": words("Daffy Puddle Quackers Paddles Dot"),
    "cat": words("Mittens Tiger Whiskers Smoky Tabby"),
    "dog": words("Spot Rover Biscuit Patch Buddy"),
    "frog": words("Freddy Hopper Lilypad Croak Green"),
    "turtle": words("Tilly Shelly Slowpoke Timothy Pebble"),
    "owl": words("Hoot Olga Wisdom Ollie Feathers"),
    "hedgehog": words("Spike Prickles Harry Thistle Button"),
    "elephant": words("Ellie Trunky Peanut Jumbo Nelly"),
    "monkey": words("Coco Bongo Momo Jojo Swinger"),
    "lion": words("Leo Goldie Roary Mane Sunny"),
    "pig": words("Rosie Truffle Oinky Petunia Hamlet"),
    "sheep": words("Woolly Fluffy Dolly Cloud Baba"),
    "penguin": words("Pablo Waddles Pippa Frosty Flip"),
    "goat": words("Billy Nanny Gruff Heidi Bells"),
    "otter": words("Splash River Oscar Slippy Pearl"),
    "beaver": words("Woody Bucky Chewy Logan Dam"),
    "kitten": words("Snowy Muffin Cleo Socks Misty"),
    "puppy": words("Max Scruffy Daisy Coco Wags"),
    "bird": words("Tweety Robin Blue Chirpy Skye"),
    "horse": words("Star Brownie Dusty Prince Bella"),
    "cow": words("Buttercup Molly Bessie Clara Moo"),
    "chick": words("Sunny Peep Goldie Fluff Yolk"),
    "dragon": words("Ember Scorch Zippy Smoky Flame"),
    "mole": words("Digger Morris Velvet Dusty Milly"),
    "snail": words("Shelly Gary Slow Sammy Trail"),
}
TRAITS = words(
    """
    little happy kind brave curious shy clever gentle cheerful quiet silly lively careful friendly small young playful
    hungry lonely busy polite stubborn sleepy proud
    """
)
TOYS = things("""
ball: red bouncy big blue round striped soft: bounce it/bounced it, kick it/kicked it, throw it high/threw it high
kite: red yellow big long bright paper: fly it/flew it, fly it in the wind/flew it in the wind
doll: pretty small soft old little rag: hug it/hugged it, dress it/dressed it, comb its hair/combed its hair
toy car: red fast shiny blue little green: race it/raced it, roll it down the hill/rolled it down the hill
teddy bear: brown soft old fluffy big little: hug it/hugged it, sleep with it/slept with it
toy boat: white blue wooden little fast: sail it/sailed it, float it on the water/floated it on the water
toy train: long green wooden shiny old: push it/pushed it, drive it around the room/drove it around the room
drum: loud big red little round: play it/played it, beat it/beat it
balloon: red big pink yellow round purple: hold it/held it, watch it float/watched it float
robot: silver little shiny funny tall: wind it up/wound it up, make it walk/made it walk
toy truck: big yellow strong green dusty: fill it with sand/filled it with sand, push it/pushed it
puppet: funny wooden little colorful: make it dance/made it dance, make it talk/made it talk
whistle: shiny loud silver little red: blow it/blew it
top: wooden little striped blue: spin it/spun it
toy plane: white fast paper little blue: fly it/flew it, make it zoom/made it zoom
scooter: new red fast shiny purple: ride it/rode it
bike: new blue fast shiny red: ride it/rode it, ride it down the road/rode it down the road
sled: red wooden fast old: ride it down the hill/rode it down the hill
flute: wooden little silver old: play it/played it, play a song on it/played a song on it
toy horse: wooden brown white little: ride it/rode it, brush it/brushed it
bucket: blue little yellow old: fill it with sand/filled it with sand, fill it with water/filled it with water
marble: green shiny blue tiny round: roll it/rolled it
hoop: big yellow red round: roll it/rolled it, spin it/spun it
guitar: little brown old red: play it/played it, play a song on it/played a song on it
""")
CLOTHES = things("""
hat: blue tall red straw funny woolly green: wear it/wore it
scarf: long warm striped red soft orange: wear it/wore it
coat: warm green new long thick: wear it/wore it
crown: golden paper shiny little: wear it/wore it, feel like a king with it/felt like a king with it
necklace: pretty pearl sparkly golden: wear it/wore it
cap: red blue old new yellow: wear it/wore it
ring: golden shiny tiny silver: wear it/wore it, watch it sparkle/watched it sparkle
cape: red long purple shiny: wear it/wore it, run around in it/ran around in it
sweater: warm woolly green soft striped: wear it/wore it
mask: funny scary paper colorful: wear it/wore it, play with it/played with it
ribbon: pink long silky blue: wear it in the sun/wore it in the sun, twirl it/twirled it
""")
THINGS = things("""
book: old thick new colorful little: read it/read it, look at the pictures in it/looked at the pictures in it
lamp: bright little old yellow: light it/lit it
bell: golden loud little silver: ring it/rang it
basket: big brown round little: carry it/carried it, fill it with flowers/filled it with flowers
umbrella: big yellow red striped: open it/opened it, stand under it/stood under it
shell: pink pretty smooth white: listen to it/listened to it, hold it to the light/held it to the light
feather: long white soft blue: wave it/waved it, keep it/kept it
stone: smooth shiny gray round: hold it/held it, keep it/kept it
coin: golden old shiny silver: look at it/looked at it, keep it/kept it
map: old big secret torn: read it/read it, follow it/followed it
blanket: soft warm blue old fuzzy: sit on it/sat on it, wrap it around everyone/wrapped it around everyone
picture: pretty big colorful funny: look at it/looked at it, show it to everyone/showed it to everyone
mirror: little round shiny golden: look into it/looked into it
clock: old round loud little: listen to it/listened to it, wind it up/wound it up
key: tiny golden rusty old: keep it safe/kept it safe, carry it/carried it
jar: glass big empty little: fill it/filled it, look through it/looked through it
flower: red yellow pretty tall purple: smell it/smelled it, water it/watered it
box: blue wooden little secret round: open it/opened it, keep treasures in it/kept treasures in it
cup: white pretty blue little: drink from it/drank from it
spoon: big wooden silver shiny: stir with it/stirred with it, use it/used it
pillow: soft big fluffy green: sleep on it/slept on it, sit on it/sat on it
star: paper golden shiny little: look at it/looked at it, hang it up/hung it up
paintbrush: thin new long little: paint with it/painted with it
music box: little old pretty golden: listen to it/listened to it, wind it up/wound it up
vase: tall blue glass pretty: hold it/held it, put flowers in it/put flowers in it
teapot: white old round pretty: hold it/held it, pour tea from it/poured tea from it
plate: golden pretty big painted: hold it/held it, eat from it/ate from it
chair: little wooden red soft: sit on it/sat on it
""")
FOODS = things("""
apple: red sweet big juicy green: eat it/ate it
cake: big sweet chocolate yummy little: eat it/ate it
pie: warm big apple tasty: eat it/ate it
cookie: big sweet warm round: eat it/ate it
sandwich: big tasty cheese yummy: eat it/ate it
pear: sweet yellow juicy soft: eat it/ate it
banana: yellow ripe long sweet: eat it/ate it
carrot: orange crunchy big fresh: eat it/ate it
muffin: warm sweet blueberry soft: eat it/ate it
orange: juicy round sweet big: eat it/ate it
melon: big round sweet green: eat it/ate it
pancake: warm round big fluffy: eat it/ate it
peach: soft sweet juicy ripe: eat it/ate it
bun: warm soft sweet fresh: eat it/ate it
pumpkin: big round orange heavy: eat it/ate it
tomato: red round juicy ripe: eat it/ate it
corn cob: yellow big sweet warm: eat it/ate it
strawberry: red sweet big juicy: eat it/ate it
""")
TREATS = words("cake pie bread pudding")
# Where: the place, and what one says of being there.
PLACES = tuple(
    (f"the {name}", f"{preposition} the {name}")
    for preposition, names in (
        ("in", "park|garden|forest|meadow|field|yard|woods|orchard|barn|town square|valley|jungle"),
        ("at", "beach|farm|playground|market|zoo|school|harbor"),
        ("by", "pond|river|lake|old bridge|big oak tree|sea|well|mill"),
        ("on", "hill|mountain|island"),
    )
    for name in words(names, "|")
)
SPOTS = words(
    """
    under the bed | behind the couch | in a bush | under a pile of leaves | behind the big tree | in the tall grass |
    under the table | next to the fence | behind a rock | in the kitchen | under the stairs | behind the door | in a
    basket | inside an old boot | beside the pond | under the bench | behind the shed | in the mud | between two
    stones | in the hay
    """,
    "|",
)
GROWN_UPS = words(
    """
    baker | farmer | gardener | mailman | teacher | fisherman | shopkeeper | carpenter | doctor | painter | tailor |
    miller | old man | old woman | neighbor | policeman | bus driver | cook | sailor | king | queen | wizard | fairy |
    knight | clown | librarian | firefighter
    """,
    "|",
)
FAMILY = (
    ("Mom", "mom", "she"),
    ("Dad", "dad", "he"),
    ("Grandma", "grandma", "she"),
    ("Grandpa", "grandpa", "he"),
    ("Mommy", "mommy", "she"),
    ("Daddy", "daddy", "he"),
)

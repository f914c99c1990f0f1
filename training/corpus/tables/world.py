"""Simple facts, typed from memory: capitals, elements, planets, animals, opposites."""

from __future__ import annotations


def _pairs(text: str) -> dict[str, str]:
    rows = (line.split(" = ") for line in text.strip().splitlines())
    return {left.strip(): right.strip() for left, right in rows}


CAPITALS = _pairs("""
    France = Paris
    Germany = Berlin
    Italy = Rome
    Spain = Madrid
    Portugal = Lisbon
    Poland = Warsaw
    Austria = Vienna
    Belgium = Brussels
    Denmark = Copenhagen
    Sweden = Stockholm
    Norway = Oslo
    Finland = Helsinki
    Iceland = Reykjavik
    Ireland = Dublin
    Greece = Athens
    Hungary = Budapest
    Switzerland = Bern
    Ukraine = Kyiv
    Russia = Moscow
    Turkey = Ankara
    Egypt = Cairo
    Kenya = Nairobi
    Morocco = Rabat
    Ethiopia = Addis Ababa
    China = Beijing
    Japan = Tokyo
    India = New Delhi
    Thailand = Bangkok
    Vietnam = Hanoi
    South Korea = Seoul
    Iran = Tehran
    Iraq = Baghdad
    Australia = Canberra
    Canada = Ottawa
    Mexico = Mexico City
    Cuba = Havana
    Brazil = Brasilia
    Argentina = Buenos Aires
    Chile = Santiago
    Peru = Lima
    Colombia = Bogota
    Romania = Bucharest
    Bulgaria = Sofia
    Croatia = Zagreb
    Serbia = Belgrade
    Estonia = Tallinn
    Latvia = Riga
    Lithuania = Vilnius
""")
CONTINENTS = {
    "Europe": "France Germany Italy Spain Portugal Poland Austria Belgium Denmark Sweden Norway Finland Iceland Ireland Greece Hungary Switzerland Ukraine Romania Bulgaria Croatia Serbia Estonia Latvia Lithuania",
    "Africa": "Egypt Kenya Morocco Ethiopia",
    "Asia": "China Japan India Thailand Vietnam Iran Iraq",
    "North America": "Canada Mexico Cuba",
    "South America": "Brazil Argentina Chile Peru Colombia",
}
CONTINENT_OF = {country: continent for continent, text in CONTINENTS.items() for country in text.split()}
SYMBOLS = _pairs("""
    hydrogen = H
    helium = He
    lithium = Li
    beryllium = Be
    boron = B
    carbon = C
    nitrogen = N
    oxygen = O
    fluorine = F
    neon = Ne
    sodium = Na
    magnesium = Mg
    aluminium = Al
    silicon = Si
    phosphorus = P
    sulphur = S
    chlorine = Cl
    argon = Ar
    potassium = K
    calcium = Ca
    iron = Fe
    nickel = Ni
    copper = Cu
    zinc = Zn
    silver = Ag
    tin = Sn
    iodine = I
    gold = Au
    mercury = Hg
    lead = Pb
    uranium = U
""")
FIRST_ELEMENTS = tuple(SYMBOLS)[:20]
"""The element with atomic number n is at n - 1."""
PLANETS = ("Mercury", "Venus", "Earth", "Mars", "Jupiter", "Saturn", "Uranus", "Neptune")
YOUNG = _pairs("""
    cat = kitten
    dog = puppy
    cow = calf
    horse = foal
    sheep = lamb
    goat = kid
    pig = piglet
    hen = chick
    duck = duckling
    goose = gosling
    swan = cygnet
    frog = tadpole
    bear = cub
    lion = cub
    deer = fawn
    owl = owlet
    kangaroo = joey
""")
SOUNDS = _pairs("""
    cat = meow
    dog = woof
    cow = moo
    duck = quack
    sheep = baa
    pig = oink
    horse = neigh
    lion = roar
    bee = buzz
    snake = hiss
    frog = croak
    owl = hoot
    crow = caw
    mouse = squeak
    wolf = howl
""")
LEGS = {
    "dog": 4,
    "cat": 4,
    "horse": 4,
    "ant": 6,
    "bee": 6,
    "spider": 8,
    "bird": 2,
    "snake": 0,
    "fish": 0,
    "cow": 4,
    "duck": 2,
    "crab": 10,
}
_OPPOSITES = _pairs("""
    hot = cold
    big = small
    tall = short
    fast = slow
    old = young
    day = night
    light = dark
    up = down
    left = right
    open = closed
    full = empty
    happy = sad
    rich = poor
    hard = soft
    wet = dry
    clean = dirty
    loud = quiet
    early = late
    strong = weak
    thick = thin
    wide = narrow
    deep = shallow
    near = far
    true = false
    first = last
    inside = outside
    begin = end
    win = lose
    buy = sell
    push = pull
    always = never
    love = hate
    smooth = rough
    sweet = sour
    heavy = weightless
    cheap = expensive
    easy = difficult
    above = below
    before = after
    north = south
    east = west
""")
OPPOSITES = {**_OPPOSITES, **{right: left for left, right in _OPPOSITES.items()}}
MIXTURES = {
    ("blue", "yellow"): "green",
    ("red", "yellow"): "orange",
    ("blue", "red"): "purple",
    ("black", "white"): "grey",
    ("red", "white"): "pink",
}
SIDES = {"triangle": 3, "square": 4, "rectangle": 4, "pentagon": 5, "hexagon": 6, "octagon": 8}
COLOUR_OF = {
    "grass": "green",
    "snow": "white",
    "blood": "red",
    "coal": "black",
    "a lemon": "yellow",
    "a banana": "yellow",
    "the sky": "blue",
    "a tomato": "red",
    "a carrot": "orange",
    "milk": "white",
    "a crow": "black",
    "an elephant": "grey",
}

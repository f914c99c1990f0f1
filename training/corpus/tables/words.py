"""Word lists: everyday words of three to eight letters, closed lists of things, and names."""

from __future__ import annotations


def _words(text: str) -> tuple[str, ...]:
    return tuple(text.split())


ANIMALS = _words("""
    ant bear bee bird camel cat cow crab crow deer dog donkey duck eagle fish fox frog goat goose hare hen horse
    lamb lion mole monkey mouse otter owl panda pig rabbit rat raven seal shark sheep snail snake spider swan
    tiger toad turtle whale wolf worm zebra
""")
FRUITS = _words(
    "apple apricot banana cherry fig grape kiwi lemon lime mango melon orange papaya peach pear plum"
)
VEGETABLES = _words(
    "bean beet cabbage carrot celery corn cucumber garlic leek lettuce onion pea pepper potato radish spinach tomato"
)
COLOURS = _words("black blue brown gold green grey pink purple red silver violet white yellow")
TOOLS = _words("axe brush drill file hammer knife ladder pliers rake rope ruler saw shovel wrench")
CLOTHES = _words("apron belt boot cap coat dress glove hat jacket scarf shirt shoe skirt sock sweater")
FURNITURE = _words(
    "armchair bed bench bookcase chair cupboard desk dresser lamp mirror shelf sofa stool table wardrobe"
)
TREES = _words("ash beech birch cedar elm fir maple oak palm pine poplar spruce willow")
FLOWERS = _words("aster daisy iris lily orchid pansy peony poppy rose sunflower tulip violet")
INSTRUMENTS = _words("banjo cello clarinet drum flute guitar harp oboe organ piano trumpet viola violin")
SPORTS = _words(
    "archery boxing cricket cycling fencing football golf hockey judo rowing rugby skiing swimming tennis"
)
DRINKS = _words("cocoa coffee juice lemonade milk tea water")
JOBS = _words(
    "baker barber butcher carpenter cook dentist doctor driver farmer fisher gardener judge nurse painter pilot plumber sailor singer tailor teacher writer"
)
VEHICLES = _words("bicycle boat bus car ferry lorry plane rocket scooter ship sled taxi train tram truck")
METALS = _words("copper gold iron lead nickel silver tin zinc")
SHAPES = _words("circle cone cube cylinder hexagon oval pentagon pyramid rectangle sphere square triangle")

_THINGS = _words("""
    bag ball bell book bottle bowl box bread bridge bucket butter button cake candle castle cheese city clock cloud
    coin cup door dream earth egg engine farm field fire flag floor flower forest garden gate glass hand heart hill
    honey house island jar key king kite lake leaf letter light map market milk moon morning mountain music nail
    needle night number ocean paper park pen pencil picture pillow plate pocket poem queen queue rain rice ring
    river road rock roof room sail salt sand school sea seed shop sky sleep smile snow soap song soup spoon spring
    star stone storm story street sugar summer sun token tower town tree valley village voice wall water wave wheel
    wind window winter wood word world
""")

WORDS = tuple(
    dict.fromkeys(ANIMALS + FRUITS + VEGETABLES[:10] + COLOURS + TOOLS[:9] + CLOTHES[:10] + _THINGS)
)
"""Words to spell, to sort and to change the case of."""

LISTS = {
    "animals": ANIMALS,
    "fruits": FRUITS,
    "vegetables": VEGETABLES,
    "colours": COLOURS,
    "tools": TOOLS,
    "clothes": CLOTHES,
    "trees": TREES,
    "flowers": FLOWERS,
    "instruments": INSTRUMENTS,
    "sports": SPORTS,
    "drinks": DRINKS,
    "jobs": JOBS,
    "vehicles": VEHICLES,
    "metals": METALS,
    "shapes": SHAPES,
}
"""Closed lists by their plural name."""

NAMES = _words("""
    Ada Alan Alex Alice Amir Amy Ana Anders Andrea Anna Anton Arthur Aisha Ben Bella Bob Boris Bruno Carla Carlos
    Carol Cecilia Chen Chloe Clara Claire Conrad Dan Dana Daniel David Dora Edgar Elena Eli Elias Ella Emil Emily
    Emma Eric Erin Eva Felix Fiona Frank Fred Frida George Gina Grace Greta Gustav Hana Hannah Harry Hassan Heidi
    Helen Henry Hugo Ian Ida Igor Ingrid Irene Iris Isaac Ivan Jack Jacob James Jan Jane Janek Jay Jenny Joan Joe
    John Jonas Julia Jun Kai Karen Karl Kate Kim Klara Lara Laura Lea Leo Lena Liam Lily Linda Lisa Louis Lucas
    Lucy Luis Luna Maja Marc Maria Marie Marta Martin Mary Max Maya Mei Mia Michael Mila Mina Mohamed Nadia Nat
    Nick Nina Noah Nora Olga Oliver Omar Oscar Otto Pablo Paul Paula Peter Petra Philip Pia Priya Rachel Ravi Ray
    Rita Robert Rosa Ruth Sam Sandra Sara Sarah Simon Sofia Sonja Stefan Steve Susan Tara Theo Thomas Tim Tina Tom
    Tomas Uma Ursula Vera Victor Vincent Wanda Wei Will Yara Yuki Yusuf Zara Zoe
""")

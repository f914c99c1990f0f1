"""Lines for haiku, their syllables counted by hand: five, seven and five."""

from __future__ import annotations

OPENINGS = {
    "autumn": ("Autumn in the lane", "Late autumn morning"),
    "cat": ("A cat on the wall", "The cat is asleep"),
    "dog": ("The dog at the door", "An old dog is home"),
    "forest": ("Deep in the forest", "The forest is still"),
    "garden": ("Garden after rain", "A garden at dusk"),
    "morning": ("Before the morning", "The morning is cold"),
    "mountain": ("The mountain at dawn", "A mountain in snow"),
    "moon": ("The moon on the pond", "A moon above roofs"),
    "night": ("The night has no wind", "A long winter night"),
    "ocean": ("The ocean at night", "The ocean is grey"),
    "rain": ("Rain on the window", "The rain does not stop"),
    "river": ("A river in spring", "The river runs slow"),
    "sea": ("The sea in the dark", "A boat on the sea"),
    "server": ("The server is up", "A server at night"),
    "snow": ("Snow on the old road", "The snow has begun"),
    "spring": ("Spring comes to the hill", "A day in the spring"),
    "storm": ("A storm from the west", "The storm has gone by"),
    "summer": ("Summer in the fields", "A long summer day"),
    "sun": ("The sun on the stones", "A sun without heat"),
    "token": ("One token at once", "A token is born"),
    "tree": ("A tree by the road", "The tree lost its leaves"),
    "wind": ("The wind in the reeds", "A wind without sound"),
    "winter": ("Winter at the gate", "A winter of stars"),
}
"""Two first lines for each topic; both name it."""

MIDDLES = (
    "a small light moves on the hill",
    "nobody is on the road",
    "the old house listens and waits",
    "one bird sings and then is still",
    "slow clouds go over the roofs",
    "somewhere a door is open",
    "the day counts its last minutes",
    "a lamp is on in the house",
    "far away a bell is heard",
    "leaves gather under the bench",
)
ENDINGS = (
    "then all is quiet",
    "and I write it down",
    "nobody asks why",
    "the kettle begins",
    "tomorrow will come",
    "the world takes a breath",
    "a child stops to look",
    "time has no hurry",
    "it asks for nothing",
    "the stars are awake",
)
LINES = tuple(line for pair in OPENINGS.values() for line in pair) + MIDDLES + ENDINGS

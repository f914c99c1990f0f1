"""What tools are asked for, a module for each field."""

from training.corpus.tasks import errands, home, lookup, numbers, places, texts

FAMILIES = (
    *places.FAMILIES,
    *numbers.FAMILIES,
    *texts.FAMILIES,
    *home.FAMILIES,
    *errands.FAMILIES,
    *lookup.FAMILIES,
)
